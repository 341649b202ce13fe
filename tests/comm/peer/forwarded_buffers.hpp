#pragma once
// Buffers in GPU memory that ranks forward around a ring, and what has arrived. Needs CUDA's own runtime.

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <utility>

#include "annulus/comm/communicator.hpp"
#include "support/cuda_space.hpp"

namespace annulus_test {

/// Two buffers that a rank sends from and receives into in turn, and what has arrived, on the host.
struct ForwardedBuffers {
  std::size_t size;
  std::array<annulus::cuda::detail::DeviceBytes, 2> on_gpu;
  annulus::cuda::detail::PinnedBytes arrived;
  SpaceQueue<annulus::CudaMemory> space;
  CudaQueue const& queue = space.queue;

  ForwardedBuffers(std::size_t bytes, std::size_t rounds)
      : size(bytes),
        on_gpu{annulus::cuda::detail::allocate_device(static_cast<annulus::Index>(bytes)),
               annulus::cuda::detail::allocate_device(static_cast<annulus::Index>(bytes))},
        arrived(annulus::cuda::detail::allocate_pinned(static_cast<annulus::Index>(2 * rounds))) {}

  std::byte* here(std::size_t round) const { return on_gpu[(round + 1) % 2].data(); }
  std::byte* there(std::size_t round) const { return on_gpu[round % 2].data(); }

  void fill(std::byte* bytes, int value) const {
    annulus::cuda::detail::check(cudaMemsetAsync(bytes, value, size, queue.stream), "cudaMemsetAsync");
  }
  template <class Ring>
  void exchange(Ring& ring, std::size_t round) const {
    std::array const out{std::span<std::byte const>(here(round), size)};
    std::array const in{std::span<std::byte>(there(round), size)};
    auto transfer = ring.start_shift(annulus::Channel::prefetched, 1, out, in, queue);
    transfer.wait(queue);
  }
  /// Sends what round - 1 has received, overwrites it, and copies the first and the last byte that arrive to the host.
  template <class Ring>
  void shift(Ring& ring, std::size_t round) const {
    exchange(ring, round);
    fill(here(round), 0xEE);
    std::byte* const seen = arrived.data() + 2 * (round - 1);
    for (std::size_t i : {0u, 1u})
      annulus::cuda::detail::check(
          cudaMemcpyAsync(seen + i, there(round) + i * (size - 1), 1, cudaMemcpyDefault, queue.stream),
          "cudaMemcpyAsync");
  }
  /// Number of rounds of which other bytes have arrived than those of their owner.
  template <class Ring>
  int wrong(Ring const& ring, std::size_t rounds) const {
    int count = 0;
    for (std::size_t round = 1; round <= rounds; ++round) {
      int const owner = annulus::ring_neighbour(ring.rank(), -static_cast<int>(round), ring.size()) + 1;
      std::byte const* const seen = arrived.data() + 2 * (round - 1);
      count += seen[0] != static_cast<std::byte>(owner) || seen[1] != static_cast<std::byte>(owner);
    }
    return count;
  }
};

/// Seconds of the host, and in all, that `rounds` shifts take on the second try.
template <class Ring>
std::pair<double, double> seconds_of_shifts(Ring& ring, ForwardedBuffers const& buffers, std::size_t rounds) {
  std::pair<double, double> of_host_and_all{};
  for (int repeat = 0; repeat < 2; ++repeat) {
    ring.all_gather({}, {});
    auto const begin = std::chrono::steady_clock::now();
    auto const seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    for (std::size_t round = 0; round < rounds; ++round) buffers.exchange(ring, 1);
    of_host_and_all.first = seconds();
    ring.finish(buffers.queue);
    of_host_and_all.second = seconds();
  }
  return of_host_and_all;
}

}  // namespace annulus_test
