#include "annulus/numerics/softmax.hpp"

#include <cmath>

#include "support/catch.hpp"

using annulus::LogitRule;

TEST_CASE("without a cap the logit is the scaled product", "[numerics]") {
  CHECK(LogitRule<double>{0.125, 0}(8) == 1.0);
  CHECK(LogitRule<double>{-2, 0}(3) == -6.0);
  CHECK(LogitRule<double>{0, 0}(1e300) == 0.0);
  CHECK(LogitRule<double>{-2, 0}.slope(-6) == -2.0);
}

TEST_CASE("the cap comes after the scale", "[numerics]") {
  LogitRule<double> const rule{0.5, 30};
  CHECK(rule(40) == Approx(30 * std::tanh(20.0 / 30)).epsilon(1e-15));
  CHECK(rule(-40) == -rule(40));
  CHECK(rule(0) == 0.0);
}

TEST_CASE("capped logits stay within the cap, and their slope vanishes there", "[numerics]") {
  LogitRule<double> const rule{1, 5};
  for (double product : {1e2, 1e4, 1e10, 1e300}) {
    CHECK(rule(product) <= 5.0);
    CHECK(rule(product) >= 5.0 * (1 - 1e-15));
    CHECK(rule(-product) == -rule(product));
    CHECK(std::abs(rule.slope(rule(product))) < 1e-15);
  }
}

TEST_CASE("a very large cap has no effect", "[numerics]") {
  // c tanh(x / c) = x - x^3 / (3 c^2) + ...
  CHECK(LogitRule<double>{1, 1e6}(3) == Approx(3 - 27 / 3e12).epsilon(1e-15));
}

TEST_CASE("the slope is the derivative of the logit", "[numerics]") {
  double const scale = GENERATE(0.125, 1.0, -0.7, 0.0), softcap = GENERATE(0.0, 0.5, 2.0, 50.0);
  LogitRule<double> const rule{scale, softcap};
  for (double product : {-9.0, -1.3, 0.0, 0.4, 2.0, 11.0}) {
    CAPTURE(scale, softcap, product);
    // The central difference errs by h^2 / 6 times the third derivative, at most 2 |scale|^3 / softcap^2, and by the
    // rounding of two values of at most 12, over 2 h.
    double const h = 1e-5;
    double const truncation = softcap > 0 ? h * h / 3 / (softcap * softcap) : 0;
    double const rounding = 12 * 2.3e-16 / h;
    double const difference = (rule(product + h) - rule(product - h)) / (2 * h);
    CHECK(std::abs(rule.slope(rule(product)) - difference) <= truncation + rounding);
  }
}

TEST_CASE("single precision follows the same rule", "[numerics]") {
  LogitRule<float> const rule{0.25f, 3.0f};
  LogitRule<double> const wide{0.25, 3.0};
  for (float product : {-20.0f, -1.0f, 0.0f, 7.0f}) {
    CHECK(rule(product) == Approx(wide(static_cast<double>(product))).epsilon(1e-6));
    CHECK(rule.slope(rule(product)) == Approx(wide.slope(wide(static_cast<double>(product)))).margin(1e-6));
  }
}
