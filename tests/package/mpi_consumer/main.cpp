#include <annulus/comm/mpi.hpp>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  bool right = false;
  {
    annulus::MpiRing ring(MPI_COMM_WORLD);
    right = ranks == 2 && ring.size() == ranks;
  }
  MPI_Finalize();
  return right ? 0 : 1;
}
