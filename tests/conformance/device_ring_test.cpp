// Rings of a device's memory over rings of host memory, staged and direct.

#include "conformance/device_ring.hpp"

#include <array>
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
         for (int round = 0; round < 20; ++round) {
           auto const start = [&](Channel channel, ForeignAllocation& from, ForeignAllocation& to) {
             std::array const leaving{std::span<std::byte const>(from.bytes())};
             std::array const arriving{to.bytes()};
             return staged.start_shift(channel, 1, leaving, arriving);
           };
           auto small = start(Channel::carried, small_out, small_in);
           auto whole = start(Channel::prefetched, out, in);
           small.wait();
           whole.wait();
         }
         return std::pair(staging.copied, staging.allocations);
       })) {
    CHECK(copied == 20 * 2 * (100 + 10));
    CHECK(stages <= 3);
  }
}
