// Bit-identical results in every run, with work on a queue, random delays and any order of completion of the channels.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/foreign_backend.hpp"
#include "support/random_ring_problem.hpp"
#include "support/ring_run.hpp"
#include "support/unruly_communicator.hpp"

using namespace annulus_test;

namespace {

constexpr std::uint64_t runs = 20;

/// Problems with prefetched and carried payloads: 2 to 8 ranks, both rotations.
template <class T>
std::vector<RingProblem> rotating_problems(std::uint64_t first_seed, std::size_t count) {
  std::vector<RingProblem> problems;
  for (std::uint64_t seed = first_seed; problems.size() < count; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    OracleProblem const& d = problem.dense;
    // Every problem is run many times, so only those with enough rows and a small head_dim are used.
    if (problem.ranks < 2 || problem.ranks > 8 || d.query_length < 16 || d.key_length < 16 || d.head_dim > 32) continue;
    if (!problem.dense.bias && !problem.dense.mask)
      problem.options.rotation = problems.size() % 2 ? annulus::Rotation::queries : annulus::Rotation::keys;
    round_operands<T>(problem);
    problems.push_back(problem);
  }
  return problems;
}

bool all_same_bits(std::vector<RingResult> const& a, std::vector<RingResult> const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits);
}

template <class T>
void check_disturbed_devices(std::uint64_t first_seed, std::size_t count) {
  for (RingProblem problem : rotating_problems<T>(first_seed, count)) {
    problem.options.wire = annulus::Wire::as_stored;  // Host memory only.
    auto const expected = results_of_ranks<T>(problem);
    for (std::uint64_t run = 0; run < runs; ++run) {
      INFO(problem.text << ": run " << run);
      auto const when = run % 4 == 3 ? DeferralOptions::lazy : DeferralOptions::delayed;
      auto const seen = annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
        UnrulyCommunicator unruly(ring, {.seed = run});
        ForeignRing foreign(unruly);
        ForeignBackend<> backend(
            {.deferral = {.when = when, .seed = 31 * run + static_cast<std::uint64_t>(ring.rank())}});
        return run_rank<T, ForeignPlacement>(problem, foreign, backend);
      });
      CHECK(all_same_bits(seen, expected));
    }
  }
}

}  // namespace

TEST_CASE("determinism: the same bits in 20 runs with delayed work and reordered shifts", "[determinism][foreign]") {
  check_disturbed_devices<float>(730'000, 6);
  check_disturbed_devices<double>(740'000, 2);
}
