// A backend and a communicator of another memory space, whose calls return before the work is done: the cases of every
// backend, in both ways of being late.

#include "conformance/backend_suite.hpp"

using namespace annulus_test;

TEST_CASE("a foreign backend that works with delays is a backend", "[backend][foreign]") {
  backend_suite(ForeignImplementation<>{DeferralOptions::delayed});
  CHECK(ForeignRegistry::instance().allocations() == 0);
  CHECK(ForeignRegistry::instance().take_overruns() == 0);
}

TEST_CASE("a foreign backend that does nothing before it is waited for is a backend", "[backend][foreign]") {
  backend_suite(ForeignImplementation<>{DeferralOptions::lazy});
  CHECK(ForeignRegistry::instance().allocations() == 0);
  CHECK(ForeignRegistry::instance().take_overruns() == 0);
}
