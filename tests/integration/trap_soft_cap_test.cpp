// Soft cap at both ends of its range: a cap far above all products leaves them unchanged, one far below leaves only
// their signs.

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "integration/solve.hpp"
#include "support/catch.hpp"

using namespace annulus_test;

TEMPLATE_TEST_CASE("soft cap: correct from the smallest to the largest cap", "[trap][soft_cap]", float, double) {
  bool const single = std::is_same_v<TestType, float>;
  double const smallest = single ? 0x1p-126 : 0x1p-1022, largest = single ? 0x1p101 : 0x1p968;
  // Products of about 1, small products, and for a small cap products of its size.
  for (auto [cap, scale] : {std::pair{largest, 1.0},
                            {largest, 1e-3},
                            {std::sqrt(largest), 1.0},
                            {smallest, 1.0},
                            {std::sqrt(smallest), 1.0},
                            {std::sqrt(smallest), std::sqrt(smallest)}})
    for (bool with_bias : {false, true}) {
      RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .head_dim = 8}, 3, annulus::Zigzag{});
      problem.dense.logit_softcap = cap;
      problem.dense.softmax_scale = scale;
      problem.dense.causal = true;
      if (with_bias) give_bias(problem, 1, 4);
      INFO("cap " << cap << ", scale " << scale << (with_bias ? ", bias" : ""));
      CHECK(complaint<TestType>(problem) == "");
    }
}

TEMPLATE_TEST_CASE("soft cap: the error of a cap out of range states the range", "[trap][soft_cap]", float, double) {
  bool const single = std::is_same_v<TestType, float>;
  double const smallest = single ? 0x1p-126 : 0x1p-1022, largest = single ? 0x1p101 : 0x1p968;
  for (double cap : {std::nextafter(largest, 2 * largest), static_cast<double>(std::numeric_limits<TestType>::max()),
                     std::nextafter(smallest, 0.0)}) {
    RingProblem problem = small_ring_problem({}, 2);
    problem.dense.logit_softcap = cap;
    CHECK_THROWS_WITH(solve<TestType>(problem),
                      Catch::Matchers::ContainsSubstring("logit soft cap is") &&
                          Catch::Matchers::ContainsSubstring(single ? "1.1754943508222875e-38 to 2.5353012004564588e+30"
                                                                    : "2.2250738585072014e-308 to 2.49480038691839") &&
                          Catch::Matchers::ContainsSubstring("or 0 for none"));
  }
}
