// Bytes and shifts sent, compared with the plan, whose closed forms schedule/plan_bytes_test.cpp proves; overlap of
// shifts and work. The backend suite compares memory with the plan.

#include <annulus/annulus.hpp>
#include <array>
#include <cstdint>
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
