// Backend conformance suite on a GPU, and on an emulated one (tests/emulated_cuda).

#include "backend/cuda/implementation.hpp"

using namespace annulus_test;

TEST_CASE("CudaBackend is a backend", "[backend][cuda][suite]") { backend_suite(CudaImplementation{}); }

TEMPLATE_TEST_CASE("CudaBackend, 16-bit operands: steps", "[backend][cuda][suite]", Eigen::half, Eigen::bfloat16) {
  CudaImplementation const implementation;
  backend_cases::empty_steps<TestType>(implementation);
  backend_cases::narrow_steps<TestType>(implementation, 571'000, 60);
}
