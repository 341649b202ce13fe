// Closed forms of bytes sent. W ranks, L = S / W rows per rank, Hq and Hk heads, dims dk and dv, e bytes per element
// and f of a gradient or of the running state.

#include <algorithm>
#include <vector>

#include "annulus/schedule/ring_plan.hpp"
#include "support/catch.hpp"
#include "support/least_plan.hpp"

using namespace annulus;
using annulus_test::check_least;

namespace {

constexpr Index mebibyte = Index{1} << 20;

struct Case {
  int ranks = 8;
  Index rows = 16384;
  Index query_heads = 32, kv_heads = 8, head_dim = 128, value_dim = 128;
  int element = 2, gradient = 4;
};

PlanRequest request_of(Case const& c, Pass pass, Rotation rotation, Mask const& mask = full()) {
  std::vector<Index> const lengths(static_cast<std::size_t>(c.ranks), c.rows);
  return {
      .pass = pass,
      .shape = {.query_heads = c.query_heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim, .value_dim = c.value_dim},
      .query_lengths = lengths,
      .key_lengths = lengths,
      .rules = {.mask = mask},
      .rotation = rotation,
      .element_bytes = c.element,
      .accumulator_bytes = c.gradient,
      .lse_bytes = c.gradient};
}

/// Bytes sent by a rank; checks the plan.
Index sent(PlanRequest const& request, Rank rank = 0) {
  RingPlan const plan(request);
  check_least(plan);
  return plan.bytes_sent(rank);
}

Index forward_keys(Case const& c) {
  return (c.ranks - 1) * c.rows * c.kv_heads * (c.head_dim + c.value_dim) * c.element;
}

Index backward_keys(Case const& c) {
  return forward_keys(c) + c.ranks * c.rows * c.kv_heads * (c.head_dim + c.value_dim) * c.gradient;
}

Index forward_queries(Case const& c) {
  return (c.ranks - 1) * c.rows * c.query_heads * c.head_dim * c.element +
         c.ranks * c.rows * c.query_heads * (c.value_dim + 2) * c.gradient;
}

Index backward_queries(Case const& c) {
  // lse, its remainder and delta travel with q and dout: 12 bytes in single precision.
  Index const row = (c.head_dim + c.value_dim) * c.element + 3 * c.gradient;
  return (c.ranks - 1) * c.rows * c.query_heads * row + c.ranks * c.rows * c.query_heads * c.head_dim * c.gradient;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (int ranks : {2, 3, 8, 16})
    for (auto [element, gradient] : {std::pair{2, 4}, {4, 4}, {8, 8}})
      for (auto [query_heads, kv_heads] : {std::pair<Index, Index>{1, 1}, {6, 2}, {32, 8}})
        for (auto [head_dim, value_dim] : {std::pair<Index, Index>{64, 64}, {192, 128}, {5, 1}})
          result.push_back({ranks, 48, query_heads, kv_heads, head_dim, value_dim, element, gradient});
  return result;
}

}  // namespace

TEST_CASE("every rank sends the bytes of the formulas", "[schedule]") {
  for (Case const& c : cases()) {
    CAPTURE(c.ranks, c.query_heads, c.kv_heads, c.head_dim, c.value_dim, c.element);
    auto const each_sends = [&](Pass pass, Rotation rotation, Index bytes) {
      RingPlan const plan(request_of(c, pass, rotation));
      for (Rank rank = 0; rank < c.ranks; ++rank) CHECK(plan.bytes_sent(rank) == bytes);
    };
    each_sends(Pass::forward, Rotation::keys, forward_keys(c));
    each_sends(Pass::backward, Rotation::keys, backward_keys(c));
    each_sends(Pass::forward, Rotation::queries, forward_queries(c));
    each_sends(Pass::backward, Rotation::queries, backward_queries(c));
  }
}

TEST_CASE("bytes are proportional to the batch, whatever the sharding", "[schedule]") {
  Case const c{.ranks = 4, .rows = 48};
  for (Sharding const& sharding : {Sharding(), Sharding(Zigzag{}), Sharding(Striped{}), Sharding(Striped{.block = 6})})
    for (Mask const& mask : {full(), causal()}) {
      PlanRequest request = request_of(c, Pass::backward, Rotation::keys, mask);
      request.sharding = sharding;
      request.shape.batch = 3;
      CHECK(sent(request) == 3 * backward_keys(c));
    }
}

TEST_CASE("gradients of sink logits are summed in W - 1 small shifts", "[schedule]") {
  Case const c{.ranks = 4, .rows = 48};
  PlanRequest request = request_of(c, Pass::backward, Rotation::keys);
  request.sinks = 3;
  CHECK(sent(request) == backward_keys(c) + 3 * c.query_heads * 3 * c.gradient);
  request.pass = Pass::forward;
  CHECK(sent(request) == forward_keys(c));
}

TEST_CASE("document ids travel with their rows, four bytes each", "[schedule]") {
  Case const c{.ranks = 4, .rows = 48};
  PlanRequest request = request_of(c, Pass::forward, Rotation::keys);
  request.document_ids = true;
  request.shape.batch = 2;
  CHECK(sent(request) == 2 * (forward_keys(c) + 3 * 48 * 4));
}

TEST_CASE("uneven shards: a rank sends every shard except its next neighbour's", "[schedule]") {
  std::vector<Index> const lengths{5, 0, 11, 2};
  PlanRequest request{.query_lengths = {1, 1, 1, 1}, .key_lengths = lengths, .rotation = Rotation::keys};
  RingPlan const plan(request);
  for (Rank rank = 0; rank < 4; ++rank)
    CHECK(plan.bytes_sent(rank) == (18 - lengths[static_cast<std::size_t>((rank + 1) % 4)]) * 8);
}

TEST_CASE("worked example: 131072 tokens on 8 ranks, 32 query heads, 8 kv heads, bfloat16", "[schedule]") {
  Case const grouped;
  CHECK(sent(request_of(grouped, Pass::forward, Rotation::keys)) == 448 * mebibyte);
  CHECK(sent(request_of(grouped, Pass::backward, Rotation::keys)) == 1472 * mebibyte);
  CHECK(sent(request_of(grouped, Pass::backward, Rotation::queries)) == 3882 * mebibyte);
  // The un-normalised state travels in single precision, not a rounded partial output.
  CHECK(sent(request_of(grouped, Pass::forward, Rotation::queries)) == 2976 * mebibyte);
  Case const full_heads{.kv_heads = 32};
  CHECK(sent(request_of(full_heads, Pass::forward, Rotation::keys)) == 1792 * mebibyte);
  CHECK(sent(request_of(full_heads, Pass::backward, Rotation::keys)) == 5888 * mebibyte);
  CHECK(sent(request_of(full_heads, Pass::backward, Rotation::queries)) == 3882 * mebibyte);
  Case const narrow_gradients{.gradient = 2};
  CHECK(sent(request_of(narrow_gradients, Pass::backward, Rotation::keys)) == 960 * mebibyte);
}

TEST_CASE("causal window of 4096 tokens: one row less than 16 MiB", "[schedule]") {
  Case const c;
  Index const row = c.kv_heads * (c.head_dim + c.value_dim) * c.element;
  Mask const mask = sliding_window(4095, 0);
  for (Rank rank = 0; rank < 7; ++rank)
    CHECK(sent(request_of(c, Pass::forward, Rotation::keys, mask), rank) == 16 * mebibyte - row);
  // No later rank sees the keys of the last one.
  CHECK(sent(request_of(c, Pass::forward, Rotation::keys, mask), 7) == 0);
  CHECK(RingPlan(request_of(c, Pass::forward, Rotation::keys, mask)).steps() == 2);
}

TEST_CASE("a causal window of w keys sends min(w - 1, (W - 1) L) rows, and as many rows of gradients", "[schedule]") {
  Case const c{.ranks = 5, .rows = 12, .query_heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 3};
  Index const width = c.kv_heads * (c.head_dim + c.value_dim);
  for (Index window = 1; window <= 70; ++window) {
    CAPTURE(window);
    Mask const mask = sliding_window(window - 1, 0);
    PlanRequest const forward = request_of(c, Pass::forward, Rotation::keys, mask);
    PlanRequest const backward = request_of(c, Pass::backward, Rotation::keys, mask);
    // The last rank but one sends the rows that its neighbour sees of all ranks before it.
    Index const rows = std::min(window - 1, (c.ranks - 1) * c.rows);
    CHECK(sent(forward, c.ranks - 2) == rows * width * c.element);
    for (Rank rank = 0; rank < c.ranks; ++rank) {
      CAPTURE(rank);
      // A rank sends rows of rank + 1 shards, including its own, and returns gradients for the `rank` shards before it.
      Index const passed = rank == c.ranks - 1 ? 0 : std::min(window - 1, (rank + 1) * c.rows);
      Index const returned = std::min(window - 1, rank * c.rows);
      CHECK(sent(forward, rank) == passed * width * c.element);
      CHECK(sent(backward, rank) == passed * width * c.element + returned * width * c.gradient);
    }
  }
}

TEST_CASE("peak buffers: two prefetched payloads (zero-copy: one) and three of results, on any number of ranks",
          "[schedule]") {
  Case const c{.rows = 64};
  Index const keys = c.rows * c.kv_heads * (c.head_dim + c.value_dim), queries = c.rows * c.query_heads * c.head_dim,
              values = c.rows * c.query_heads * c.value_dim, statistic = c.rows * c.query_heads * 4,
              state = values * 4 + 2 * statistic;
  struct Peak {
    Pass pass;
    Rotation rotation;
    Index prefetched, carried, resident;
  };
  for (Peak const& peak :
       {Peak{Pass::forward, Rotation::keys, keys * 2, 0, state},
        {Pass::backward, Rotation::keys, keys * 2, keys * 4, queries * 4 + statistic},
        {Pass::forward, Rotation::queries, queries * 2, state, 0},
        {Pass::backward, Rotation::queries, (queries + values) * 2 + 3 * statistic, queries * 4, keys * 4 + statistic}})
    for (int ranks : {1, 2, 3, 8, 16})
      for (bool zero_copy : {false, true}) {
        PlanRequest request = request_of({.ranks = ranks, .rows = c.rows}, peak.pass, peak.rotation);
        request.zero_copy = zero_copy;
        RingPlan const plan(request);
        CAPTURE(name_of(peak.pass), name_of(peak.rotation), ranks, zero_copy);
        // Zero-copy: the third buffer of results is still read by another rank while the other two are written.
        Index const exchanged =
            (zero_copy ? 1 : 2) * peak.prefetched + (zero_copy ? std::min(ranks, 3) : 3) * peak.carried;
        CHECK(plan.peak_buffer_bytes(0) == (ranks > 1 ? exchanged : peak.carried) + peak.resident);
        CHECK_NOTHROW(check_least(plan));
      }
}
