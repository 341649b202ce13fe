// Calls of varying shapes on rings over MPI: the memory in use must not grow.

#include <mpi.h>

#include <annulus/comm/mpi.hpp>
#include <string>

#include "soak/soak_calls.hpp"
#include "support/counted_allocations.hpp"

int main(int argc, char** argv) {
  int const calls = annulus_test::calls_of(argc, argv);
  if (calls == 0) return 2;
  MPI_Init(&argc, &argv);
  int flat = 1, all_flat = 0;
  try {
    for (annulus::ZeroCopy zero_copy : {annulus::ZeroCopy::never, annulus::ZeroCopy::automatic}) {
      annulus::MpiRing ring(MPI_COMM_WORLD, {.zero_copy = zero_copy});
      std::string const name = "rank " + std::to_string(ring.rank()) + " of " + std::to_string(ring.size()) +
                               " over MPI, zero_copy " + std::string(annulus::name_of(zero_copy));
      if (!annulus_test::soak(ring, calls).print(name.c_str())) flat = 0;
    }
  } catch (annulus::Error const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Allreduce(&flat, &all_flat, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Finalize();
  return all_flat ? 0 : 1;
}
