// Calls that are valid on each rank but differ between ranks: all ranks throw the same CommunicationError, which names
// the field, both values and both ranks, before any rows are sent.

#include <string>
#include <vector>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr Index b = Call::batch, rows = Call::rows, heads = Call::query_heads;

struct Disagreement {
  std::string field;
  std::string first, other;  ///< values of rank 0 and of the rank that differs, as in the message
  Spoil spoil;
};

void check_disagreement(Disagreement const& disagreement) {
  for (int ranks = 2; ranks <= 4; ++ranks)
    for (Rank odd : {1, ranks - 1}) {
      auto const outcomes = outcomes_of(
          ranks, disagreement.spoil, [&](Rank rank) { return rank == odd; }, false);
      for (Outcome const& outcome : outcomes) {
        CAPTURE(disagreement.field, ranks, odd, outcome.text);
        CHECK(outcome.type == "CommunicationError");
        CHECK_THAT(outcome.text,
                   ContainsSubstring("different " + disagreement.field + ": rank 0 has " + disagreement.first +
                                     ", rank " + std::to_string(odd) + " has " + disagreement.other));
        CHECK(outcome.text == outcomes[0].text);
        CHECK(outcome.untouched);
      }
    }
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

std::vector<Disagreement> shapes() {
  return {
      {"batch", "2", "1",
       [](Call& c) {
         for (auto* x : {&c.q, &c.k, &c.v, &c.output}) *x = x->slice(0, 0, 1);
         c.lse = c.lse.slice(0, 0, 1);
       }},
      {"query_heads", "4", "2",
       [](Call& c) {
         for (auto* x : {&c.q, &c.output}) *x = x->slice(2, 0, 2);
         c.lse = c.lse.slice(1, 0, 2);
       }},
      {"kv_heads", "2", "1",
       [](Call& c) {
         for (auto* x : {&c.k, &c.v}) *x = x->slice(2, 0, 1);
       }},
      {"head_dim", "4", "3",
       [](Call& c) {
         for (auto* x : {&c.q, &c.k}) *x = x->slice(3, 0, 3);
         c.options.softmax_scale = 0.5;
       }},
      {"value_dim", "3", "1",
       [](Call& c) {
         for (auto* x : {&c.v, &c.output}) *x = x->slice(3, 0, 1);
       }},
      {"data type", "float32", "float64", [](Call& c) { c.instead = other_data_type<double>; }},
      {"data type", "float32", "bfloat16", [](Call& c) { c.instead = other_data_type<Eigen::bfloat16>; }},
      {"accumulator bytes", "4", "8",
       [](Call& c) {
         c.instead = [](SimulatedRing& ring, Call& call) {
           DoubleReferenceBackend backend;
           RingAttention attention(ring, backend, call.options);
           call.run(attention);
         };
       }},
      {"pass", "forward", "backward", [](Call& c) { c.pass = Pass::backward; }},
  };
}

std::vector<Disagreement> options() {
  return {
      {"mask.causal", "false", "true", [](Call& c) { c.options.mask.causal = true; }},
      {"mask.window.left", "unset", "7", [](Call& c) { c.options.mask.window.left = 7; }},
      {"mask.window.right", "unset", "0", [](Call& c) { c.options.mask.window.right = 0; }},
      {"mask.sink_tokens", "0", "3", [](Call& c) { c.options.mask.sink_tokens = 3; }},
      {"mask.chunk", "0", "16", [](Call& c) { c.options.mask.chunk = 16; }},
      {"softmax_scale", "0.5", "0.25", [](Call& c) { c.options.softmax_scale = 0.25; }},
      {"logit_softcap", "0", "30", [](Call& c) { c.options.logit_softcap = 30; }},
      {"dropout.probability", "0", "0.5", [](Call& c) { c.options.dropout.probability = 0.5; }},
      {"dropout.seed", "0", "18446744073709551615", [](Call& c) { c.options.dropout.seed = ~std::uint64_t{0}; }},
      {"sharding", "contiguous", "zigzag", [](Call& c) { c.options.sharding = Zigzag{}; }},
      {"sharding", "contiguous", "block-striped(3)", [](Call& c) { c.options.sharding = Striped{.block = 3}; }},
      {"query_offset", "unset", "-5", [](Call& c) { c.options.query_offset = -5; }},
      {"rotation", "automatic", "queries", [](Call& c) { c.options.rotation = Rotation::queries; }},
      {"schedule", "ring", "both_directions", [](Call& c) { c.options.schedule = Schedule::both_directions; }},
      {"wire", "as_stored", "half", [](Call& c) { c.options.wire = Wire::half; }},
      {"predicate given", "false", "true",
       [](Call& c) {
         c.instead = [](SimulatedRing& ring, Call& call) {
           ReferenceBackend backend;
           RingAttention attention(ring, backend, call.options, [](Index, Index, Index, Index) { return true; });
           call.run(attention);
         };
       }},
  };
}

std::vector<Disagreement> operands() {
  return {
      {"bias given", "false", "true", [](Call& c) { c.operands.bias = c.bias_of(c.global_rows()); }},
      {"mask operand given", "false", "true", [](Call& c) { c.operands.mask = c.mask_of(c.global_rows()); }},
      {"document ids given", "false", "true",
       [](Call& c) {
         c.operands.query_documents = c.ids(b, rows);
         c.operands.key_documents = c.ids(b, rows);
       }},
      {"sink logits given", "false", "true", [](Call& c) { c.operands.sinks = c.varied<1>({heads}); }},
      {"sink logits given", "false", "true",
       [](Call& c) {
         c.operands.sinks = c.varied<2>({heads, 0});
       }},
  };
}

/// All ranks give an operand; one of them gives a different one.
std::vector<Disagreement> operand_extents() {
  auto const bias = [](Index batch, Index bias_heads, Index keys_per_rank) {
    return [=](Call& c) { c.operands.bias = c.varied<4>({batch, bias_heads, rows, keys_per_rank * c.ranks}); };
  };
  return {
      {"bias batch extent", "2", "1", bias(1, heads, rows)},
      {"bias head extent", "4", "1", bias(b, 1, rows)},
      {"bias_gradient", "false", "true", [](Call& c) { c.operands.bias_gradient = true; }},
      {"sink logits per head", "2", "1", [](Call& c) { c.operands.sinks = c.varied<1>({heads}); }},
  };
}

}  // namespace

TEST_CASE("ranks that disagree on shape, type or pass", "[attention]") {
  for (Disagreement const& disagreement : shapes()) check_disagreement(disagreement);
}

TEST_CASE("ranks that disagree on an option", "[attention]") {
  for (Disagreement const& disagreement : options()) check_disagreement(disagreement);
}

TEST_CASE("ranks that disagree on which operands are given", "[attention]") {
  for (Disagreement const& disagreement : operands()) check_disagreement(disagreement);
}

TEST_CASE("ranks that disagree on the extents of operands", "[attention]") {
  for (Disagreement disagreement : operand_extents()) {
    Spoil const change = disagreement.spoil;
    for (int ranks = 2; ranks <= 3; ++ranks) {
      auto const outcomes = outcomes_of(
          ranks,
          [&](Call& call) {
            call.operands.bias = call.bias_of(call.global_rows());
            call.operands.sinks = call.varied<2>({heads, 2});
            if (call.rank == ranks - 1) change(call);
          },
          [](Rank) { return true; }, false);
      for (Outcome const& outcome : outcomes) {
        CAPTURE(disagreement.field, ranks, outcome.text);
        CHECK(outcome.type == "CommunicationError");
        CHECK_THAT(outcome.text,
                   ContainsSubstring("different " + disagreement.field + ": rank 0 has " + disagreement.first +
                                     ", rank " + std::to_string(ranks - 1) + " has " + disagreement.other));
      }
    }
  }
}

TEST_CASE("ranks that disagree on the keys that a bias or mask covers", "[attention]") {
  for (bool mask : {false, true}) {
    auto const outcomes = outcomes_of(
        3,
        [&](Call& call) {
          Index const keys = call.rank == 1 ? 5 : call.global_rows();
          if (mask)
            call.operands.mask = call.mask_of(keys);
          else
            call.operands.bias = call.bias_of(keys);
        },
        [](Rank) { return true; }, false);
    for (Outcome const& outcome : outcomes) {
      CHECK(outcome.type == "CommunicationError");
      CHECK_THAT(outcome.text, ContainsSubstring(mask ? "mask operand key extent" : "bias key extent") &&
                                   ContainsSubstring("rank 0 has 9, rank 1 has 5"));
    }
  }
}

TEST_CASE("explicit shardings with different maps are a disagreement", "[attention]") {
  auto const outcomes = outcomes_of(
      2,
      [](Call& call) {
        std::vector<std::vector<Index>> map{{0, 1, 2}, {3, 4, 5}};
        if (call.rank == 1) std::swap(map[0], map[1]);
        call.options.sharding = ExplicitMap{.queries = map, .keys = {}};
      },
      [](Rank) { return true; }, false);
  for (Outcome const& outcome : outcomes) {
    CHECK(outcome.type == "CommunicationError");
    CHECK_THAT(outcome.text, ContainsSubstring("different sharding: rank 0 has explicit #"));
  }
}

TEST_CASE("a refusal of one rank takes precedence over a disagreement", "[attention]") {
  auto const outcomes = outcomes_of(
      3,
      [](Call& call) {
        call.options.mask.causal = call.rank == 1;
        if (call.rank == 2) call.options.logit_softcap = -1;
      },
      [](Rank) { return true; }, true);
  for (Outcome const& outcome : outcomes) {
    CHECK(outcome.type == "UnsupportedError");
    CHECK_THAT(outcome.text, ContainsSubstring("rank 2: logit_softcap is -1"));
    CHECK(outcome.good_call_works);
  }
}

TEST_CASE("unset, negative and unbounded window sides agree", "[attention]") {
  auto const outcomes = outcomes_of(
      2, [](Call& call) { call.options.mask.window = {.left = -1, .right = unbounded}; },
      [](Rank rank) { return rank == 1; }, true);
  for (Outcome const& outcome : outcomes) CHECK(outcome.type == "nothing");
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
    auto const texts = run_ring(2, [&](SimulatedRing& ring) -> std::string {
      ReferenceBackend backend;
      RingAttention attention(ring, backend, {.schedule = Schedule::tiles, .checked = false});
      attention.forward(q, q, q, change.before);
      try {
        attention.forward(q, q, q, ring.rank() == 1 ? change.after : change.before);
      } catch (CommunicationError const& error) {
        return error.what();
      }
      return "no error";
    });
    for (std::string const& text : texts) {
      CAPTURE(change.field);
      CHECK_THAT(text, ContainsSubstring("different " + change.field));
    }
  }
}
