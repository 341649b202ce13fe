// Calls that are valid on each rank but differ between ranks: all ranks throw the same CommunicationError, which names
// the field, both values and both ranks, before any rows are sent.

#include <string>
#include <vector>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using namespace annulus_test::call_extents;
using Catch::Matchers::ContainsSubstring;

namespace {

using Table = std::vector<Refusal<Call&>>;

/// A row: its call differs in `field`, of which rank 0 has `first`.
Refusal<Call&> differs(std::string const& field, std::string const& first, std::string const& other, Spoil spoil) {
  return {field + ", " + other, "CommunicationError",
          "different " + field + ": rank 0 has " + first + ", rank *has " + other, std::move(spoil)};
}

/// On rings of 2 to 4 ranks all ranks make the call `common`, one of them changed by the row.
void check_disagreements(
    Table const& table, Spoil const& common = [](Call&) {}) {
  check_refused(table, [&](Spoil const& spoil) {
    std::vector<Thrown> all;
    for (int ranks = 2; ranks <= 4; ++ranks)
      for (Rank odd : {1, ranks - 1}) {
        auto const outcomes = outcomes_of(ranks, [&](Call& call) {
          common(call);
          if (call.rank == odd) spoil(call);
        });
        for (Outcome const& outcome : outcomes) {
          CAPTURE(ranks, odd);
          CHECK_THAT(outcome.text, ContainsSubstring(", rank " + std::to_string(odd) + " has "));
          CHECK(outcome.text == outcomes[0].text);
          CHECK((outcome.untouched && outcome.good_call_works));
          all.push_back(outcome);
        }
      }
    return all;
  });
}

template <class T>
void other_data_type(SimulatedRing& ring, Call& call) {
  auto const like = [&](auto const& view) { return call.tensor<T, 4>(view.extents(), T(1)); };
  ReferenceBackend backend;
  RingAttention attention(ring, backend, call.options);
  auto output = like(call.output);
  auto lse = call.tensor<Accumulator<T>, 3>(call.lse.extents(), Accumulator<T>(0));
  attention.forward_into(like(call.q), like(call.k), like(call.v), output, lse);
}

}  // namespace

TEST_CASE("ranks that disagree on shape, type or pass", "[attention]") {
  check_disagreements({
      differs("batch", "2", "1",
              [](Call& c) {
                for (auto* x : {&c.q, &c.k, &c.v, &c.output}) *x = x->slice(0, 0, 1);
                c.lse = c.lse.slice(0, 0, 1);
              }),
      differs("query_heads", "4", "2",
              [](Call& c) {
                for (auto* x : {&c.q, &c.output}) *x = x->slice(2, 0, 2);
                c.lse = c.lse.slice(1, 0, 2);
              }),
      differs("kv_heads", "2", "1",
              [](Call& c) {
                for (auto* x : {&c.k, &c.v}) *x = x->slice(2, 0, 1);
              }),
      differs("head_dim", "4", "3",
              [](Call& c) {
                for (auto* x : {&c.q, &c.k}) *x = x->slice(3, 0, 3);
                c.options.softmax_scale = 0.5;
              }),
      differs("value_dim", "3", "1",
              [](Call& c) {
                for (auto* x : {&c.v, &c.output}) *x = x->slice(3, 0, 1);
              }),
      differs("data type", "float32", "float64", [](Call& c) { c.instead = other_data_type<double>; }),
      differs("data type", "float32", "bfloat16", [](Call& c) { c.instead = other_data_type<Eigen::bfloat16>; }),
      differs("accumulator bytes", "4", "8",
              [](Call& c) {
                c.instead = [](SimulatedRing& ring, Call& call) {
                  DoubleReferenceBackend backend;
                  RingAttention attention(ring, backend, call.options);
                  call.run(attention);
                };
              }),
      differs("pass", "forward", "backward", [](Call& c) { c.pass = Pass::backward; }),
  });
}

TEST_CASE("ranks that disagree on an option", "[attention]") {
  check_disagreements({
      differs("mask.causal", "false", "true", [](Call& c) { c.options.mask.causal = true; }),
      differs("mask.window.left", "unset", "7", [](Call& c) { c.options.mask.window.left = 7; }),
      differs("softmax_scale", "0.5", "0.25", [](Call& c) { c.options.softmax_scale = 0.25; }),
      differs("dropout.seed", "0", "18446744073709551615", [](Call& c) { c.options.dropout.seed = ~std::uint64_t{0}; }),
      differs("sharding", "contiguous", "zigzag", [](Call& c) { c.options.sharding = Zigzag{}; }),
      differs("sharding", "contiguous", "block-striped(3)", [](Call& c) { c.options.sharding = Striped{.block = 3}; }),
      differs("rotation", "automatic", "queries", [](Call& c) { c.options.rotation = Rotation::queries; }),
      differs("schedule", "ring", "both_directions", [](Call& c) { c.options.schedule = Schedule::both_directions; }),
      differs("wire", "as_stored", "half", [](Call& c) { c.options.wire = Wire::half; }),
      differs("require_finite", "false", "true", [](Call& c) { c.options.require_finite = true; }),
      differs("predicate given", "false", "true",
              [](Call& c) {
                c.instead = [](SimulatedRing& ring, Call& call) {
                  ReferenceBackend backend;
                  RingAttention attention(ring, backend, call.options, [](Index, Index, Index, Index) { return true; });
                  call.run(attention);
                };
              }),
  });
}

TEST_CASE("ranks of which some check their call", "[attention]") {
  check_disagreements({differs("checked", "false", "true", [](Call& c) { c.options.checked = true; })},
                      [](Call& c) { c.options.checked = false; });
}

TEST_CASE("ranks that disagree on which operands are given", "[attention]") {
  check_disagreements({
      differs("bias given", "false", "true", [](Call& c) { c.operands.bias = c.bias_of(c.global_rows()); }),
      differs("mask operand given", "false", "true", [](Call& c) { c.operands.mask = c.mask_of(c.global_rows()); }),
      differs("document ids given", "false", "true", [](Call& c) { c.give_ids(c.ids(b, rows), c.ids(b, rows)); }),
      differs("sink logits given", "false", "true", [](Call& c) { c.operands.sinks = c.varied(heads); }),
      differs("sink logits given", "false", "true", [](Call& c) { c.operands.sinks = c.varied(heads, 0); }),
  });
}

TEST_CASE("ranks that disagree on the extents of operands", "[attention]") {
  auto const bias = [](Index batch, Index bias_heads) {
    return [=](Call& c) { c.operands.bias = c.varied(batch, bias_heads, rows, c.global_rows()); };
  };
  check_disagreements(
      {differs("bias batch extent", "2", "1", bias(1, heads)), differs("bias head extent", "4", "1", bias(b, 1)),
       differs("bias key extent", "*", "5", [](Call& c) { c.operands.bias = c.bias_of(5); }),
       differs("mask operand key extent", "*", "5", [](Call& c) { c.operands.mask = c.mask_of(5); }),
       differs("bias_gradient", "false", "true", [](Call& c) { c.operands.bias_gradient = true; }),
       differs("sink logits per head", "2", "1", [](Call& c) { c.operands.sinks = c.varied(heads); })},
      [](Call& c) {
        c.operands.bias = c.bias_of(c.global_rows());
        c.operands.mask = c.mask_of(c.global_rows());
        c.operands.sinks = c.varied(heads, 2);
      });
}

TEST_CASE("explicit shardings with different maps are a disagreement", "[attention]") {
  Spoil const swapped = mapped([](auto& map) { std::swap(map[0], map[1]); });
  check_disagreements({differs("sharding", "explicit #*", "explicit #", swapped)}, mapped([](auto&) {}));
}

TEST_CASE("a refusal of one rank takes precedence over a disagreement", "[attention]") {
  check_refused_on_rings({{"cap of one rank", "UnsupportedError", ": logit soft cap is -1",
                           [](Call& call) {
                             call.options.mask.causal = call.rank == 1;
                             if (call.rank == call.ranks - 1) call.options.logit_softcap = -1;
                           }}},
                         false, 3);
}

TEST_CASE("unset, negative and unbounded window sides agree", "[attention]") {
  auto const bounded = [](Call& call) { call.options.mask.window = {.left = -1, .right = unbounded}; };
  for (Outcome const& outcome : outcomes_of(2, bounded, 1)) CHECK(outcome.type == "nothing");
}

TEST_CASE("operands of a later call that differ between ranks are found as in the first", "[attention][agreement]") {
  using Pairs = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Pairs q(1, 2, 2, 4);
  q.setConstant(0.5F);
  Pairs shared(1, 1, 2, 4), of_heads(1, 2, 2, 4);
  shared.setZero();
  of_heads.setZero();
  Eigen::Tensor<bool, 4, Eigen::RowMajor> visible(1, 1, 2, 4), visible_to_heads(1, 2, 2, 4);
  visible.setConstant(true);
  visible_to_heads.setConstant(true);
  Eigen::Tensor<float, 2, Eigen::RowMajor> const no_sinks(2, 0);
  Pairs const no_joint_keys(1, 0, 2, 4);

  struct Change {
    std::string field;
    Operands<float> before, after;
  };
  Operands<float> with_joint_keys;
  with_joint_keys.joint_keys = no_joint_keys;
  with_joint_keys.joint_values = no_joint_keys;
  std::vector<Change> const changes{{"bias head extent", {.bias = shared}, {.bias = of_heads}},
                                    {"mask operand head extent", {.mask = visible}, {.mask = visible_to_heads}},
                                    {"sink logits given", {}, {.sinks = no_sinks}},
                                    {"joint keys given", {}, with_joint_keys}};
  for (Change const& change : changes) {
    auto const all = run_ring(2, [&](SimulatedRing& ring) {
      ReferenceBackend backend;
      RingAttention attention(ring, backend, {.schedule = Schedule::tiles, .checked = false});
      attention.forward(q, q, q, change.before);
      return attempt([&] { attention.forward(q, q, q, ring.rank() == 1 ? change.after : change.before); });
    });
    for (Thrown const& thrown : all) check_thrown(thrown, "CommunicationError", "different " + change.field);
  }
}
