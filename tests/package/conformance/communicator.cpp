#include <annulus/conformance/communicator_suite.hpp>

#include "socket_ring.hpp"

TEST_CASE("SocketRing is a communicator") {
  annulus_test::communicator_suite([](int ranks, auto function) { example::run_socket_ring(ranks, function); });
}
