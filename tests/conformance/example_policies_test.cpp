// Runs the conformance suites on the communicator and the backend of the examples, which users copy.

#include <atomic>

#include "conformance/backend_suite.hpp"
#include "conformance/communicator_suite.hpp"
#include "plain_backend.hpp"
#include "socket_ring.hpp"

using namespace annulus_test;

TEST_CASE("the example's SocketRing is a communicator", "[comm][example]") {
  communicator_suite([](int ranks, auto function) { example::run_socket_ring(ranks, function); });
}

TEST_CASE("the example's SocketRing: a wait ends at the deadline on all ranks, and names the late rank",
          "[comm][example]") {
  using namespace std::chrono_literals;
  std::vector<annulus::Rank> blamed(4, annulus::CommunicationError::unknown);
  std::atomic<int> given_up = 0;
  auto const end = std::chrono::steady_clock::now() + 30s;
  auto const run = [&](example::SocketRing& ring) {
    while (ring.rank() == 2 && given_up < 3 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    std::vector<std::byte> mine(8), all(32);
    try {
      // The late rank finds the records of the others in the first round, and the ring closed in the second.
      for (int round = 0; round < 2; ++round) ring.all_gather(mine, all);
    } catch (annulus::CommunicationError const& error) {
      blamed[static_cast<std::size_t>(ring.rank())] = error.neighbour();
      ++given_up;
      throw;
    }
  };
  CHECK_THROWS_AS(example::run_socket_ring(4, run, 400ms), annulus::CommunicationError);
  CHECK(blamed == std::vector<annulus::Rank>(4, 2));
  CHECK(std::chrono::steady_clock::now() < end);
}

TEST_CASE("the example's PlainBackend is a backend", "[backend][example]") {
  backend_suite(HostImplementation<example::PlainBackend>{});
}
