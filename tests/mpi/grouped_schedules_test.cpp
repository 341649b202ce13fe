// The schedules in which ranks form groups, with and without joint keys, over MPI: the same bits as on a simulated
// ring.

#include <annulus/annulus.hpp>
#include <annulus/comm/mpi.hpp>

#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"
#include "support/grouped_problem.hpp"
#include "support/ring_run.hpp"

using namespace annulus_test;

namespace {

/// double_ring: with the schedule double_ring instead of that of the random problem.
void check_same_bits_in_groups(std::uint64_t first_seed, annulus::ZeroCopy zero_copy, bool double_ring = false) {
  annulus::MpiRingOptions options = options_of_tests();
  options.zero_copy = zero_copy;
  annulus::MpiRing ring(MPI_COMM_WORLD, options);
  for (std::uint64_t seed = first_seed; seed < first_seed + 36; ++seed) {
    RingProblem problem = random_grouped_problem_on(world_size(), seed);
    if (double_ring) {
      problem.options.schedule = annulus::Schedule::double_ring;
      // Without 0, the near ranks, of which a simulated ring has none by default.
      auto const groups = accepted_groups(problem, annulus::Schedule::double_ring);
      problem.options.ranks_per_group = groups[1 + seed % (groups.size() - 1)];
    }
    if (seed % 3 == 0) give_joint_keys(problem, 1 + static_cast<std::int64_t>(seed % 7), seed);
    round_operands<float>(problem);
    INFO(problem.text << (double_ring ? ", double ring of " : "") << problem.options.ranks_per_group);
    auto const simulated = results_of_ranks<float>(problem);
    annulus::ReferenceBackend backend;
    RingResult const over_mpi = run_rank<float>(problem, ring, backend);
    CHECK(same_bits(over_mpi, simulated[static_cast<std::size_t>(ring.rank())]));
  }
}

}  // namespace

TEST_CASE("a double ring over MPI takes the ranks of a node as its group", "[mpi][schedules]") {
  annulus::MpiRing ring(MPI_COMM_WORLD, options_of_tests());
  annulus::ReferenceBackend backend;
  annulus::RingAttention attention(ring, backend, {.schedule = annulus::Schedule::double_ring});
  Eigen::Tensor<float, 4> x(1, 3, 2, 4);
  x.setConstant(1.0f);
  CHECK(attention.forward(x, x, x).output(0, 2, 1, 3) == Approx(1));
  // All tests run on one node.
  CHECK(attention.plan(annulus::Pass::forward)->request().ranks_per_group == ring.size());
}

TEST_CASE("schedules with groups over MPI give the same bits as on a simulated ring", "[mpi][schedules]") {
  for (auto const zero_copy : {annulus::ZeroCopy::always, annulus::ZeroCopy::never})
    check_same_bits_in_groups(860'000, zero_copy);
}

TEST_CASE("a double ring over MPI gives the same bits as on a simulated ring", "[mpi][schedules]") {
  check_same_bits_in_groups(880'000, annulus::ZeroCopy::never, true);
}
