// Order of the copies of a ring of GPUs, on the CUDA runtime of threads: each wait of a stream for an event is omitted
// in turn, and results show it. Errors of the runtime close the ring, and nothing that the ring has made is left.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "annulus/comm/peer_ring.hpp"
#include "support/catch.hpp"
#include "support/cuda_space.hpp"

using namespace annulus;
using namespace annulus_test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using cuda_on_threads::Machine;

// The sanitizer reports the races that the tests of omitted waits make.
#if defined(__SANITIZE_THREAD__)
#define ANNULUS_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ANNULUS_THREAD_SANITIZER
#endif
#endif

namespace {

/// Passes a byte pattern around three ranks, each of which forwards what it has received and then overwrites it.
/// Returns the number of wrong bytes that work on the queues has read.
std::size_t wrong_bytes() {
  constexpr std::size_t size = 64;
  // They outlive the streams that copy them, which the end of a rank does not await where a wait is omitted.
  std::array<std::array<ManagedBytes, 2>, 3> bytes;
  for (auto& of_rank : bytes) of_rank = {ManagedBytes(size), ManagedBytes(size)};
  auto const wrong = run_peer_ring(gpus_of(3, 2), [&bytes](PeerRing& ring) {
    auto const& buffers = bytes[static_cast<std::size_t>(ring.rank())];
    SpaceQueue<CudaMemory> const space;
    std::size_t wrong_here = 0;
    put(space.queue, [here = buffers[0].bytes(), rank = ring.rank()] {
      std::fill(here.begin(), here.end(), static_cast<std::byte>(rank));
    });
    for (int round = 1; round <= 6; ++round) {
      std::span const here = buffers[(round + 1) % 2].bytes(), there = buffers[round % 2].bytes();
      std::array const out{std::span<std::byte const>(here)};
      std::array const in{there};
      auto transfer = ring.start_shift(Channel::prefetched, 1, out, in, space.queue);
      transfer.wait(space.queue);
      put(space.queue, [=, &wrong_here, owner = ring_neighbour(ring.rank(), -round, 3)] {
        wrong_here += size - static_cast<std::size_t>(std::count(there.begin(), there.end(), std::byte(owner)));
        std::fill(here.begin(), here.end(), std::byte{0xEE});
      });
    }
    ring.finish(space.queue);
    return wrong_here;
  });
  return wrong[0] + wrong[1] + wrong[2];
}

}  // namespace

TEST_CASE("results are right whatever the pauses of the streams", "[peer]") {
  for (int repeat = 0; repeat < 40; ++repeat) CHECK(wrong_bytes() == 0);
}

#if !defined(ANNULUS_THREAD_SANITIZER)

TEST_CASE("every omitted wait of a stream is seen in the results", "[peer]") {
  auto& machine = Machine::instance();
  machine.waits.clear();
  CHECK(wrong_bytes() == 0);
  std::vector<unsigned> const waits(machine.waits.begin(), machine.waits.end());
  CHECK(waits.size() == 4);  // for both ends before a copy, and for both copies after it
  for (unsigned const line : waits) {
    machine.omitted_wait = line;
    bool seen = false;
    for (int repeat = 0; repeat < 200 && !seen; ++repeat) seen = wrong_bytes() != 0;
    machine.omitted_wait.reset();
    INFO("the wait of line " << line);
    CHECK(seen);
  }
  CHECK(wrong_bytes() == 0);
}

#endif

TEST_CASE("an error of CUDA in a copy closes the ring, whichever rank submits it", "[peer]") {
  auto& machine = Machine::instance();
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<std::string> texts(3);
    std::array<ManagedBytes, 6> bytes;
    for (auto& one : bytes) one = ManagedBytes(8);
    auto const function = [&](PeerRing& ring) {
      auto const r = static_cast<std::size_t>(ring.rank());
      SpaceQueue<CudaMemory> const space;
      std::array const out{std::span<std::byte const>(bytes[2 * r].bytes())};
      std::array const in{bytes[2 * r + 1].bytes()};
      try {
        for (;;) {
          auto transfer = ring.start_shift(Channel::carried, 1, out, in, space.queue);
          transfer.wait(space.queue);
          ring.finish(space.queue);
          if (ring.rank() == repeat % 3) machine.failing_copies = 1;
        }
      } catch (Error const& error) {
        texts[r] = error.what();
      }
    };
    run_peer_ring(gpus_of(3, 1), function);
    machine.failing_copies = 0;
    for (auto const& text : texts) CHECK_THAT(text, ContainsSubstring("cudaMemcpyAsync on GPU "));
  }
}

TEST_CASE("work that fails on a GPU closes the ring, and all ranks name its rank", "[peer]") {
  auto& machine = Machine::instance();
  std::vector<std::string> texts(3);
  std::vector<Rank> blamed(3, CommunicationError::unknown);
  auto const function = [&](PeerRing& ring) {
    auto const r = static_cast<std::size_t>(ring.rank());
    ManagedBytes const from(8), to(8);
    SpaceQueue<CudaMemory> const space;
    std::array const out{std::span<std::byte const>(from.bytes())};
    std::array const in{to.bytes()};
    try {
      put(space.queue, [&machine, r] {
        std::this_thread::sleep_for(50ms);
        if (r == 1) machine.failed[1] = true;
      });
      for (;;) {
        ring.start_shift(Channel::carried, 1, out, in, space.queue).wait(space.queue);
        ring.finish(space.queue);
      }
    } catch (CommunicationError const& error) {
      texts[r] = error.what();
      blamed[r] = error.neighbour();
    }
  };
  CHECK_THROWS_WITH(run_peer_ring({0, 1, 2}, function), ContainsSubstring("cudaEventQuery on GPU 1: "));
  machine.failed[1] = false;
  for (std::size_t r : {0u, 2u}) {
    CHECK_THAT(texts[r], ContainsSubstring("rank 1 left the ring: cudaEventQuery on GPU 1: "));
    CHECK(blamed[r] == 1);
  }
}

TEST_CASE("rings of GPUs leave no stream, event or memory", "[peer]") {
  auto const& machine = Machine::instance();
  CHECK(wrong_bytes() == 0);
  CHECK_THROWS_AS(run_peer_ring(gpus_of(2, 1),
                                [](PeerRing& ring) {
                                  ManagedBytes bytes(8);
                                  SpaceQueue<CudaMemory> const space;
                                  std::array const out{std::span<std::byte const>(bytes.bytes().first(4))};
                                  std::array const in{bytes.bytes().last(4)};
                                  auto transfer = ring.start_shift(Channel::carried, 1, out, in, space.queue);
                                  if (ring.rank() == 1) throw Error("enough");
                                  transfer.wait(space.queue);
                                  ring.start_shift(Channel::carried, 1, out, in, space.queue).wait(space.queue);
                                }),
                  Error);
  CHECK(machine.streams == 0);
  CHECK(machine.events == 0);
  CHECK(machine.allocations == 0);
}

TEST_CASE("repeated shifts make no event", "[peer]") {
  auto const& machine = Machine::instance();
  run_peer_ring(gpus_of(2, 1), [&](PeerRing& ring) {
    ManagedBytes bytes(8);
    SpaceQueue<CudaMemory> const space;
    std::array const out{std::span<std::byte const>(bytes.bytes().first(4))};
    std::array const in{bytes.bytes().last(4)};
    std::optional<int> events;
    for (int round = 0; round < 200; ++round) {
      auto transfer = ring.start_shift(Channel::prefetched, 1, out, in, space.queue);
      transfer.wait(space.queue);
      std::array<std::byte, 2> all{};
      ring.all_gather(std::span(all).first(1), all);
      if (!events) events = machine.events;
      if (*events != machine.events) throw Error("an event was made");
    }
    ring.finish(space.queue);
  });
  CHECK(machine.events == 0);
}
