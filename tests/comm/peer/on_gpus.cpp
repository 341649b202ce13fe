// PeerRing in the memory of GPUs: large runs, a graph that holds the shifts of all ranks, and memory that is left.
// Prints times of shifts. Needs CUDA's own runtime.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "annulus/comm/peer_ring.hpp"
#include "comm/peer/forwarded_buffers.hpp"
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

}  // namespace

TEST_CASE("runs in GPU memory arrive in order, and overlap no work that uses them", "[peer][gpu]") {
  for (auto const& gpus : gpus_of_rings())
    for (std::size_t const size : {std::size_t{2}, std::size_t{1} << 16, std::size_t{16} << 20}) {
      CAPTURE(gpus, size);
      constexpr std::size_t rounds = 40;
      auto const wrong = run_peer_ring(gpus, [&](PeerRing& ring) {
        ForwardedBuffers const buffers(size, rounds);
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
      ForwardedBuffers const buffers(1 << 16, rounds);
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
        ForwardedBuffers const buffers(1 << 10, 4);
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
        ForwardedBuffers const buffers(size, rounds);
        return seconds_of_shifts(ring, buffers, rounds);
      });
      auto const [host, all] = *std::max_element(times.begin(), times.end());
      std::printf("%zu ranks on GPUs %s, %zu bytes: %.1f us of the host and %.1f us a shift, %.1f GB/s each way\n",
                  gpus.size(), detail::message_of(gpus).c_str(), size, 1e6 * host / rounds, 1e6 * all / rounds,
                  1e-9 * static_cast<double>(size * rounds) / all);
    }
}
