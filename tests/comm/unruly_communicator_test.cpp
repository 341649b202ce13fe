// The unruly communicator detects misuse: each planted fault must be found, and the correct loop must pass.

#include "support/unruly_communicator.hpp"

#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Unruly = UnrulyCommunicator<SimulatedRing>;

enum class Fault { none, overwrites_early, reads_early, writes_incoming_early, one_buffer };

/// Each rank sums the values that pass around the ring. `fault`: the mistake that the loop makes.
float sum_around_the_ring(Unruly& ring, Fault fault) {
  std::vector<float> here(64, static_cast<float>(ring.rank() + 1)), next(64);
  float sum = here[0];
  for (int step = 1; step < ring.size(); ++step) {
    std::array const out = {std::as_bytes(std::span(here))};
    std::array const in = {std::as_writable_bytes(std::span(fault == Fault::one_buffer ? here : next))};
    auto transfer = ring.start_shift(Channel::prefetched, 1, out, in);
    if (fault == Fault::overwrites_early) here[63] = 0;
    if (fault == Fault::reads_early) sum += next[0];
    if (fault == Fault::writes_incoming_early) next[5] = 0;
    transfer.wait();
    if (fault != Fault::reads_early) sum += next[0];
    here.swap(next);
  }
  return sum;
}

std::vector<float> sums(Fault fault, std::uint64_t seed) {
  return run_ring(4, [&](SimulatedRing& simulated) {
    Unruly ring(simulated, {.seed = seed});
    return sum_around_the_ring(ring, fault);
  });
}

}  // namespace

TEST_CASE("a correct loop passes an unruly ring, whatever the seed", "[support]") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) CHECK(sums(Fault::none, seed) == std::vector<float>(4, 10));
}

TEST_CASE("an unruly ring finds a send buffer that is overwritten early", "[support]") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) CHECK_THROWS_AS(sums(Fault::overwrites_early, seed), MisusedTransfer);
}

TEST_CASE("an unruly ring gives NaN to a loop that reads before wait()", "[support]") {
  for (std::uint64_t seed = 0; seed < 5; ++seed)
    for (float const sum : sums(Fault::reads_early, seed)) CHECK(std::isnan(sum));
}

TEST_CASE("an unruly ring finds a receive buffer that is written early", "[support]") {
  CHECK_THROWS_AS(sums(Fault::writes_incoming_early, 0), MisusedTransfer);
}

TEST_CASE("an unruly ring refuses one buffer for both directions", "[support]") {
  CHECK_THROWS_AS(sums(Fault::one_buffer, 0), MisusedTransfer);
}

TEST_CASE("an unruly ring withholds arrived data until the wait of their own transfer", "[support]") {
  SelfRing self;
  UnrulyCommunicator ring(self, {.seed = 3});
  // With one rank all data arrive at once; each shift shows them only after its own wait.
  std::array<std::vector<std::byte>, 3> leaving, arriving;
  std::vector<TransferOf<UnrulyCommunicator<SelfRing>>> transfers;
  for (std::size_t c = 0; c < 3; ++c) {
    leaving[c].assign(10, static_cast<std::byte>(c));
    arriving[c].resize(10);
    std::array const out = {std::span<std::byte const>(leaving[c])};
    std::array const in = {std::span<std::byte>(arriving[c])};
    transfers.push_back(ring.start_shift(static_cast<Channel>(c), 1, out, in));
  }
  for (std::size_t const c : {2u, 0u, 1u}) {
    CHECK(arriving[c][9] == std::byte{0xFF});
    transfers[c].wait();
    CHECK(arriving[c] == leaving[c]);
  }
}
