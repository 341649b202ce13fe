// AdamW, clipping and the learning rate against their definitions.

#include <cmath>
#include <numbers>

#include "finite_differences.hpp"
#include "train_bytes/adamw.hpp"

using namespace annulus_test;
using namespace train_bytes;

TEST_CASE("AdamW takes the steps of its definition", "[train_bytes]") {
  ModelShape const shape{.layers = 1, .width = 4, .heads = 2, .kv_heads = 1};
  auto parameters = Parameters<double>::initial(shape, 1);
  AdamW<double> optimizer(shape, 0.1);
  Index const weight = 5, gain = shape.parameters() - 1;  // only weights decay
  double mean[2]{}, square[2]{}, expected[2]{parameters.values()[weight], parameters.values()[gain]};
  for (int step = 1; step <= 5; ++step) {
    Column<double> const gradient = random_matrix(shape.parameters(), 1, static_cast<std::uint64_t>(step));
    optimizer.step(parameters, gradient, 0.01);
    for (int i = 0; i < 2; ++i) {
      double const g = gradient[i == 0 ? weight : gain];
      mean[i] = 0.9 * mean[i] + 0.1 * g;
      square[i] = 0.95 * square[i] + 0.05 * g * g;
      double const unbiased_mean = mean[i] / (1 - std::pow(0.9, step));
      double const unbiased_square = square[i] / (1 - std::pow(0.95, step));
      expected[i] -= 0.01 * (i == 0 ? 0.1 : 0.0) * expected[i];
      expected[i] -= 0.01 * unbiased_mean / (std::sqrt(unbiased_square) + 1e-8);
    }
    CHECK(parameters.values()[weight] == Approx(expected[0]).epsilon(1e-13));
    CHECK(parameters.values()[gain] == Approx(expected[1]).epsilon(1e-13));
  }
}

TEST_CASE("a long gradient is scaled to the limit, a short one is left", "[train_bytes]") {
  Column<double> gradient(2);
  gradient << 3, 4;
  CHECK(clip(gradient, 10) == 5);
  CHECK(gradient[0] == 3);
  CHECK(clip(gradient, 1) == 5);
  CHECK(gradient[0] == Approx(0.6));
  CHECK(gradient[1] == Approx(0.8));
}

TEST_CASE("the learning rate rises, then falls to a tenth", "[train_bytes]") {
  CHECK(learning_rate_factor(0, 9, 0) == Approx(0.1));
  CHECK(learning_rate_factor(4, 9, 0) == Approx(0.5));
  CHECK(learning_rate_factor(9, 9, 0) == Approx(1));
  CHECK(learning_rate_factor(0, 0, 0) == Approx(1));
  CHECK(learning_rate_factor(50, 9, 0.5) == Approx(0.55));
  CHECK(learning_rate_factor(99, 9, 1) == Approx(0.1));
  CHECK(learning_rate_factor(99, 9, 1.5) == Approx(0.1));
}
