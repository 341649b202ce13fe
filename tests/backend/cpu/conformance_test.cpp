// Runs the backend suite on the fast CPU backend, with one thread and with three.

#include "annulus/backend/cpu/cpu.hpp"
#include "conformance/backend_suite.hpp"

using namespace annulus_test;

TEST_CASE("CpuBackend is a backend", "[backend][cpu]") { backend_suite(HostImplementation<annulus::CpuBackend>{}); }

TEST_CASE("CpuBackend with three threads is a backend", "[backend][cpu]") {
  backend_suite(HostImplementation<annulus::CpuBackend>{[] { return annulus::CpuBackend{.threads = 3}; }});
}

TEMPLATE_TEST_CASE("CpuBackend, 16-bit operands: steps", "[backend][cpu]", Eigen::half, Eigen::bfloat16) {
  HostImplementation<annulus::CpuBackend> const implementation;
  backend_cases::empty_steps<TestType>(implementation);
  backend_cases::narrow_steps<TestType>(implementation, 570'000, 100);
}

TEST_CASE("the CPU backend supports everything", "[backend][cpu]") {
  for (auto const& [name, problem] : backend_cases::every_problem()) {
    INFO(name);
    CHECK(static_cast<bool>(annulus::CpuBackend().supports(problem)));
  }
}
