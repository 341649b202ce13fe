// Demonstrates: rings over MPI in a program that initialises MPI itself. The ranks of MPI_COMM_WORLD are split into
// replica groups, here even and odd ranks, and each group is a separate ring. Explained in guide/mpi.md.
#include <annulus/annulus.hpp>
#include <annulus/comm/mpi.hpp>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    int ranks = 0, rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::vector<std::vector<int>> groups(ranks > 1 ? 2 : 1);
    for (int r = 0; r < ranks; ++r) groups[static_cast<std::size_t>(r) % groups.size()].push_back(r);
    auto ring = annulus::MpiRing::from_replica_groups(MPI_COMM_WORLD, groups);

    Eigen::Tensor<float, 4, Eigen::RowMajor> q(1, 64, 4, 16), k(1, 64, 4, 16), v(1, 64, 4, 16), dout(1, 64, 4, 16);
    q.setRandom();
    k.setRandom();
    v.setRandom();
    dout.setRandom();
    annulus::CpuBackend backend;
    annulus::RingAttention attention(ring, backend, {.mask = annulus::causal(), .sharding = annulus::Striped{}});
    auto const forward = attention.forward(q, k, v);
    attention.backward(dout, forward, q, k, v);
    if (ring.rank() == 0)
      std::cout << "world rank " << rank << " leads a ring of " << ring.size() << ", lse " << forward.lse(0, 0, 63)
                << '\n';
  } catch (std::exception const& error) {
    std::cerr << error.what() << '\n';
    MPI_Abort(MPI_COMM_WORLD, 1);  // MPI_Finalize would wait for a rank that is lost
  }
  MPI_Finalize();
}
