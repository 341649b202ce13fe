// Runs the backend suite on a backend and a communicator of another memory space, whose calls return before the work is
// done: with random delays, and with all work deferred until it is waited for.

#include "conformance/backend_suite.hpp"
#include "conformance/foreign_implementation.hpp"

using namespace annulus_test;

TEST_CASE("a foreign backend that works with delays is a backend", "[backend][foreign]") {
  backend_suite(ForeignImplementation<>{DeferralOptions::delayed});
  CHECK(ForeignRegistry::instance().allocations() == 0);
  CHECK(ForeignRegistry::instance().take_overruns() == 0);
}

TEST_CASE("a foreign backend that defers all work until it is waited for is a backend", "[backend][foreign]") {
  backend_suite(ForeignImplementation<>{DeferralOptions::lazy});
  CHECK(ForeignRegistry::instance().allocations() == 0);
  CHECK(ForeignRegistry::instance().take_overruns() == 0);
}
