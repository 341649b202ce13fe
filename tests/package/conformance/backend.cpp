#include <annulus/conformance/backend_suite.hpp>

#include "plain_backend.hpp"

TEST_CASE("PlainBackend is a backend") {
  annulus_test::backend_suite(annulus_test::HostImplementation<example::PlainBackend>{});
}
