// Weights of logits so large that the rounding error of one product exceeds the range of exponents. Compiled a second
// time for an instruction set with fused multiply-adds, which do not round the product.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "annulus/backend/cpu/panel/online_softmax.hpp"
#include "support/catch.hpp"

using namespace annulus;

namespace {

/// Four equal keys for each lane of a panel: each has weight 1, up to the rounding error of its logit if below 1.
template <class A>
void check_weights_of_equal_keys(A magnitude) {
  constexpr Index rows = 4, lanes = cpu::detail::Blocking<A>::panel;
  A const scale = A(0.0884);
  std::vector<A> scores, maximum(lanes), sum(lanes, A(0));
  for (Index i = 0; i < lanes; ++i) {
    A const score = magnitude * (A(1) + A(i) / A(7)) * (i % 2 == 0 ? A(1) : A(-1));
    A const volatile product = score * scale;  // rounded, whatever the instruction set
    maximum[static_cast<std::size_t>(i)] = product;
    scores.push_back(score);
  }
  for (Index row = 1; row < rows; ++row) scores.insert(scores.end(), scores.begin(), scores.begin() + lanes);
  constexpr int vectors = cpu::detail::Blocking<A>::panel_vectors;
  cpu::detail::online_softmax<vectors>(scores.data(), rows, scale, maximum.data(), sum.data(), {});
  cpu::detail::Vector<A> factor[vectors];
  cpu::detail::remove_cut(maximum.data(), sum.data(), factor);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    A const logit = std::abs(maximum[i]);
    constexpr A epsilon = std::numeric_limits<A>::epsilon();
    // Of the maximum, and of the factor that turns scores into exponents.
    A rounding = logit < cpu::detail::huge_logit<A> ? (std::nextafter(logit, 2 * logit) - logit) / 2 : A(0);
    if (logit < A(cpu::detail::large_statistic)) rounding += logit * epsilon / 2;
    CHECK(std::abs(std::log(sum[i] / A(rows))) <= rounding + 8 * epsilon);
  }
}

}  // namespace

TEST_CASE("equal keys have equal weights, however large their logits", "[cpu]") {
  for (int exponent : {0, 10, 23, 24, 26, 40, 80, 120}) {
    CAPTURE(exponent);
    check_weights_of_equal_keys<float>(std::ldexp(1.0f, exponent));
    check_weights_of_equal_keys<double>(std::ldexp(1.0, 8 * exponent));
  }
}
