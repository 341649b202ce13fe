// PeerRing in the memory of GPUs: large runs, a graph that holds the shifts of all ranks, and memory that is left.
// Prints times of shifts. Needs CUDA's own runtime.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annulus/comm/peer_ring.hpp"
#include "comm/peer/ring_graph.hpp"
#include "support/catch.hpp"
#include "support/cuda_space.hpp"

using namespace annulus;
using namespace annulus_test;
using cuda::detail::check;

namespace {

/// Rings of up to four ranks: a GPU for each, and two ranks on each.
std::vector<std::vector<int>> gpus_of_rings() {
  std::vector<std::vector<int>> all;
  if (number_of_gpus() == 0) return all;
  for (int ranks : {1, 2, 3, 4})
    for (int ranks_a_gpu : {1, 2}) all.push_back(gpus_of(ranks, ranks_a_gpu));
  return all;
}

/// Two buffers of GPU memory that a rank sends from and receives into in turn, and what has arrived, on the host.
struct Buffers {
  std::size_t size;
  std::array<cuda::detail::DeviceBytes, 2> on_gpu;
  cuda::detail::PinnedBytes arrived;
  SpaceQueue<CudaMemory> space;
  CudaQueue const& queue = space.queue;

  Buffers(std::size_t bytes, std::size_t rounds)
      : size(bytes),
        on_gpu{cuda::detail::allocate_device(static_cast<Index>(bytes)),
               cuda::detail::allocate_device(static_cast<Index>(bytes))},
        arrived(cuda::detail::allocate_pinned(static_cast<Index>(2 * rounds))) {}

  std::byte* here(std::size_t round) const { return on_gpu[(round + 1) % 2].data(); }
  std::byte* there(std::size_t round) const { return on_gpu[round % 2].data(); }

  void fill(std::byte* bytes, int value) const {
    check(cudaMemsetAsync(bytes, value, size, queue.stream), "cudaMemsetAsync");
  }
  /// Sends what round - 1 has received, overwrites it, and copies the first and the last byte that arrive to the host.
  void shift(PeerRing& ring, std::size_t round) const {
    std::array const out{std::span<std::byte const>(here(round), size)};
    std::array const in{std::span<std::byte>(there(round), size)};
    auto transfer = ring.start_shift(Channel::prefetched, 1, out, in, queue);
    transfer.wait(queue);
    fill(here(round), 0xEE);
    std::byte* const seen = arrived.data() + 2 * (round - 1);
    for (std::size_t i : {0u, 1u})
      check(cudaMemcpyAsync(seen + i, there(round) + i * (size - 1), 1, cudaMemcpyDefault, queue.stream),
            "cudaMemcpyAsync");
  }
  /// Number of rounds of which other bytes have arrived than those of their owner.
  int wrong(PeerRing const& ring, std::size_t rounds) const {
    int count = 0;
    for (std::size_t round = 1; round <= rounds; ++round) {
      auto const owner = static_cast<std::byte>(ring_neighbour(ring.rank(), -static_cast<int>(round), ring.size()) + 1);
      std::byte const* const seen = arrived.data() + 2 * (round - 1);
      count += seen[0] != owner || seen[1] != owner;
    }
    return count;
  }
};

}  // namespace

TEST_CASE("runs in GPU memory arrive in order, and overlap no work that uses them", "[peer][gpu]") {
  for (auto const& gpus : gpus_of_rings())
    for (std::size_t const size : {std::size_t{2}, std::size_t{1} << 16, std::size_t{16} << 20}) {
      CAPTURE(gpus, size);
      constexpr std::size_t rounds = 40;
      auto const wrong = run_peer_ring(gpus, [&](PeerRing& ring) {
        Buffers const buffers(size, rounds);
        buffers.fill(buffers.here(1), ring.rank() + 1);
        for (std::size_t round = 1; round <= rounds; ++round) buffers.shift(ring, round);
        ring.finish(buffers.queue);
        return buffers.wrong(ring, rounds);
      });
      for (int const rounds_wrong : wrong) CHECK(rounds_wrong == 0);
    }
}

TEST_CASE("the shifts of all ranks of a ring of GPUs are captured in one graph", "[peer][gpu]") {
  for (auto const& gpus : gpus_of_rings()) {
    CAPTURE(gpus);
    RingEvents const events(gpus);
    constexpr std::size_t rounds = 6;
    auto const wrong = run_peer_ring(gpus, [&](PeerRing& ring) {
      Buffers const buffers(1 << 16, rounds);
      auto const shifts = [&] {
        buffers.fill(buffers.here(1), ring.rank() + 1);
        for (std::size_t round = 1; round <= rounds; ++round) buffers.shift(ring, round);
      };
      shifts();  // makes the events
      ring.finish(buffers.queue);
      RingGraph const graph(ring, buffers.queue.stream, events, shifts);
      int rounds_wrong = 0;
      for (int launch = 0; launch < 3; ++launch) {
        std::fill_n(buffers.arrived.data(), buffers.arrived.size(), std::byte{0});
        graph.launch();
        rounds_wrong += buffers.wrong(ring, rounds);
      }
      if (ring.rank() == 0) std::printf("graph of %d ranks: %zu nodes\n", ring.size(), graph.nodes());
      return rounds_wrong;
    });
    for (int const rounds_wrong : wrong) CHECK(rounds_wrong == 0);
  }
}

TEST_CASE("rings of GPUs leave no GPU memory", "[peer][gpu]") {
  for (auto const& gpus : gpus_of_rings()) {
    CAPTURE(gpus);
    auto const run = [&] {
      run_peer_ring(gpus, [](PeerRing& ring) {
        Buffers const buffers(1 << 10, 4);
        for (std::size_t round = 1; round <= 4; ++round) buffers.shift(ring, round);
        ring.finish(buffers.queue);
      });
    };
    auto const used = [] {
      std::size_t available = 0, total = 0;
      check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
      return total - available;
    };
    for (int warm = 0; warm < 3; ++warm) run();
    std::size_t const before = used();
    for (int repeat = 0; repeat < 50; ++repeat) run();
    CHECK(used() <= before);
  }
}

TEST_CASE("times of shifts of a ring of GPUs", "[peer][gpu]") {
  for (auto const& gpus : gpus_of_rings())
    for (std::size_t const size : {std::size_t{1} << 10, std::size_t{64} << 20}) {
      constexpr std::size_t rounds = 50;
      auto const times = run_peer_ring(gpus, [&](PeerRing& ring) {
        Buffers const buffers(size, rounds);
        std::array const out{std::span<std::byte const>(buffers.here(1), size)};
        std::array const in{std::span<std::byte>(buffers.there(1), size)};
        std::pair<double, double> of_host_and_all{};
        for (int repeat = 0; repeat < 2; ++repeat) {
          meet(ring);
          auto const begin = std::chrono::steady_clock::now();
          auto const seconds = [&] {
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
          };
          for (std::size_t round = 0; round < rounds; ++round)
            ring.start_shift(Channel::prefetched, 1, out, in, buffers.queue).wait(buffers.queue);
          of_host_and_all.first = seconds();
          ring.finish(buffers.queue);
          of_host_and_all.second = seconds();
        }
        return of_host_and_all;
      });
      auto const [host, all] = *std::max_element(times.begin(), times.end());
      std::printf("%zu ranks on GPUs %s, %zu bytes: %.1f us of the host and %.1f us a shift, %.1f GB/s each way\n",
                  gpus.size(), detail::message_of(gpus).c_str(), size, 1e6 * host / rounds, 1e6 * all / rounds,
                  1e-9 * static_cast<double>(size * rounds) / all);
    }
}
