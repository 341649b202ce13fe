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
#include "support/refusal.hpp"
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

/// True if the halves are rows, of all heads.
bool halves_rows(RingProblem const& problem) { return problem.dense.kv_heads % 2 == 1; }

/// The random problem of a seed in both directions: those of even seeds halve the heads, the other ones the rows.
template <class T>
RingProblem problem_of(std::uint64_t seed) {
  std::uint64_t const rows = seed % 2;
  RingProblem problem = random_ring_problem(seed);
  while (halves_rows(problem) != (rows == 1)) problem = random_ring_problem(seed += 1'000'000);
  round_operands<T>(problem);
  problem.options.schedule = Schedule::both_directions;
  return problem;
}

template <class T, class Backend, class Predicate = annulus::EveryPair>
RingResult solve_both_ways(RingProblem const& problem, ZeroCopy zero_copy, int threads = 0, Predicate predicate = {}) {
  Backend backend{};
  if constexpr (requires { backend.threads; }) backend.threads = threads;
  return whole_result<T>(problem, backend, {.zero_copy = zero_copy}, predicate);
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

/// Reproducible problems in both directions, against one rank. Passes of CpuBackend may be compiled ahead, in
/// annulus::cpu; those of ReferenceBackend are compiled here, from the headers.
template <class Backend>
void check_bits_of_one_rank(std::uint64_t first_seed) {
  for (std::uint64_t seed = first_seed; seed < first_seed + 24; ++seed) {
    RingProblem problem = problem_of<float>(seed);
    if (problem.dense.bias && problem.dense.bias->heads == 1 && !halves_rows(problem)) problem.dense.bias.reset();
    RingProblem one = reproducible_on(problem, 1, Deal::contiguous, 4, Rotation::keys, seed);
    one.options.schedule = Schedule::ring;
    RingResult const expected = solve_both_ways<float, Backend>(one, ZeroCopy::automatic);
    for (int ranks : {2, 3, 8})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        RingProblem const both = reproducible_on(problem, ranks, static_cast<Deal>(seed % 4), 4, rotation, seed);
        INFO(both.text);
        REQUIRE(both.options.schedule == Schedule::both_directions);
        CHECK(same_bits(solve_both_ways<float, Backend>(both, ZeroCopy::never), expected));
      }
  }
}

auto solved(RingProblem const& problem) {
  return [problem] { solve_both_ways<double, annulus::ReferenceBackend>(problem, ZeroCopy::automatic); };
}

}  // namespace

TEST_CASE("both directions: random problems agree with the oracle, the same bits on every exchange", "[lanes]") {
  sweep_both_directions<double, annulus::ReferenceBackend>(1'200'000, 150, double_bounds);
  sweep_both_directions<float, annulus::CpuBackend>(1'210'000, 150, float_bounds);
}

TEST_CASE("both directions: a predicate sees the numbers of all heads", "[lanes]") {
  for (auto const& [rotation, kv_heads] : {std::pair{Rotation::keys, 4}, {Rotation::queries, 4}, {Rotation::keys, 1}}) {
    RingProblem problem = small_ring_problem({.batch = 2, .query_heads = 8, .kv_heads = kv_heads, .query_length = 21},
                                             3, annulus::Striped{}, rotation);
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
  check_bits_of_one_rank<annulus::CpuBackend>(1'220'000);
  check_bits_of_one_rank<annulus::ReferenceBackend>(1'225'000);
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
      // Document ids travel with both halves of the heads, and rows that later steps do not need are dropped in another
      // order.
      if ((halves_rows(problem) || !problem.dense.query_documents) && !plan.transport().direct)
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
              CHECK(prefetched[shift].hop == lane.transport().prefetched_hop(step));
              CHECK(static_cast<Index>(prefetched[shift++].bytes_sent) == lane.step(rank, step).prefetched_bytes);
            }
            if (lane.transport().carried.empty() || lane.transport().carried_hop(step) == 0) continue;
            REQUIRE(result < carried.size());
            CHECK(carried[result].hop == lane.transport().carried_hop(step));
            CHECK(static_cast<Index>(carried[result++].bytes_sent) == lane.step(rank, step).carried_bytes);
          }
        CHECK(shift == prefetched.size());
        CHECK(result == carried.size());
      }
    }
  }
}

TEST_CASE("both directions: without a mask each direction carries half of the bytes, over one link", "[lanes][bytes]") {
  for (auto const& [rotation, kv_heads] :
       {std::pair{Rotation::keys, 4}, {Rotation::queries, 4}, {Rotation::keys, 1}, {Rotation::queries, 1}})
    for (int ranks : {2, 3, 8}) {
      RingProblem problem =
          small_ring_problem({.query_heads = 8, .kv_heads = kv_heads, .query_length = 8 * ranks, .head_dim = 4}, ranks,
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
            CHECK(forwards.transport().prefetched_hop(step - 1) == 1);
            CHECK(backwards.transport().prefetched_hop(step - 1) == ranks - 1);
          }
        }
      }
    }
}

TEST_CASE("both directions: buffers have the bytes of the plan", "[lanes][memory]") {
  std::int64_t const kv_heads = GENERATE(2, 1);
  RingProblem problem = small_ring_problem(
      {.query_heads = 6, .kv_heads = kv_heads, .query_length = 41, .head_dim = 8, .value_dim = 3}, 4);
  bool const reproducible = GENERATE(false, true);
  if (reproducible) problem = reproducible_on(problem, 4, Deal::shuffled, 4, Rotation::keys, 7);
  problem.options.wire = GENERATE(annulus::Wire::as_stored, annulus::Wire::bfloat16);
  problem.options.checked = false;
  problem.options.schedule = Schedule::both_directions;
  give_sinks(problem, 2);
  settle(problem);
  for (Rotation rotation : {Rotation::keys, Rotation::queries})
    for (bool zero_copy : {true, false}) {
      problem.options.rotation = rotation;
      auto const results = results_of_ranks<double>(problem, annulus::ReferenceBackend{},
                                                    {.zero_copy = zero_copy ? ZeroCopy::automatic : ZeroCopy::never});
      auto const forward = plan_of<double>(problem, Pass::forward, false, zero_copy);
      auto const backward = plan_of<double>(problem, Pass::backward, false, zero_copy);
      for (int rank = 0; rank < problem.ranks; ++rank) {
        CAPTURE(rank, zero_copy, rotation == Rotation::keys, kv_heads, reproducible);
        CHECK(results[static_cast<std::size_t>(rank)].forward_buffers == forward.peak_buffer_bytes(rank));
        CHECK(results[static_cast<std::size_t>(rank)].backward_buffers == backward.peak_buffer_bytes(rank));
      }
    }
}

TEST_CASE("both directions: halves of the rows of shards of every size, also without rows", "[lanes]") {
  struct Rule {
    annulus::Mask mask;
    bool documents;
  };
  Rule const rules[] = {{annulus::full(), false},
                        {annulus::causal(), false},
                        {annulus::sliding_window(5, 0), false},
                        {{.causal = true, .sink_tokens = 3, .chunk = 9}, true}};
  for (int ranks : {1, 2, 3, 5})
    for (int length : {1, 2, 13, 63, 64, 65})
      for (Rotation rotation : {Rotation::keys, Rotation::queries})
        for (annulus::Sharding const& sharding : every_sharding(ranks, length, length))
          for (Rule const& rule : rules) {
            if (length < 2 * ranks && sharding.name() == "zigzag") continue;
            RingProblem problem = small_ring_problem(
                {.query_heads = 3, .query_length = length, .head_dim = 3, .value_dim = 2}, ranks, sharding, rotation);
            problem.dense.causal = rule.mask.causal;
            if (rule.mask.window.bounded()) problem.dense.window_left = 5, problem.dense.window_right = 0;
            problem.dense.sink_tokens = rule.mask.sink_tokens;
            problem.dense.chunk = rule.mask.chunk;
            if (rule.documents) give_documents(problem, documents_of_lengths(1, {length / 3, length - length / 3}));
            give_sinks(problem, 1);
            problem.options.schedule = Schedule::both_directions;
            settle(problem);
            INFO(problem.text);
            RingResult const copied = solve_both_ways<double, annulus::ReferenceBackend>(problem, ZeroCopy::never);
            CHECK(judge(problem, copied, double_bounds).complaint == "");
            CHECK(same_bits(copied, solve_both_ways<double, annulus::ReferenceBackend>(problem, ZeroCopy::automatic)));
          }
}

TEST_CASE("both directions: halves of the rows of one kv head meet all owners, in opposite order", "[lanes]") {
  RingProblem problem =
      small_ring_problem({.query_heads = 4, .query_length = 31}, 4, annulus::Contiguous{}, Rotation::keys);
  problem.options.schedule = Schedule::both_directions;
  settle(problem);
  auto const plan = plan_of<float>(problem, Pass::backward);
  auto const &forwards = plan.lanes()[0], &backwards = plan.lanes()[1];
  for (int rank = 0; rank < problem.ranks; ++rank) {
    Index const keys = plan.local_keys(rank), middle = (keys + 1) / 2;
    CHECK(forwards.rotating_rows(rank) == annulus::RowRange{0, middle});
    CHECK(backwards.rotating_rows(rank) == annulus::RowRange{middle, keys});
    CHECK(forwards.kv_heads() == annulus::RowRange{0, 1});
    CHECK(backwards.kv_heads() == annulus::RowRange{0, 1});
    for (int step = 0; step < plan.steps(); ++step) {
      auto const owners = std::pair{forwards.owner(rank, step), backwards.owner(rank, step)};
      CHECK(owners == std::pair{(rank + 4 - step) % 4, (rank + step) % 4});
      CHECK(plan.step(rank, step).visible_pairs ==
            plan.local_queries(rank) *
                (forwards.rotating_rows(owners.first).size() + backwards.rotating_rows(owners.second).size()));
    }
  }
}

TEST_CASE("both directions: halves of the rows of a reproducible pass are whole leaves", "[lanes][reproducible]") {
  RingProblem problem =
      small_ring_problem({.query_heads = 4, .query_length = 90}, 3, annulus::Contiguous{}, Rotation::keys);
  for (auto const& [leaf, cut] : {std::pair{Index{30}, Index{30}}, {Index{10}, Index{20}}, {Index{6}, Index{18}}}) {
    problem.options.schedule = Schedule::both_directions;
    problem.options.reproducible = true;
    problem.options.reproducible_leaf = leaf;
    settle(problem);
    auto const plan = plan_of<float>(problem, Pass::backward);
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(plan.lanes()[0].rotating_rows(rank) == annulus::RowRange{0, cut});
      CHECK(plan.lanes()[1].rotating_rows(rank) == annulus::RowRange{cut, 30});
    }
  }
}

TEST_CASE("both directions: what cannot be split is refused with the reason", "[lanes]") {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 12}, 3);
  problem.options.schedule = Schedule::both_directions;
  give_bias(problem, 1, 1);
  settle(problem);
  CHECK_NOTHROW(solved(problem)());
  problem.options.reproducible = true;
  problem.options.reproducible_leaf = 4;
  check_thrown(attempt(solved(problem)), "UnsupportedError",
               "schedule both directions and reproducible with the gradient of a bias that all heads share");
  // Halves of the rows have the pairs of all heads.
  RingProblem one = small_ring_problem({.query_heads = 4, .kv_heads = 1, .query_length = 12}, 3);
  one.options = problem.options;
  give_bias(one, 1, 1);
  settle(one);
  CHECK_NOTHROW(solved(one)());
}
