// Runs the backend suite on the fast CPU backend, with one thread and with three.

#include "annulus/backend/cpu/cpu.hpp"
#include "conformance/backend_suite.hpp"

using namespace annulus_test;

namespace {

/// Three threads for each call, whatever the machine has.
struct ThreadedImplementation : HostImplementation<annulus::CpuBackend> {
  annulus::CpuBackend make(std::uint64_t) const { return {.threads = 3}; }
};

}  // namespace

TEST_CASE("CpuBackend is a backend", "[backend][cpu]") { backend_suite(HostImplementation<annulus::CpuBackend>{}); }

TEST_CASE("CpuBackend with three threads is a backend", "[backend][cpu]") { backend_suite(ThreadedImplementation{}); }

TEST_CASE("the CPU backend supports everything", "[backend][cpu]") {
  for (auto const& [name, problem] : backend_cases::every_problem()) {
    INFO(name);
    CHECK(static_cast<bool>(annulus::CpuBackend().supports(problem)));
  }
}
