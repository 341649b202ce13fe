// Random sweeps over masks, shardings, ranks, heads and operands, forward and backward, against the oracle.

#include "integration/random_sweep.hpp"

using namespace annulus_test;

TEST_CASE("double: random problems agree with the oracle to 1e-12", "[slow][sweep]") {
  sweep<double, HostPlacement>(1'000'000, 600, double_bounds);
  sweep<double, TransposedPlacement>(2'000'000, 600, double_bounds);
}

TEST_CASE("float: random problems agree with the oracle to 2e-6", "[sweep]") {
  sweep<float, HostPlacement>(3'000'000, 600, float_bounds);
  sweep<float, TransposedPlacement>(4'000'000, 600, float_bounds);
}

TEST_CASE("float operands with sums in double: the only error is the rounding of the results", "[sweep]") {
  // lse and results are rounded to float once; gradients see the rounded lse and output.
  sweep<float, HostPlacement, annulus::DoubleReferenceBackend>(5'000'000, 100, float_bounds);
}
