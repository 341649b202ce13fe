#include "annulus/attention/cache/cached_attention.hpp"

#include "annulus/comm/mpi.hpp"
#include "attention/cache/cached_sequences.hpp"
#include "attention/cache/serving_history.hpp"
#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"

TEST_CASE("random calls on a cache over MPI give what dense attention in double gives", "[mpi][cache]") {
  for (annulus_test::CachedCase const& one : annulus_test::cached_cases()) {
    INFO("case " << one.seed);
    annulus::MpiRing ring(MPI_COMM_WORLD, annulus_test::options_of_tests());
    annulus::CpuBackend backend{.threads = 1};
    annulus_test::CachedRun<float, annulus::MpiRing, annulus::CpuBackend> run(ring, backend, one);
    CHECK(run.run() == "");
    CHECK(run.compared_rows() > 0);
  }
}

TEST_CASE("serving over MPI has the bits of training on one rank", "[mpi][cache][reproducible]") {
  for (annulus_test::ServingCase const& one : annulus_test::serving_cases()) {
    INFO("case " << one.seed);
    annulus::MpiRing ring(MPI_COMM_WORLD, annulus_test::options_of_tests());
    annulus::CpuBackend backend{.threads = 1};
    annulus_test::ServingHistory<float, annulus::MpiRing, annulus::CpuBackend> history(ring, backend, one);
    CHECK(history.run() == "");
    CHECK(history.compared_rows() > 0);
  }
}
