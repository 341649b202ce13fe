// The order of a pass in a memory space with a queue: results are right whenever transfers take place within what the
// order allows, every error of order is seen, and the host waits once in a call.

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "conformance/planted_order.hpp"
#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/reproducible_problem.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::Pass;
using annulus::Rotation;
using annulus::Schedule;

namespace {

struct OrderedCase {
  std::string name;
  int ranks;
  Rotation rotation;
  Schedule schedule = Schedule::ring;
  int ranks_per_group = 0;
  bool reproducible = false, local = false;
  bool windows = false;
};

std::vector<OrderedCase> cases() {
  std::vector<OrderedCase> all;
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
    std::string const name = std::string(name_of(rotation)) + " rotate";
    all.push_back({name, 3, rotation});
    all.push_back({name + " on two ranks", 2, rotation});
    all.push_back({name + ", both directions", 3, rotation, Schedule::both_directions});
    all.push_back({name + ", double ring", 4, rotation, Schedule::double_ring, 2});
    all.push_back({name + ", two levels", 4, rotation, Schedule::two_levels, 2});
    all.push_back({name + ", tiles", 4, rotation, Schedule::tiles, 2});
    all.push_back({name + ", leaves", 3, rotation, Schedule::ring, 0, true});
    all.push_back({name + ", window", 4, rotation, Schedule::ring, 0, false, true});
  }
  all.push_back({"all-gather", 3, Rotation::automatic, Schedule::all_gather, 3});
  for (std::size_t i = 0, messages = all.size(); i < messages; ++i) {
    OrderedCase one = all[i];
    one.windows = true;
    one.name += ", in windows";
    if (one.schedule != Schedule::double_ring) all.push_back(one);  // it exchanges messages alone
  }
  return all;
}

RingProblem problem_of(OrderedCase const& one) {
  RingProblem problem = small_ring_problem(
      {.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 4 * one.ranks + 1, .head_dim = 3}, one.ranks,
      annulus::Contiguous{}, one.rotation);
  if (one.local) problem.dense.window_left = problem.dense.window_right = 5;
  give_sinks(problem, 1);
  problem.options.schedule = one.schedule;
  problem.options.ranks_per_group = one.ranks_per_group;
  settle(problem);
  problem.options.checked = false;
  if (one.reproducible) problem = reproducible_on(problem, one.ranks, Deal::contiguous, 2, one.rotation, 1);
  round_operands<float>(problem);
  return problem;
}

/// What is seen of a planted error: a report, or wrong results; empty if nothing is.
std::string seen(RingProblem const& problem, bool windows, std::vector<RingResult> const& expected,
                 PlantedOrder const& planted, std::uint64_t seed) {
  try {
    auto const results = run_planted(problem, windows, planted, seed);
    for (std::size_t rank = 0; rank < results.size(); ++rank)
      if (!same_bits(results[rank], expected[rank])) return "wrong results";
    return "";
  } catch (std::exception const& error) {
    return error.what();
  }
}

std::vector<RingResult> in_host_memory(RingProblem const& problem) {
  auto results = results_of_ranks<float>(problem);
  for (RingResult& result : results) result.forward_buffers = result.backward_buffers = 0;
  return results;
}

annulus::ActionList list_of(RingProblem const& problem, bool windows, PlantedOrder const& planted) {
  return actions_of(plan_of<float>(problem, planted.pass, false, windows), planted.rank);
}

constexpr std::uint64_t most_seeds = 30;

/// True if the error is seen in one of a few seeds.
bool is_seen(RingProblem const& problem, bool windows, std::vector<RingResult> const& expected,
             PlantedOrder const& planted) {
  for (std::uint64_t seed = 0; seed < most_seeds; ++seed)
    if (!seen(problem, windows, expected, planted, seed).empty()) return true;
  return false;
}

/// Plants an error of a kind at each of its places in the lists of rank 1. Returns the number of errors.
int check_planted(OrderedCase const& one, PlantedOrder::Kind kind) {
  RingProblem const problem = problem_of(one);
  auto const expected = in_host_memory(problem);
  int planted_errors = 0;
  for (Pass pass : {Pass::forward, Pass::backward}) {
    PlantedOrder planted{kind, pass, 1, 0};
    annulus::ActionList const list = list_of(problem, one.windows, planted);
    annulus::ActionList edited = list;
    int const places = static_cast<int>(places_of(ActionEdit(edited), kind).size());
    for (; planted.place < places; ++planted.place) {
      edited = list;
      if (!plant(edited, planted)) continue;
      ++planted_errors;
      INFO(one.name << ", " << name_of(pass) << ": " << name_of(kind) << " at place " << planted.place);
      CHECK(is_seen(problem, one.windows, expected, planted));
    }
  }
  return planted_errors;
}

int check_planted(PlantedOrder::Kind kind) {
  int planted = 0;
  for (OrderedCase const& one : cases()) planted += check_planted(one, kind);
  return planted;
}

}  // namespace

TEST_CASE("foreign: results are right whenever exchanges take place within the order", "[foreign]") {
  for (OrderedCase const& one : cases()) {
    RingProblem const problem = problem_of(one);
    auto const expected = in_host_memory(problem);
    INFO(one.name);
    CHECK(judge(problem, assemble(problem, expected), float_bounds).complaint == "");
    for (std::uint64_t seed = 0; seed < 10; ++seed) CHECK(seen(problem, one.windows, expected, {}, seed) == "");
  }
}

TEST_CASE("foreign: every exchange that begins before the work on the queue is seen", "[foreign][planted]") {
  CHECK(check_planted(PlantedOrder::unordered_start) > 250);
}

TEST_CASE("foreign: every wait that the queue does not get is seen", "[foreign][planted]") {
  CHECK(check_planted(PlantedOrder::ignored_wait) > 350);
}

TEST_CASE("foreign: every omitted await is seen", "[foreign][planted]") {
  CHECK(check_planted(PlantedOrder::omitted_await) > 350);
}

TEST_CASE("foreign: every exchange that stands before the actions that write its rows is seen", "[foreign][planted]") {
  CHECK(check_planted(PlantedOrder::early_shift) > 250);
}

TEST_CASE("foreign: every join that stands before the await of its rows is seen", "[foreign][planted]") {
  CHECK(check_planted(PlantedOrder::early_join) > 110);
}

TEST_CASE("foreign: every release of a window before it is read is seen", "[foreign][planted]") {
  CHECK(check_planted(PlantedOrder::early_release) > 100);
}

TEST_CASE("foreign: every omitted reclaim of bytes that are read is seen", "[foreign][planted]") {
  CHECK(check_planted(PlantedOrder::omitted_reclaim) > 80);
}

TEST_CASE("foreign: the host waits for the queue once in a call", "[foreign]") {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (Schedule schedule : {Schedule::ring, Schedule::both_directions, Schedule::tiles}) {
        RingProblem const problem = problem_of({"", ranks, rotation, schedule});
        auto const waits = annulus::run_ring(ranks, [&](annulus::SimulatedRing& simulated) {
          ForeignRing ring(simulated);
          ForeignBackend<> backend;
          int const calls = 3;
          run_rank<float, ForeignPlacement>(problem, ring, backend, annulus::EveryPair{}, calls);
          return std::pair(backend.waits(), 2 * calls);  // forward and backward
        });
        INFO(problem.text << ", " << name_of(schedule));
        for (auto const& [seen_waits, calls] : waits) CHECK(seen_waits == calls);
      }
}
