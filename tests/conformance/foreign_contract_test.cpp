// Contract of the foreign backend, which tests the ring loop: it works late, refuses host memory, and
// reveals every omitted wait. Also the behaviour of the loop when the device or a peer fails in the middle of a pass.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "conformance/foreign_implementation.hpp"
#include "conformance/placed_array.hpp"
#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/losing_communicator.hpp"
#include "support/small_ring_problem.hpp"
#include "support/unruly_communicator.hpp"

using namespace annulus_test;
using annulus::Rotation;

namespace {

using Foreign = ForeignBackend<>;
using Tensor = ForeignTensor<float, 4>;
constexpr std::array<Index, 4> extents{2, 3, 2, 5};

Foreign lazy_backend() { return Foreign({.deferral = {.when = DeferralOptions::lazy}}); }

Tensor tensor_of(float value) {
  Tensor tensor(extents);
  auto const elements = at_rest(tensor.view());
  annulus::detail::for_each_element(elements, elements, [&](float& element, float&) { element = value; });
  return tensor;
}

float first_of(Tensor const& tensor) { return at_rest(tensor.view())(0, 0, 0, 0); }

ForeignView<float const, 4> constant(Tensor const& tensor) { return tensor.view(); }

}  // namespace

TEST_CASE("foreign: a lazy backend does no work before synchronize()", "[foreign]") {
  Tensor const from = tensor_of(2);
  Tensor to(extents);
  Foreign backend = lazy_backend();
  backend.copy(constant(from), to.view());
  backend.add(to.view(), constant(from));
  CHECK(backend.pending() == 2);
  CHECK(std::isnan(first_of(to)));
  backend.synchronize();
  CHECK(backend.pending() == 0);
  CHECK(first_of(to) == 4);
}

TEST_CASE("foreign: work is done in the order of the calls, whatever the delays", "[foreign]") {
  Tensor sum = tensor_of(1), one = tensor_of(1);
  Foreign backend(
      {.deferral = {.when = DeferralOptions::delayed, .seed = 4, .longest_delay = std::chrono::microseconds(300)}});
  // sum <- 2 sum + 1, ten times; any other order gives another result.
  Tensor copy(extents);
  for (int i = 0; i < 10; ++i) {
    backend.copy(constant(sum), copy.view());
    backend.add(sum.view(), constant(copy));
    backend.add(sum.view(), constant(one));
  }
  backend.synchronize();
  CHECK(first_of(sum) == 2047);
}

TEST_CASE("foreign: the destructor waits for the work", "[foreign]") {
  Tensor const from = tensor_of(3);
  Tensor to(extents);
  {
    Foreign backend = lazy_backend();
    backend.copy(constant(from), to.view());
  }
  CHECK(first_of(to) == 3);
}

TEST_CASE("foreign: views of host memory, and views that extend past an allocation, are refused", "[foreign]") {
  Tensor tensor = tensor_of(1);
  std::vector<float> host(60, 1);
  Foreign backend = lazy_backend();
  auto const refuses = [&](auto call) {
    call();
    CHECK_THROWS_AS(backend.synchronize(), HostMemoryRefused);
    backend.synchronize();  // thrown once
  };
  ForeignView<float, 4> const in_host(host.data(), extents);
  refuses([&] { backend.copy(ForeignView<float const, 4>(in_host), tensor.view()); });
  refuses([&] { backend.copy(constant(tensor), in_host); });
  refuses([&] { backend.clear(in_host); });
  refuses([&] { backend.clear(ForeignView<float, 4>(nullptr, extents)); });
  auto longer = extents;
  ++longer[0];
  refuses([&] { backend.clear(ForeignView<float, 4>(tensor.view().data(), longer)); });
  refuses([&] { backend.clear(ForeignView<float, 4>(tensor.view().data(), extents, {30, 10, -5, 1})); });
  ForeignView<float, 4> dangling;
  {
    Tensor gone(extents);
    dangling = gone.view();
  }
  refuses([&] { backend.clear(dangling); });
  CHECK(backend.misuses() == 7);
  // Views without elements may have any address.
  backend.clear(ForeignView<float, 4>(nullptr, {2, 0, 3, 4}));
  backend.clear(tensor.view());
  backend.synchronize();
  CHECK(first_of(tensor) == 0);

  // The work after the refused one was skipped: a device does not go on from a wrong result.
  backend.clear(in_host);
  tensor.upload(annulus::TensorView<float const, 4>(host.data(), extents));
  backend.clear(tensor.view());
  CHECK_THROWS_AS(backend.synchronize(), HostMemoryRefused);
  CHECK(first_of(tensor) == 1);
  CHECK(host[0] == 1);
}

TEST_CASE("foreign: a step may change after the call", "[foreign]") {
  Tensor q = tensor_of(1), k = tensor_of(1), v = tensor_of(3), accumulator(extents);
  ForeignTensor<float, 3> maximum({2, 2, 3}), sum({2, 2, 3});
  annulus::RunningState<float, ForeignMemory> const state{accumulator.view(), maximum.view(), sum.view()};
  std::vector<annulus::Tile> tiles{
      {.query_count = 3, .key_count = 3, .coverage = annulus::Coverage::full, .visible_pairs = 9}};
  std::vector<Index> queries{0, 1, 2}, keys{0, 1, 2};
  annulus::EveryPair const every_pair;
  Foreign backend = lazy_backend();
  backend.reset(state);
  {
    annulus::Step<float, annulus::EveryPair, ForeignMemory> const step{
        .tiles = tiles, .query_positions = queries, .key_positions = keys, .predicate = &every_pair};
    backend.fold(step, annulus::StepOperands<float, ForeignMemory>{constant(q), constant(k), constant(v)}, state);
  }
  tiles[0].key_count = 0;
  std::fill(queries.begin(), queries.end(), 1000);
  std::fill(keys.begin(), keys.end(), 1000);
  backend.synchronize();
  CHECK(first_of(accumulator) == 9);
  CHECK(at_rest(sum.view())(0, 0, 0) == 3);
}

namespace {

/// Omits one synchronize().
class ForgetfulBackend : public Foreign {
 public:
  explicit ForgetfulBackend(int forgotten)
      : Foreign({.deferral = {.when = DeferralOptions::lazy}}), forgotten_(forgotten) {}

  void synchronize() {
    if (synchronizations_++ != forgotten_) Foreign::synchronize();
  }

  int synchronizations() const { return synchronizations_; }

 private:
  int forgotten_;
  int synchronizations_ = 0;
};

// An omitted wait is a data race, which the sanitizer would report before the test could check the result.
#if defined(__SANITIZE_THREAD__)
constexpr bool races_end_the_test = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool races_end_the_test = true;
#else
constexpr bool races_end_the_test = false;
#endif
#else
constexpr bool races_end_the_test = false;
#endif

RingProblem unmasked_problem(Rotation rotation) {
  RingProblem problem =
      small_ring_problem({.batch = 2, .query_heads = 2, .kv_heads = 2, .query_length = 13, .head_dim = 4}, 3,
                         annulus::Contiguous{}, rotation);
  give_sinks(problem, 1);
  settle(problem);
  round_operands<float>(problem);
  return problem;
}

}  // namespace

TEST_CASE("foreign: every omitted wait on one rank is detected", "[foreign][planted]") {
  if (races_end_the_test) {
    SUCCEED("not under the thread sanitizer");
    return;
  }
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
    RingProblem const problem = unmasked_problem(rotation);
    int waits = 0;
    // Returns what is detected: a wrong result, or bytes that change during a transfer; empty if nothing is.
    auto const run = [&](int forgotten) -> std::string {
      try {
        auto const results = annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& simulated) {
          // Copies outgoing bytes when the shift starts, and delivers incoming bytes when it is waited for.
          UnrulyCommunicator prompt(simulated, {.longest_delay = std::chrono::microseconds(0)});
          ForeignRing ring(prompt);
          bool const forgets = ring.rank() == 1;
          ForgetfulBackend backend(forgets ? forgotten : -1);
          auto result = run_rank<float, ForeignPlacement>(problem, ring, backend);
          if (forgets) waits = backend.synchronizations();
          return result;
        });
        return judge(problem, assemble(problem, results), float_bounds).complaint;
      } catch (MisusedTransfer const& misuse) {
        return misuse.what();
      }
    };
    INFO("rotation " << name_of(rotation));
    REQUIRE(run(-1) == "");
    // Forward and backward: before the first shift, after each step, at the end; and before dsinks are summed.
    REQUIRE(waits == 2 * (1 + problem.ranks + 1) + 1);
    for (int forgotten = 0; forgotten < 2 * (1 + problem.ranks + 1) + 1; ++forgotten) {
      // With rotating keys the forward pass carries nothing: on three ranks, no step overlaps the next but one shift.
      bool const memory_is_not_shared = rotation == Rotation::keys && 1 <= forgotten && forgotten <= problem.ranks;
      if (memory_is_not_shared) continue;
      INFO("omitted: synchronize() number " << forgotten);
      CHECK(run(forgotten) != "");
    }
  }
}

namespace {

/// The end of a rank's run.
enum class End { well, device_failed, ring_failed };

struct RankEnd {
  End end = End::well;
  int misuses = 0;
  std::size_t pending = 0;
};

/// Runs a problem in which rank 1 fails in the given call or wait (-1: in none), and returns how all ranks ended.
std::vector<RankEnd> run_failing(RingProblem const& problem, DeferralOptions::When when, int failing_call,
                                 int fatal_wait) {
  return annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& simulated) {
    bool const fails = simulated.rank() == 1;
    ForeignRing foreign(simulated);
    LosingCommunicator ring(foreign, fails ? fatal_wait : -1);
    Foreign backend({.deferral = {.when = when, .seed = static_cast<std::uint64_t>(simulated.rank())},
                     .failing_call = fails ? failing_call : -1});
    RankEnd end;
    try {
      run_rank<float, ForeignPlacement>(problem, ring, backend);
    } catch (DeviceFailure const&) {
      end.end = End::device_failed;
    } catch (annulus::CommunicationError const&) {
      end.end = End::ring_failed;
    }
    end.misuses = backend.misuses();
    end.pending = backend.pending();
    return end;
  });
}

std::vector<RingProblem> failing_problems() {
  std::vector<RingProblem> problems{unmasked_problem(Rotation::keys), unmasked_problem(Rotation::queries)};
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {  // results go straight to their owners
    RingProblem problem = small_ring_problem({.query_length = 16}, 4, annulus::Contiguous{}, rotation);
    problem.dense.window_left = problem.dense.window_right = 5;
    settle(problem);
    problems.push_back(problem);
  }
  return problems;
}

}  // namespace

TEST_CASE("foreign: a failure of the device is thrown where it is waited for and ends the ring on all ranks",
          "[foreign]") {
  for (RingProblem const& problem : failing_problems())
    for (auto when : {DeferralOptions::delayed, DeferralOptions::lazy})
      for (int call = 0;; ++call) {
        auto const ends = run_failing(problem, when, call, -1);
        INFO(problem.text << ": call " << call << " fails");
        if (ends[1].end == End::well) {
          CHECK(call > 2 * problem.ranks);
          for (RankEnd const& rank : ends) CHECK(rank.end == End::well);
          break;
        }
        CHECK(ends[1].end == End::device_failed);
        for (RankEnd const& rank : ends) {
          CHECK((&rank == &ends[1] || rank.end != End::device_failed));
          CHECK(rank.misuses == 0);
          CHECK(rank.pending == 0);
        }
      }
}

TEST_CASE("foreign: after a peer is lost, no pending work reads destroyed memory", "[foreign]") {
  for (RingProblem const& problem : failing_problems())
    for (auto when : {DeferralOptions::delayed, DeferralOptions::lazy})
      for (int wait = 0;; ++wait) {
        auto const ends = run_failing(problem, when, -1, wait);
        INFO(problem.text << ": wait " << wait << " fails");
        if (ends[1].end == End::well) {
          CHECK(wait > problem.ranks);
          for (RankEnd const& rank : ends) CHECK(rank.end == End::well);
          break;
        }
        CHECK(ends[1].end == End::ring_failed);
        for (RankEnd const& rank : ends) {
          CHECK(rank.misuses == 0);
          CHECK(rank.pending == 0);
        }
      }
}
