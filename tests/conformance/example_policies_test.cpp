// Runs the conformance suites on the communicator and the backend of the examples, which users copy.

#include "conformance/backend_suite.hpp"
#include "conformance/communicator_suite.hpp"
#include "plain_backend.hpp"
#include "socket_ring.hpp"

using namespace annulus_test;

TEST_CASE("the example's SocketRing is a communicator", "[comm][example]") {
  communicator_suite([](int ranks, auto function) { example::run_socket_ring(ranks, function); });
}

TEST_CASE("the example's SocketRing keeps its deadline", "[comm][example]") {
  constexpr std::chrono::milliseconds deadline(200);
  communicator_deadline_suite([&](int ranks, auto function) { example::run_socket_ring(ranks, function, deadline); },
                              deadline, {4});
}

TEST_CASE("the example's PlainBackend is a backend", "[backend][example]") {
  backend_suite(HostImplementation<example::PlainBackend>{});
}
