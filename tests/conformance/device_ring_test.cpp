// Rings of a device's memory over rings of host memory, staged and direct.

#include "conformance/device_ring.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "annulus/comm/simulated_ring.hpp"
#include "conformance/communicator_suite.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Staged = StagedRing<ForeignMemory, HostOnlyRing<SimulatedRing>, ForeignStaging>;
static_assert(CallRecordingCommunicator<Staged> && !ZeroCopyCommunicator<Staged>);
static_assert(Communicator<DeviceRing<ForeignMemory, SimulatedRing>>);

}  // namespace

TEST_CASE("a ring that stages the bytes of a device is a communicator", "[comm][foreign]") {
  communicator_suite(
      [](int ranks, auto function) {
        run_ring(ranks, [&](SimulatedRing& ring) {
          HostOnlyRing host(ring);
          ForeignStaging staging;
          Staged staged(host, staging);
          function(staged);
        });
      },
      {1, 2, 3});
}

TEST_CASE("a ring that passes on the bytes of a device is a communicator", "[comm][foreign]") {
  communicator_suite(
      [](int ranks, auto function) {
        run_ring(ranks, [&](SimulatedRing& ring) {
          DeviceRing<ForeignMemory, SimulatedRing> direct(ring);
          function(direct);
        });
      },
      {1, 3});
}

TEST_CASE("a shift reuses the host memory of earlier ones", "[comm][foreign]") {
  for (auto const& [copied, stages] : run_ring(2, [](SimulatedRing& ring) {
         HostOnlyRing host(ring);
         struct Counting : ForeignStaging {
           int allocations = 0;
           auto allocate(Index bytes) {
             ++allocations;
             return ForeignStaging::allocate(bytes);
           }
         } staging;
         StagedRing<ForeignMemory, HostOnlyRing<SimulatedRing>, Counting> staged(host, staging);
         ForeignAllocation out(100), in(100), small_out(10), small_in(10);
         DeferredQueue work({});
         ForeignQueue const queue{&work};
         for (int round = 0; round < 20; ++round) {
           auto const start = [&](Channel channel, ForeignAllocation& from, ForeignAllocation& to) {
             std::array const leaving{std::span<std::byte const>(from.bytes())};
             std::array const arriving{to.bytes()};
             return staged.start_shift(channel, 1, leaving, arriving, queue);
           };
           auto small = start(Channel::carried, small_out, small_in);
           auto whole = start(Channel::prefetched, out, in);
           small.wait(queue);
           whole.wait(queue);
         }
         return std::pair(staging.copied, staging.allocations);
       })) {
    CHECK(copied == 20 * 2 * (100 + 10));
    CHECK(stages <= 3);
  }
}

namespace {

/// Shifts bytes that work on the queue writes, into bytes that work before it has read. Returns what has arrived, as
/// work after the wait for the transfer reads it, what the work before the shift has read, and 1 if work was pending
/// when the shift had been started.
template <class Ring>
std::array<std::byte, 3> shift_between_work(Ring& ring) {
  ForeignAllocation from(8), to(8);
  DeferredQueue work({.when = DeferralOptions::lazy});
  ForeignQueue const queue{&work};
  std::array<std::byte, 3> read{};
  work.push([&] { to.data()[7] = std::byte{40}; });
  work.push([&] { std::fill_n(from.data(), 8, static_cast<std::byte>(ring.rank() + 1)); });
  work.push([&] { read[1] = to.data()[7]; });
  std::array const leaving{std::span<std::byte const>(from.bytes())};
  std::array const arriving{to.bytes()};
  auto transfer = ring.start_shift(Channel::prefetched, 1, leaving, arriving, queue);
  read[2] = std::byte{work.pending() > 0};
  transfer.wait(queue);
  work.push([&] { std::fill_n(from.data(), 8, std::byte{99}); });
  work.push([&] { read[0] = to.data()[7]; });
  ring.finish(queue);
  return read;
}

}  // namespace

TEST_CASE("a shift over a ring of host memory waits for the work before it, and finish for that after it",
          "[comm][foreign]") {
  auto const check = [](auto const& all) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      CHECK(all[r][0] == static_cast<std::byte>((r + 2) % 3 + 1));
      CHECK(all[r][1] == std::byte{40});
      CHECK(all[r][2] == std::byte{0});
    }
  };
  check(run_ring(3, [](SimulatedRing& ring) {
    HostOnlyRing host(ring);
    ForeignStaging staging;
    Staged staged(host, staging);
    return shift_between_work(staged);
  }));
  check(run_ring(3, [](SimulatedRing& ring) {
    DeviceRing<ForeignMemory, SimulatedRing> direct(ring);
    return shift_between_work(direct);
  }));
}

namespace {

/// A memory space without a queue that is not host memory.
struct ImmediateMemory {
  struct Queue {};
};

}  // namespace

static_assert(Communicator<DeviceRing<ImmediateMemory, SimulatedRing>>);
static_assert(Communicator<StagedRing<ImmediateMemory, SimulatedRing, ForeignStaging>>);
