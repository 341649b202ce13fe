#include "gpu_ranks.hpp"

#include <string>

#include "attend_on_ranks.hpp"
#include "errors.hpp"

#if ANNULUS_COMMAND_HAS_CUDA
#include <annulus/backend/cuda/cuda.hpp>
#include <annulus/comm/peer_ring.hpp>
#include <annulus/tensor/cuda/device_tensor.hpp>

#include "attend_on_backend.hpp"
#endif
#if ANNULUS_COMMAND_HAS_NCCL
#include <annulus/comm/nccl_ring.hpp>
#include <annulus/comm/simulated_ring.hpp>
#else
#define ANNULUS_COMMAND_HAS_NCCL 0
#endif

namespace annulus_command {

#if ANNULUS_COMMAND_HAS_CUDA

int number_of_gpus() {
  int count = 0;
  cudaError_t const error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0)
    throw InputError(std::string("--backend cuda requires a GPU, and CUDA finds none on this machine (") +
                     (error != cudaSuccess ? cudaGetErrorString(error) : "its devices are hidden") +
                     "); accepted: another backend");
  return count;
}

namespace {

#if ANNULUS_COMMAND_HAS_NCCL
/// Calls run(ring) on a thread for each GPU, with a ring over NCCL.
template <class Run>
void run_nccl_ring(int ranks, std::chrono::milliseconds timeout, Run const& run) {
  auto const run_rank = [&](annulus::SimulatedRing& host) {
    annulus::cuda::detail::CurrentDevice const current(host.rank());
    annulus::NcclRing<annulus::SimulatedRing> ring(host, {.timeout = timeout});
    annulus::or_abandon(ring, [&] { run(ring); });
  };
  annulus::run_ring(ranks, run_rank, {.timeout = timeout});
}
#endif

/// The GPU of each rank: consecutive ranks share one where there are more ranks than GPUs.
std::vector<int> gpus_of(int ranks) {
  int const count = number_of_gpus();
  std::vector<int> gpus;
  for (int rank = 0; rank < ranks; ++rank) gpus.push_back(ranks > count ? rank * count / ranks : rank);
  return gpus;
}

}  // namespace

template <annulus::Scalar T>
Results<T> attend_on_gpus(Inputs<T> const& inputs, Call const& call, [[maybe_unused]] Comm comm,
                          std::vector<Timeline>& timelines, std::chrono::milliseconds timeout) {
  int const ranks = static_cast<int>(timelines.size());
  Results<T> results = make_results<T>(call, {call.shape.queries, call.shape.keys});
  auto const run = [&](auto& ring) {
    annulus::CudaBackend backend;
    attend_share(ring.rank(), inputs, call, timelines, results, [&](Inputs<T> const& own, Timeline& timeline) {
      return attend_on_backend(backend, ring, call, own, timeline);
    });
  };
#if ANNULUS_COMMAND_HAS_NCCL
  if (comm == Comm::nccl) {
    run_nccl_ring(ranks, timeout, run);
    return results;
  }
#endif
  annulus::run_peer_ring(gpus_of(ranks), run, {.timeout = timeout});
  return results;
}

#else

int number_of_gpus() {
  throw InputError(
      "--backend cuda requires a command that was built with CUDA 12.4 or later (cmake -DANNULUS_WITH_CUDA=ON); "
      "accepted by this one: another backend");
}

template <annulus::Scalar T>
Results<T> attend_on_gpus(Inputs<T> const&, Call const&, Comm, std::vector<Timeline>&, std::chrono::milliseconds) {
  number_of_gpus();
  return {};
}

#endif

void require_gpus(Comm comm, int ranks) {
  int const count = number_of_gpus();
  if (comm != Comm::nccl) return;
  if (!ANNULUS_COMMAND_HAS_NCCL)
    throw InputError(
        "--comm nccl requires a command that was built with NCCL 2.22 or later (ANNULUS_NCCL_INCLUDE, "
        "ANNULUS_NCCL_LIBRARY); accepted by this one: --comm peer");
  if (ranks > count)
    throw InputError("--ranks " + std::to_string(ranks) +
                     " with --comm nccl, which has one rank a GPU; accepted: up to " + std::to_string(count) +
                     ", or --comm peer");
}

template Results<double> attend_on_gpus(Inputs<double> const&, Call const&, Comm, std::vector<Timeline>&,
                                        std::chrono::milliseconds);
template Results<float> attend_on_gpus(Inputs<float> const&, Call const&, Comm, std::vector<Timeline>&,
                                       std::chrono::milliseconds);
template Results<Eigen::half> attend_on_gpus(Inputs<Eigen::half> const&, Call const&, Comm, std::vector<Timeline>&,
                                             std::chrono::milliseconds);
template Results<Eigen::bfloat16> attend_on_gpus(Inputs<Eigen::bfloat16> const&, Call const&, Comm,
                                                 std::vector<Timeline>&, std::chrono::milliseconds);

}  // namespace annulus_command
