// Order of the copies of a ring of GPUs whose ranks are processes, on the CUDA runtime of threads: each wait of a
// stream for an event is omitted in turn, and results show it.

#include "comm/peer/forked_ranks.hpp"

#if defined(ANNULUS_TEST_FORKS)

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using namespace std::chrono_literals;
using cuda_on_threads::Machine;

namespace {

constexpr std::size_t length = 64;

/// Forwards what it has received and then overwrites it. Returns the number of wrong bytes that work on the queue has
/// read.
std::size_t wrong_bytes_of(PeerProcessRing& ring) {
  std::array<ManagedBytes, 2> const buffers{ManagedBytes(length), ManagedBytes(length)};
  SpaceQueue<CudaMemory> const space;
  std::size_t wrong = 0;
  put(space.queue, [here = buffers[0].bytes(), rank = ring.rank()] {
    std::fill(here.begin(), here.end(), static_cast<std::byte>(rank));
  });
  for (int round = 1; round <= 12; ++round) {
    std::span const here = buffers[(round + 1) % 2].bytes(), there = buffers[round % 2].bytes();
    std::array const out{std::span<std::byte const>(here)};
    std::array const in{there};
    auto transfer = ring.start_shift(Channel::prefetched, 1, out, in, space.queue);
    transfer.wait(space.queue);
    put(space.queue, [=, &wrong, owner = ring_neighbour(ring.rank(), -round, ring.size())] {
      wrong += length - static_cast<std::size_t>(std::count(there.begin(), there.end(), std::byte(owner)));
      std::fill(here.begin(), here.end(), std::byte{0xEE});
    });
  }
  ring.finish(space.queue);
  return wrong;
}

/// Empty if no byte was wrong on any rank.
std::string complaint_of_ring(int ranks, int ranks_a_gpu) {
  auto const function = [](PeerProcessRing& ring) -> std::string {
    std::size_t const wrong = wrong_bytes_of(ring);
    return wrong == 0 ? std::string() : detail::message_of(wrong, " bytes are wrong");
  };
  std::string complaint;
  for (ForkedEnd const& end : run_forked_ranks({ranks, ranks_a_gpu}, function)) complaint += end.outcome.text;
  return complaint;
}

/// The lines of the source in which a ring waits for events. A ring of one rank needs no fork.
std::vector<unsigned> lines_of_waits() {
  cuda_on_threads::SharedWithForks const memory;
  auto& machine = Machine::instance();
  machine.waits.clear();
  PeerProcessRing ring({new_ring_name()});
  CHECK(wrong_bytes_of(ring) == 0);
  return {machine.waits.begin(), machine.waits.end()};
}

}  // namespace

TEST_CASE("results of processes are right whatever the pauses of the streams", "[peer][processes]") {
  for (int const ranks : {2, 3, 4})
    for (int repeat = 0; repeat < 10; ++repeat) CHECK(complaint_of_ring(ranks, 1 + repeat % 2) == "");
}

TEST_CASE("every omitted wait of a stream is seen in the results of processes", "[peer][processes]") {
  auto& machine = Machine::instance();
  auto const lines = lines_of_waits();
  CHECK(lines.size() == 4);  // for both ends before a copy, and for both copies after it
  for (unsigned const line : lines) {
    machine.omitted_wait = line;
    bool seen = false;
    for (int repeat = 0; repeat < 200 && !seen; ++repeat) seen = complaint_of_ring(3, 2) != "";
    machine.omitted_wait.reset();
    INFO("the wait of line " << line);
    CHECK(seen);
  }
}

TEST_CASE("a process that waits for work of its GPU submits the copies that others wait for", "[peer][processes]") {
  auto const ends = run_forked_ranks({2}, [](PeerProcessRing& ring) -> std::string {
    ManagedBytes const bytes(2 * length);
    SpaceQueue<CudaMemory> const space;
    std::array const out{std::span<std::byte const>(bytes.bytes().first(length))};
    std::array const in{bytes.bytes().last(length)};
    ring.all_gather({}, {});
    if (ring.rank() == 1) std::this_thread::sleep_for(200ms);  // so that rank 0 starts first
    auto transfer = ring.start_shift(Channel::prefetched, 1, out, in, space.queue);
    if (ring.rank() == 0) {
      put(space.queue, [] { std::this_thread::sleep_for(3s); });
      ring.finish(space.queue);
    }
    auto const start = std::chrono::steady_clock::now();
    transfer.wait(space.queue);
    bool const waited = std::chrono::steady_clock::now() - start > 1500ms;
    ring.finish(space.queue);
    return waited ? "a copy was submitted late" : "";
  });
  for (ForkedEnd const& end : ends) CHECK(end.outcome.text == "");
}

#endif
