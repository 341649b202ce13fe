#include "annulus/attention/collectives.hpp"

#include "annulus/comm/mpi.hpp"
#include "attention/collective_cases.hpp"
#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"

TEST_CASE("scatter, gather and all_reduce over MPI", "[mpi][collectives]") {
  annulus::MpiRing ring(MPI_COMM_WORLD, annulus_test::options_of_tests());
  CHECK(annulus_test::all_collectives(ring) == "");
}
