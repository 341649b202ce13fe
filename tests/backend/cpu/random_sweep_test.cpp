// Random problems of the reference backend's sweep, on the CPU backend.

#include <annulus/backend/cpu/cpu.hpp>

#include "integration/random_sweep.hpp"

using namespace annulus_test;

TEST_CASE("CPU, double: random problems agree with the oracle to 1e-12", "[slow][sweep]") {
  sweep<double, HostPlacement, annulus::CpuBackend>(1'000'000, 600, double_bounds);
  sweep<double, TransposedPlacement, annulus::CpuBackend>(2'000'000, 600, double_bounds);
}

TEST_CASE("CPU, float: random problems agree with the oracle to 2e-6", "[sweep]") {
  sweep<float, HostPlacement, annulus::CpuBackend>(3'000'000, 600, float_bounds);
  sweep<float, TransposedPlacement, annulus::CpuBackend>(4'000'000, 600, float_bounds);
}
