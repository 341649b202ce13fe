// Bytes and shifts sent, compared with the plan and with closed formulas; peak memory; overlap of shifts and work.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include "support/catch.hpp"
#include "support/pass_log.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/reproducible_problem.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::Channel;
using annulus::Index;
using annulus::Pass;
using annulus::Rotation;

namespace {

constexpr std::array both_passes{Pass::forward, Pass::backward};
constexpr std::array both_rotations{Rotation::keys, Rotation::queries};

PassLog const& log_of(std::vector<std::array<PassLog, 2>> const& logs, int rank, Pass pass) {
  return logs[static_cast<std::size_t>(rank)][pass == Pass::forward ? 0 : 1];
}

void check_against_plan(PassLog const& log, annulus::RingPlan const& plan, int rank) {
  auto const prefetched = log.shifts(Channel::prefetched), carried = log.shifts(Channel::carried);
  REQUIRE(static_cast<int>(prefetched.size()) == plan.steps() - 1);
  for (int step = 0; step + 1 < plan.steps(); ++step) {
    CHECK(static_cast<Index>(prefetched[static_cast<std::size_t>(step)].bytes_sent) ==
          plan.step(rank, step).prefetched_bytes);
    CHECK(prefetched[static_cast<std::size_t>(step)].hop == plan.transport().prefetched_hop(step));
  }
  std::size_t shift = 0;
  for (int step = 0; step < plan.steps(); ++step) {
    if (plan.transport().carried.empty() || plan.transport().carried_hop(step) == 0) continue;
    REQUIRE(shift < carried.size());
    CHECK(static_cast<Index>(carried[shift].bytes_sent) == plan.step(rank, step).carried_bytes);
    CHECK(carried[shift++].hop == plan.transport().carried_hop(step));
  }
  CHECK(shift == carried.size());
  CHECK(log.bytes(Channel::prefetched) + log.bytes(Channel::carried) + log.bytes(Channel::reduction) ==
        plan.bytes_sent(rank));
  for (Channel channel : {Channel::prefetched, Channel::carried, Channel::reduction})
    CHECK(log.of(RecordedEvent::finished, channel).size() == log.shifts(channel).size());
}

template <class T>
void check_random_problems(std::uint64_t first_seed, std::uint64_t count) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<T>(problem);
    INFO(problem.text);
    auto const logs = record_passes<T>(problem);
    for (Pass pass : both_passes) {
      auto const plan = plan_of<T>(problem, pass);
      for (int rank = 0; rank < problem.ranks; ++rank) check_against_plan(log_of(logs, rank, pass), plan, rank);
    }
  }
}

/// Payload bytes of one row of all heads and batch items. e: bytes of an element, f: bytes of an exchanged gradient or
/// running state; lse, its remainder and delta are 4 bytes each.
struct RowBytes {
  Index prefetched, carried;
};
RowBytes row_bytes(OracleProblem const& d, Pass pass, Rotation rotation, Index e, Index f) {
  Index const key_row = d.batch * d.kv_heads * (d.head_dim + d.value_dim);
  if (rotation == Rotation::keys) return {key_row * e, pass == Pass::forward ? 0 : key_row * f};
  Index const heads = d.batch * d.query_heads;
  if (pass == Pass::forward) return {heads * d.head_dim * e, heads * (d.value_dim + 2) * f};
  return {heads * ((d.head_dim + d.value_dim) * e + 12), heads * d.head_dim * f};
}

/// Without a mask every row of the rotating side visits every rank: a rank sends all rows except those that its
/// successor owns, and sends the results of all rows once.
template <class T>
void check_unmasked(RingProblem const& problem) {
  INFO(problem.text << ", elements of " << sizeof(T) << " bytes");
  Rotation const rotation = problem.options.rotation;
  auto const& lengths = rotation == Rotation::keys ? problem.key_lengths : problem.query_lengths;
  Index const all = std::accumulate(lengths.begin(), lengths.end(), Index{0});
  int const ranks = problem.ranks;
  auto const logs = record_passes<T>(problem);
  for (Pass pass : both_passes) {
    RowBytes const row = row_bytes(problem.dense, pass, rotation, sizeof(T), 4);
    bool const carries = ranks > 1 && row.carried > 0;
    for (int rank = 0; rank < ranks; ++rank) {
      PassLog const& log = log_of(logs, rank, pass);
      Index const of_successor = lengths[static_cast<std::size_t>((rank + 1) % ranks)];
      CHECK(log.bytes(Channel::prefetched) == (ranks > 1 ? all - of_successor : 0) * row.prefetched);
      CHECK(log.bytes(Channel::carried) == (carries ? all : 0) * row.carried);
      CHECK(static_cast<int>(log.shifts(Channel::prefetched).size()) == ranks - 1);
      CHECK(static_cast<int>(log.shifts(Channel::carried).size()) == (carries ? ranks : 0));
      CHECK(log.shifts(Channel::reduction).empty());
      for (Channel channel : {Channel::prefetched, Channel::carried})
        for (auto const& shift : log.shifts(channel)) CHECK(shift.hop == 1);
      // Equal shards, by the usual formulas: (W-1) S and W S rows.
      if (all == ranks * of_successor &&
          std::all_of(lengths.begin(), lengths.end(), [&](Index l) { return l == of_successor; })) {
        CHECK(log.bytes(Channel::prefetched) == (ranks - 1) * of_successor * row.prefetched);
        CHECK(log.bytes(Channel::carried) == (carries ? ranks * of_successor : 0) * row.carried);
      }
      check_against_plan(log, plan_of<T>(problem, pass), rank);
    }
  }
}

RingProblem unmasked(int ranks, annulus::Sharding const& sharding, Rotation rotation, std::int64_t queries,
                     std::int64_t keys) {
  RingProblem problem = small_ring_problem({.batch = 2,
                                            .query_heads = 6,
                                            .kv_heads = 2,
                                            .query_length = queries,
                                            .key_length = keys,
                                            .head_dim = 5,
                                            .value_dim = 3},
                                           ranks, sharding, rotation);
  settle(problem);
  return problem;
}

}  // namespace

TEST_CASE("bytes: every shift of reproducible passes follows the plan", "[bytes][reproducible]") {
  for (std::uint64_t seed = 740'000; seed < 740'012; ++seed) {
    int const ranks = static_cast<int>(2 + seed % 7);
    RingProblem problem = reproducible_on(random_ring_problem(seed), ranks, static_cast<Deal>(seed % 4), 4,
                                          seed % 3 == 0 ? Rotation::keys : Rotation::queries, seed);
    round_operands<float>(problem);
    INFO(problem.text);
    auto const logs = record_passes<float>(problem);
    for (Pass pass : both_passes) {
      auto const plan = plan_of<float>(problem, pass);
      for (int rank = 0; rank < ranks; ++rank) check_against_plan(log_of(logs, rank, pass), plan, rank);
    }
  }
}

TEST_CASE("bytes: every shift of random problems follows the plan", "[bytes]") {
  check_random_problems<float>(610'000, 150);
  check_random_problems<Eigen::bfloat16>(620'000, 50);
  check_random_problems<double>(630'000, 50);
}

TEST_CASE("bytes: without a mask, every sharding sends W-1 and W shards", "[bytes]") {
  for (Rotation rotation : both_rotations)
    for (int ranks : {1, 2, 3, 5, 8})
      for (std::int64_t queries : {40, 43})
        for (auto const& sharding : every_sharding(ranks, queries, 40)) {
          check_unmasked<float>(unmasked(ranks, sharding, rotation, queries, 40));
          check_unmasked<Eigen::bfloat16>(unmasked(ranks, sharding, rotation, queries, 40));
        }
}

TEST_CASE("bytes: uneven and empty shards", "[bytes]") {
  for (Rotation rotation : both_rotations) {
    RingProblem problem = unmasked(4, annulus::Contiguous{}, rotation, 24, 24);
    problem.query_lengths = {1, 0, 20, 3};
    problem.key_lengths = {0, 23, 0, 1};
    check_unmasked<float>(problem);
    check_unmasked<Eigen::bfloat16>(problem);
  }
}

TEST_CASE("bytes: document ids travel with their rows, gradients of sink logits W-1 times", "[bytes]") {
  for (Rotation rotation : both_rotations)
    for (int ranks : {1, 4}) {
      RingProblem const plain = unmasked(ranks, annulus::Zigzag{}, rotation, 32, 32);
      RingProblem more = plain;
      give_documents(more, std::vector<int>(static_cast<std::size_t>(more.dense.batch * 32), 1));
      give_sinks(more, 3);
      auto const without = record_passes<float>(plain), with = record_passes<float>(more);
      for (int rank = 0; rank < ranks; ++rank)
        for (Pass pass : both_passes) {
          PassLog const &fewer = log_of(without, rank, pass), &log = log_of(with, rank, pass);
          Index const ids = (ranks - 1) * (32 / ranks) * more.dense.batch * 4;
          CHECK(log.bytes(Channel::prefetched) == fewer.bytes(Channel::prefetched) + ids);
          CHECK(log.bytes(Channel::carried) == fewer.bytes(Channel::carried));
          Index const sinks = pass == Pass::forward ? 0 : (ranks - 1) * more.dense.query_heads * 3 * 4;
          CHECK(log.bytes(Channel::reduction) == sinks);
        }
    }
}

TEST_CASE("bytes: a causal window of w keys over contiguous shards sends the w-1 rows before each shard", "[bytes]") {
  constexpr int ranks = 6;
  constexpr Index shard = 8;
  for (Index w : {1, 2, 7, 8, 9, 10, 17, 20, 40, 41, 48, 60}) {
    RingProblem problem = small_ring_problem(
        {.query_heads = 4, .kv_heads = 2, .query_length = ranks * shard, .head_dim = 4, .value_dim = 6}, ranks,
        annulus::Contiguous{}, Rotation::keys);
    problem.dense.causal = true;
    problem.dense.window_left = w - 1;
    settle(problem);
    auto const logs = record_passes<Eigen::bfloat16>(problem);
    Index const key_row = 2 * (4 + 6);
    // Shard r + 1 is preceded by r + 1 shards; those of their last rows that are within reach pass through rank r. The
    // successor of the last rank sees none of its keys.
    auto const rows_through = [&](int rank) { return rank == ranks - 1 ? 0 : std::min(w - 1, (rank + 1) * shard); };
    // Gradients return directly to their owner: a rank sends those of the rows that its own queries see.
    auto const rows_returned = [&](int rank) { return std::min(w - 1, rank * shard); };
    int const steps = static_cast<int>(std::min<Index>(ranks, 1 + annulus::detail::ceil_divide(w - 1, shard)));
    for (int rank = 0; rank < ranks; ++rank) {
      INFO("window of " << w << " keys, rank " << rank);
      PassLog const &forward = log_of(logs, rank, Pass::forward), &backward = log_of(logs, rank, Pass::backward);
      CHECK(forward.bytes(Channel::prefetched) == rows_through(rank) * key_row * 2);
      CHECK(backward.bytes(Channel::prefetched) == rows_through(rank) * key_row * 2);
      CHECK(forward.bytes(Channel::carried) == 0);
      CHECK(backward.bytes(Channel::carried) == rows_returned(rank) * key_row * 4);
      CHECK(static_cast<int>(forward.shifts(Channel::prefetched).size()) == steps - 1);
      CHECK(static_cast<int>(backward.shifts(Channel::carried).size()) == steps - 1);
    }
    // Formula for a rank in the middle of a long ring.
    CHECK(log_of(logs, ranks - 2, Pass::forward).bytes(Channel::prefetched) ==
          std::min(w - 1, (ranks - 1) * shard) * key_row * 2);
  }
}

TEST_CASE("memory: two prefetched buffers (zero-copy: one) and three carried ones, on any number of ranks",
          "[bytes][memory]") {
  constexpr Index shard = 16, query_heads = 4, kv_heads = 2, head_dim = 8, value_dim = 16, bytes = 4;
  // Parts of these sizes fill whole cache lines, so that there is no padding between them.
  constexpr Index keys = shard * kv_heads * (head_dim + value_dim) * bytes,
                  queries = shard * query_heads * head_dim * bytes;
  constexpr Index values = shard * query_heads * value_dim * bytes, statistic = shard * query_heads * bytes;
  constexpr Index state = values + 2 * statistic, delta = statistic;
  struct Peak {
    Index prefetched, carried, resident;
    Index on(int ranks, bool zero_copy) const {
      if (ranks == 1) return carried + resident;
      // Zero-copy: the third result buffer is still read by another rank while the other two are written.
      return (zero_copy ? 1 : 2) * prefetched + (zero_copy ? std::min(ranks, 3) : 3) * carried + resident;
    }
  };
  struct Peaks {
    Rotation rotation;
    Peak forward, backward;
  };
  for (Peaks const& peaks :
       {Peaks{Rotation::keys, {keys, 0, state}, {keys, keys, queries + delta}},
        Peaks{Rotation::queries, {queries, state, 0}, {queries + values + 3 * statistic, queries, keys + delta}}})
    for (int ranks : {1, 2, 3, 5, 8})
      for (bool zero_copy : {false, true}) {
        RingProblem problem = small_ring_problem({.query_heads = query_heads,
                                                  .kv_heads = kv_heads,
                                                  .query_length = ranks * shard,
                                                  .head_dim = head_dim,
                                                  .value_dim = value_dim},
                                                 ranks, annulus::Striped{}, peaks.rotation);
        problem.options.checked = false;
        settle(problem);
        INFO(problem.text << (zero_copy ? ", zero-copy" : ""));
        auto const run = [&](annulus::SimulatedRing& ring) {
          annulus::ReferenceBackend backend;
          return run_rank<float>(problem, ring, backend);
        };
        auto const results = annulus::run_ring(
            ranks, run, {.zero_copy = zero_copy ? annulus::ZeroCopy::always : annulus::ZeroCopy::never});
        for (RingResult const& rank : results) {
          CHECK(rank.forward_buffers == peaks.forward.on(ranks, zero_copy));
          CHECK(rank.backward_buffers == peaks.backward.on(ranks, zero_copy));
        }
      }
}

TEST_CASE("overlap: the next payload is sent before the work of a step and awaited after it", "[bytes][overlap]") {
  for (Rotation rotation : both_rotations)
    for (int ranks : {2, 3, 6})
      for (bool local : {false, true}) {
        RingProblem problem = unmasked(ranks, annulus::Contiguous{}, rotation, 24, 24);
        if (local) problem.dense.window_left = problem.dense.window_right = 9;
        settle(problem);
        auto const logs = record_passes<float>(problem);
        for (int rank = 0; rank < ranks; ++rank)
          for (Pass pass : both_passes) {
            INFO(problem.text << (local ? ", window" : "") << ", rank " << rank << ", "
                              << (pass == Pass::forward ? "forward" : "backward"));
            PassLog const& log = log_of(logs, rank, pass);
            auto const work = log.places_of_mark(pass == Pass::forward ? "fold" : "add_gradients");
            auto const plan = plan_of<float>(problem, pass);
            REQUIRE(static_cast<int>(work.size()) == plan.steps());

            auto const sent = log.places_of(RecordedEvent::started, Channel::prefetched);
            auto const received = log.places_of(RecordedEvent::finished, Channel::prefetched);
            REQUIRE(sent.size() + 1 == work.size());
            REQUIRE(received.size() == sent.size());
            for (std::size_t i = 0; i < sent.size(); ++i) {
              CHECK(sent[i] < work[i]);
              CHECK(work[i] < received[i]);
              CHECK(received[i] < work[i + 1]);
              if (i > 0) CHECK(received[i - 1] < sent[i]);
            }

            auto const departs = log.places_of(RecordedEvent::started, Channel::carried);
            auto const returns = log.places_of(RecordedEvent::finished, Channel::carried);
            REQUIRE(returns.size() == departs.size());
            bool const carries = pass == Pass::backward || rotation == Rotation::queries;
            CHECK(departs.empty() != carries);
            // With direct return to the owner, the results of the first step need no shift.
            std::size_t const first = work.size() - departs.size();
            CHECK(first == (!carries ? work.size() : local ? 1u : 0u));
            for (std::size_t i = 0; i < departs.size(); ++i) {
              std::size_t const step = first + i;
              CHECK(work[step] < departs[i]);
              // Pending during the work of the next step.
              if (step + 1 < work.size()) {
                CHECK(departs[i] < work[step + 1]);
                CHECK(work[step + 1] < returns[i]);
              }
            }
            // In host memory a call returns when its work is done: nobody waits for the backend.
            CHECK(log.places_of_mark("synchronize").empty());
          }
      }
}
