/* The C interface over MPI: results of this rank's rows against dense attention. */

#include <mpi.h>
#include <stddef.h>
#include <string.h>

#include "dense.h"

static problem whole, summed;

int main(int argc, char** argv) {
  annulus_ring* ring = NULL;
  annulus_ring_options ring_options = annulus_default_ring_options();
  annulus_options const options = causal_options(ANNULUS_ZIGZAG);
  int rank = 0, ranks = 0;
  REQUIRE(annulus_ring_from_mpi(0, NULL, &ring) == ANNULUS_COMMUNICATION_ERROR);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int zero_copy = ANNULUS_ZERO_COPY_AUTOMATIC; zero_copy <= ANNULUS_ZERO_COPY_NEVER; ++zero_copy) {
    memset(&whole, 0, sizeof whole);
    fill_problem(&whole);
    ring_options.zero_copy = (annulus_zero_copy)zero_copy;
    REQUIRE(annulus_ring_from_mpi(MPI_Comm_c2f(MPI_COMM_WORLD), &ring_options, &ring) == ANNULUS_SUCCESS);
    REQUIRE(annulus_ring_rank(ring) == rank && annulus_ring_size(ring) == ranks && ranks > 1);
    REQUIRE(attend_on_rank(ring, &options, &whole) == ANNULUS_SUCCESS);
    annulus_ring_free(ring);
    /* Each rank has written its own rows; the others are 0. */
    MPI_Allreduce(whole.output, summed.output, (int)((sizeof whole - offsetof(problem, output)) / sizeof(float)),
                  MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    fill_problem(&summed);
    REQUIRE(greatest_error(&summed) < bound);
  }
  ring_options.timeout_ms = 0;
  REQUIRE(annulus_ring_from_mpi(MPI_Comm_c2f(MPI_COMM_WORLD), &ring_options, &ring) == ANNULUS_UNSUPPORTED_ERROR);
  MPI_Finalize();
  if (rank == 0) puts("the C interface over MPI agrees with dense attention");
  return 0;
}
