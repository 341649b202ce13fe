#include "annulus/attention/options.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

constexpr Index largest = std::numeric_limits<Index>::max();

/// output and lse of all ranks, in rank order.
std::vector<float> results_of(
    int ranks, Options const& options, std::function<void(Call&)> const& change = [](Call&) {}) {
  auto const parts = run_ring(ranks, [&](SimulatedRing& ring) {
    Call call;
    make_good(call, ranks, ring.rank());
    call.options = options;
    change(call);
    ReferenceBackend backend;
    RingAttention attention(ring, backend, call.options);
    call.run(attention);
    std::vector<float> values(call.output.data(), call.output.data() + call.output.size());
    values.insert(values.end(), call.lse.data(), call.lse.data() + call.lse.size());
    return values;
  });
  std::vector<float> all;
  for (auto const& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace

TEST_CASE("default options are valid and change nothing", "[attention]") {
  Options const options;
  CHECK(options.mask == full());
  CHECK_FALSE(options.softmax_scale);
  CHECK(options.logit_softcap == 0);
  CHECK_FALSE(options.dropout.active());
  CHECK(options.sharding == Sharding(Contiguous{}));
  CHECK_FALSE(options.query_offset);
  CHECK(options.rotation == Rotation::automatic);
  CHECK_NOTHROW(validate_rules(rules_of(options)));
  CHECK_NOTHROW(detail::validate_range<float>(rules_of(options)));
}

TEST_CASE("the extents that are expected of a bias name 1 once", "[attention]") {
  Call call;
  AttentionShape const shape{.batch = 1, .query_heads = 4, .kv_heads = 4, .head_dim = 8, .value_dim = 8};
  CHECK(attempt([&] { detail::require_pairs("bias", call.varied(3, 1, 2, 5), shape, 2); }).text ==
        "bias has extents [3, 1, 2, 5]; expected [1, 4 or 1, 2, global_keys] = [batch|1, query_heads|1, local_queries, "
        "global_keys]");
}

TEST_CASE("option values at the limits are accepted, beyond them refused", "[attention]") {
  auto const accepted = [](AttentionRules const& rules) {
    return attempt([&] { validate_rules(rules); }).type == "nothing";
  };
  for (double scale : {0.0, -0.0, -3.0, 1e-300, 1e300}) CHECK(accepted({.softmax_scale = scale}));
  CHECK(accepted({.logit_softcap = 1e-300}));
  CHECK(accepted({.dropout = {.probability = std::nextafter(1.0, 0.0)}}));
  CHECK_FALSE(accepted({.dropout = {.probability = std::nextafter(0.0, -1.0)}}));
  CHECK(accepted({.mask = {.sink_tokens = largest}}));
  CHECK(accepted({.mask = {.chunk = largest}}));
  CHECK(accepted({.mask = {.window = {.left = largest, .right = -largest}}}));
  for (Index limit : {unbounded / 4, -unbounded / 4}) {
    CHECK_FALSE(accepted({.query_offset = limit}));
    CHECK(accepted({.query_offset = limit > 0 ? limit - 1 : limit + 1}));
  }
}

TEST_CASE("the range of scale and cap depends on the type of the sums", "[attention]") {
  double const beyond_float = 2.0 * std::numeric_limits<float>::max();
  check_thrown(attempt([&] { detail::validate_range<float>({.softmax_scale = -beyond_float}); }), "UnsupportedError",
               "softmax scale is -6.8");
  CHECK_NOTHROW(detail::validate_range<double>({.softmax_scale = -beyond_float}));
  CHECK_NOTHROW(detail::validate_range<float>({.softmax_scale = 1e-300}));  // rounds to 0, which is accepted
  // Both limits of the cap, for float and double.
  auto const check_ends = [](auto validate, double smallest, double largest) {
    for (double cap : {0.0, smallest, largest}) CHECK_NOTHROW(validate(cap));
    for (double cap : {std::nextafter(smallest, 0.0), std::nextafter(largest, 2 * largest)})
      check_thrown(attempt([&] { validate(cap); }), "UnsupportedError", "logit soft cap is ");
  };
  check_ends([](double cap) { detail::validate_range<float>({.logit_softcap = cap}); }, 0x1p-126, 0x1p101);
  check_ends([](double cap) { detail::validate_range<double>({.logit_softcap = cap}); }, 0x1p-1022, 0x1p968);
}

TEST_CASE("an unset scale is 1 / sqrt(head_dim)", "[attention]") {
  CHECK(results_of(2, {}) == results_of(2, {.softmax_scale = 1 / std::sqrt(double{Call::head_dim})}));
}

TEST_CASE("limits far beyond any position are no limits", "[attention]") {
  for (Sharding const& sharding : {Sharding(), Sharding(Striped{}), Sharding(Zigzag{})}) {
    auto const of_mask = [&](Mask const& mask) { return results_of(3, {.mask = mask, .sharding = sharding}); };
    CHECK(of_mask({.causal = true, .chunk = largest}) == of_mask(causal()));
    CHECK(of_mask({.causal = true, .window = {.left = 0, .right = {}}, .sink_tokens = largest}) == of_mask(causal()));
    CHECK(of_mask({.window = {.left = largest, .right = largest}}) == of_mask(full()));
  }
  CHECK(results_of(3, {.sharding = Striped{.block = largest}}, [](Call& call) {
          Index const length = call.rank == 0 ? Call::rows * call.ranks : 0;
          call.q = call.varied(Call::batch, length, Call::query_heads, Call::head_dim);
          call.give_keys(length, Call::kv_heads);
          call.output = call.tensor<float, 4>({Call::batch, length, Call::query_heads, Call::value_dim});
          call.lse = call.tensor<float, 3>({Call::batch, Call::query_heads, length});
        }).size() == 3 * Call::batch * Call::rows * Call::query_heads * (Call::value_dim + 1));
}

TEST_CASE("extents of 0 are valid", "[attention]") {
  for (Pass pass : {Pass::forward, Pass::backward})
    for (int empty = 0; empty < 4; ++empty) {
      auto const outcomes = outcomes_of(3, [&](Call& call) {
        Index const batch = empty == 0 ? 0 : Call::batch;
        Index const queries = empty == 1 ? 0 : Call::rows, keys = empty == 2 ? 0 : Call::rows;
        call.pass = pass;
        call.q = call.varied(batch, queries, Call::query_heads, Call::head_dim);
        call.k = call.varied(batch, keys, Call::kv_heads, Call::head_dim);
        call.v = call.varied(batch, keys, Call::kv_heads, Call::value_dim);
        call.dout = call.output = call.varied(batch, queries, Call::query_heads, Call::value_dim);
        call.lse = call.varied(batch, Call::query_heads, queries);
        call.operands.sinks = call.tensor<float, 2>({Call::query_heads, empty == 3 ? 0 : 1});
        call.gradients = {call.varied(call.q.extents()),
                          call.varied(call.k.extents()),
                          call.varied(call.v.extents()),
                          {},
                          call.varied(Call::query_heads, empty == 3 ? 0 : 1)};
      });
      for (Outcome const& outcome : outcomes) {
        CAPTURE(empty, outcome.text);
        CHECK(outcome.type == "nothing");
        CHECK(outcome.good_call_works);
      }
    }
}

TEST_CASE("an unset query offset is refused where it decides", "[attention]") {
  auto const attempted = [](Options const& options, Index queries, Index keys) {
    return attempt([&] { query_offset_of(rules_of(options), queries, keys); });
  };
  std::string const both = "set it to 0 to align queries and keys at the start, or to keys - queries = 3";
  for (Mask const& mask : {causal(), Mask{.window = {2, 0}}, Mask{.window = {-1, 1}}, Mask{.chunk = 4}}) {
    check_thrown(attempted({.mask = mask}, 5, 8), "UnsupportedError", both);
    CHECK(attempted({.mask = mask}, 5, 5).type == "nothing");
    CHECK(attempted({.mask = mask}, 0, 8).type == "nothing");
    CHECK(attempted({.mask = mask, .query_offset = 0}, 5, 8).type == "nothing");
    CHECK(attempted({.mask = mask, .query_offset = 3}, 5, 8).type == "nothing");
  }
  CHECK(attempted({.block_mask = BlockMask(9, 9, 1, {true})}, 5, 8).type == "UnsupportedError");
  CHECK(attempted({}, 5, 8).type == "nothing");
  CHECK(attempted({.mask = {.window = {-1, -1}}}, 5, 8).type == "nothing");
}
