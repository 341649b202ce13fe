// Schedule::both_directions: results as those of the ring, the same bits where the ring promises them, and bytes and
// buffers as planned for each direction.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/pass_log.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/reproducible_problem.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::Channel;
using annulus::Index;
using annulus::Pass;
using annulus::Rotation;
using annulus::Schedule;
using annulus::SimulatedRing;
using annulus::ZeroCopy;

namespace {

/// The random problem of a seed, with two or more kv heads, in both directions.
template <class T>
RingProblem problem_of(std::uint64_t seed) {
  RingProblem problem = random_ring_problem(seed);
  while (problem.dense.kv_heads < 2) problem = random_ring_problem(seed += 1'000'000);
  round_operands<T>(problem);
  problem.options.schedule = Schedule::both_directions;
  return problem;
}

template <class T, class Backend, class Predicate = annulus::EveryPair>
RingResult solve_both_ways(RingProblem const& problem, ZeroCopy zero_copy, int threads = 0, Predicate predicate = {}) {
  auto const run = [&](SimulatedRing& ring) {
    Backend backend{};
    if constexpr (requires { backend.threads; }) backend.threads = threads;
    return run_rank<T>(problem, ring, backend, predicate);
  };
  return assemble(problem, annulus::run_ring(problem.ranks, run, {.zero_copy = zero_copy}));
}

template <class T, class Backend>
void sweep_both_directions(std::uint64_t first_seed, std::uint64_t count, Bounds bounds) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RingProblem const problem = problem_of<T>(seed);
    INFO(problem.text);
    RingResult const copied = solve_both_ways<T, Backend>(problem, ZeroCopy::never, 1);
    CHECK(judge(problem, copied, bounds).complaint == "");
    CHECK(same_bits(copied, solve_both_ways<T, Backend>(problem, ZeroCopy::automatic, 2)));
  }
}

std::string refusal_text(RingProblem const& problem) {
  try {
    solve_both_ways<double, annulus::ReferenceBackend>(problem, ZeroCopy::automatic);
  } catch (annulus::UnsupportedError const& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("both directions: random problems agree with the oracle, the same bits on every exchange", "[lanes]") {
  sweep_both_directions<double, annulus::ReferenceBackend>(1'200'000, 150, double_bounds);
  sweep_both_directions<float, annulus::CpuBackend>(1'210'000, 150, float_bounds);
}

TEST_CASE("both directions: a predicate sees the numbers of all heads", "[lanes]") {
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
    RingProblem problem = small_ring_problem({.batch = 2, .query_heads = 6, .kv_heads = 3, .query_length = 21}, 3,
                                             annulus::Striped{}, rotation);
    problem.dense.predicate = [](auto, auto head, auto query, auto key) { return (query + key + head) % 5 != 0; };
    problem.options.schedule = Schedule::both_directions;
    settle(problem);
    RingResult const result =
        solve_both_ways<double, annulus::ReferenceBackend>(problem, ZeroCopy::automatic, 0, problem.dense.predicate);
    CHECK(judge(problem, result, double_bounds).complaint == "");
    round_operands<float>(problem);
    RingResult const fast =
        solve_both_ways<float, annulus::CpuBackend>(problem, ZeroCopy::automatic, 0, problem.dense.predicate);
    CHECK(judge(problem, fast, float_bounds).complaint == "");
  }
}

TEST_CASE("both directions: the bits of one direction and of one rank with reproducible", "[lanes][reproducible]") {
  for (std::uint64_t seed = 1'220'000; seed < 1'220'024; ++seed) {
    RingProblem problem = problem_of<float>(seed);
    if (problem.dense.bias && problem.dense.bias->heads == 1) problem.dense.bias.reset();
    RingProblem one = reproducible_on(problem, 1, Deal::contiguous, 4, Rotation::keys, seed);
    one.options.schedule = Schedule::ring;
    RingResult const expected = solve_both_ways<float, annulus::CpuBackend>(one, ZeroCopy::automatic);
    for (int ranks : {2, 3, 8})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        RingProblem const both = reproducible_on(problem, ranks, static_cast<Deal>(seed % 4), 4, rotation, seed);
        INFO(both.text);
        REQUIRE(both.options.schedule == Schedule::both_directions);
        CHECK(same_bits(solve_both_ways<float, annulus::CpuBackend>(both, ZeroCopy::never), expected));
      }
  }
}

TEST_CASE("both directions: each rank sends the planned bytes each way, together those of the ring", "[lanes][bytes]") {
  for (std::uint64_t seed = 1'230'000; seed < 1'230'060; ++seed) {
    RingProblem problem = problem_of<float>(seed);
    INFO(problem.text);
    auto const logs = record_passes<float>(problem);
    for (Pass pass : {Pass::forward, Pass::backward}) {
      auto const plan = plan_of<float>(problem, pass);
      REQUIRE(plan.lanes().size() == 2);
      RingProblem one_way = problem;
      one_way.options.schedule = Schedule::ring;
      auto const ring = plan_of<float>(one_way, pass);
      // Document ids travel with both halves, and rows that later steps do not need are dropped in another order.
      if (!problem.dense.query_segments && !plan.carried_direct())
        CHECK(plan.total_bytes_sent() == ring.total_bytes_sent());
      CHECK(plan.rotation() == ring.rotation());
      for (int rank = 0; rank < problem.ranks; ++rank) {
        PassLog const& log = logs[static_cast<std::size_t>(rank)][pass == Pass::forward ? 0 : 1];
        Index bytes = 0;
        for (Channel channel : {Channel::prefetched, Channel::carried, Channel::reduction}) bytes += log.bytes(channel);
        CHECK(bytes == plan.bytes_sent(rank));
        // Shifts of the lanes take turns on a channel.
        auto const prefetched = log.shifts(Channel::prefetched), carried = log.shifts(Channel::carried);
        std::size_t shift = 0, result = 0;
        for (int step = 0; step < plan.steps(); ++step)
          for (annulus::RingPlan const& lane : plan.lanes()) {
            if (step + 1 < plan.steps()) {
              REQUIRE(shift < prefetched.size());
              CHECK(prefetched[shift].hop == lane.prefetched_hop(step));
              CHECK(static_cast<Index>(prefetched[shift++].bytes_sent) == lane.step(rank, step).prefetched_bytes);
            }
            if (lane.carried_layout().empty() || lane.carried_hop(step) == 0) continue;
            REQUIRE(result < carried.size());
            CHECK(carried[result].hop == lane.carried_hop(step));
            CHECK(static_cast<Index>(carried[result++].bytes_sent) == lane.step(rank, step).carried_bytes);
          }
        CHECK(shift == prefetched.size());
        CHECK(result == carried.size());
      }
    }
  }
}

TEST_CASE("both directions: without a mask each direction carries half of the bytes, over one link", "[lanes][bytes]") {
  for (Rotation rotation : {Rotation::keys, Rotation::queries})
    for (int ranks : {2, 3, 8}) {
      RingProblem problem =
          small_ring_problem({.query_heads = 8, .kv_heads = 4, .query_length = 8 * ranks, .head_dim = 4}, ranks,
                             annulus::Contiguous{}, rotation);
      problem.options.schedule = Schedule::both_directions;
      settle(problem);
      for (Pass pass : {Pass::forward, Pass::backward}) {
        auto const plan = plan_of<float>(problem, pass);
        auto const &forwards = plan.lanes()[0], &backwards = plan.lanes()[1];
        for (int rank = 0; rank < ranks; ++rank) {
          CHECK(2 * forwards.bytes_sent(rank) == plan.bytes_sent(rank));
          CHECK(2 * backwards.bytes_sent(rank) == plan.bytes_sent(rank));
          for (int step = 1; step < plan.steps(); ++step) {
            CHECK(forwards.owner(rank, step) == (rank + ranks - step) % ranks);
            CHECK(backwards.owner(rank, step) == (rank + step) % ranks);
            CHECK(forwards.prefetched_hop(step - 1) == 1);
            CHECK(backwards.prefetched_hop(step - 1) == ranks - 1);
          }
        }
      }
    }
}

TEST_CASE("both directions: buffers have the bytes of the plan", "[lanes][memory]") {
  RingProblem problem =
      small_ring_problem({.query_heads = 6, .kv_heads = 3, .query_length = 40, .head_dim = 8, .value_dim = 3}, 4);
  problem.options.checked = false;
  problem.options.schedule = Schedule::both_directions;
  give_sinks(problem, 2);
  settle(problem);
  for (Rotation rotation : {Rotation::keys, Rotation::queries})
    for (bool zero_copy : {true, false}) {
      problem.options.rotation = rotation;
      auto const results = annulus::run_ring(problem.ranks,
                                             [&](SimulatedRing& ring) {
                                               annulus::ReferenceBackend backend;
                                               return run_rank<double>(problem, ring, backend);
                                             },
                                             {.zero_copy = zero_copy ? ZeroCopy::automatic : ZeroCopy::never});
      auto const forward = plan_of<double>(problem, Pass::forward, false, zero_copy);
      auto const backward = plan_of<double>(problem, Pass::backward, false, zero_copy);
      for (int rank = 0; rank < problem.ranks; ++rank) {
        CAPTURE(rank, zero_copy, rotation == Rotation::keys);
        CHECK(results[static_cast<std::size_t>(rank)].forward_buffers == forward.peak_buffer_bytes(rank));
        CHECK(results[static_cast<std::size_t>(rank)].backward_buffers == backward.peak_buffer_bytes(rank));
      }
    }
}

TEST_CASE("both directions: what cannot be split is refused with the reason", "[lanes]") {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 1, .query_length = 12}, 3);
  settle(problem);
  CHECK(refusal_text(problem) == "");
  problem.options.schedule = Schedule::both_directions;
  CHECK(refusal_text(problem) ==
        "schedule both_directions with 1 kv heads: half of them travel each way; accepted: 2 or more, or "
        "Schedule::ring");
  problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 12}, 3);
  problem.options.schedule = Schedule::both_directions;
  give_bias(problem, 1, 1);
  settle(problem);
  CHECK(refusal_text(problem) == "");
  problem.options.reproducible = true;
  problem.options.reproducible_leaf = 4;
  CHECK_THAT(refusal_text(problem), Catch::Matchers::StartsWith("schedule both_directions and reproducible with the "
                                                                "gradient of a bias that all heads share"));
}
