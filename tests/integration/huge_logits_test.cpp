// Rows whose logits are all huge: lse alone cannot represent the logarithm of the number of keys, yet the gradients,
// which the oracle judges, must be those of the forward pass.

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "integration/solve.hpp"
#include "support/catch.hpp"
#include "support/huge_logits.hpp"

using namespace annulus_test;
using annulus::Rotation;

namespace {

/// With 16-bit operands the weights, the output in delta, and the result are rounded, and in the CPU backend also the
/// gradient of a logit.
template <class T>
Bounds bounds_of_type() {
  if constexpr (sizeof(T) > 2) {
    return bounds_of<T>();
  } else {
    double const rounding = std::is_same_v<T, Eigen::half> ? 0x1p-11 : 0x1p-8;
    return {4 * rounding, 4 * rounding};
  }
}

template <class T>
std::string complaint_about(RingProblem problem) {
  RingResult const result = solve<T>(problem);
  return judge(problem, result, bounds_of_type<T>()).complaint;
}

std::vector<annulus::Sharding> const shardings{annulus::Contiguous{}, annulus::Zigzag{}};

}  // namespace

TEMPLATE_TEST_CASE("huge logits: products of about 1e9, in double 1e30, among ordinary rows", "[trap][huge]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (auto const& sharding : shardings)
      for (Rotation rotation : {Rotation::keys, Rotation::queries})
        for (bool with_sinks : {false, true}) {
          auto problem = huge_products(huge_unit<TestType>, ranks, sharding, rotation, with_sinks);
          CHECK(complaint_about<TestType>(problem) == "");
          problem.dense.causal = true;
          problem.dense.dropout_probability = 0.25;
          CHECK(complaint_about<TestType>(problem) == "");
        }
}

TEMPLATE_TEST_CASE("huge logits: the lowest finite bias on all keys of some rows", "[trap][huge]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  // The judge squares values in double.
  double const lowest = std::is_same_v<T, double> ? static_cast<double>(std::numeric_limits<float>::lowest())
                                                  : static_cast<double>(std::numeric_limits<T>::lowest());
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (auto const& sharding : shardings) CHECK(complaint_about<T>(huge_bias(lowest, ranks, sharding)) == "");
}

TEMPLATE_TEST_CASE("huge logits: the weights of a row add up to 1 in the backward pass", "[trap][huge]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  // The products are rounded, and both passes have to round them alike. Keys are equal in groups of four.
  double const largest = std::is_same_v<T, Eigen::half> ? 0x1p13 : 0x1p50;  // keeps products and gradients finite
  for (double reach : {1.0, 0x1p10, 0x1p13, std::min(0x1p15, largest), std::min(0x1p20, largest), largest})
    for (int ranks : {1, 3})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        RingProblem problem = small_ring_problem({.query_length = 48, .head_dim = 13, .value_dim = 2}, ranks,
                                                 annulus::Contiguous{}, rotation);
        OracleProblem& d = problem.dense;
        auto const row = static_cast<std::size_t>(d.kv_heads * d.head_dim);
        for (double& value : d.q) value *= reach;
        for (double& value : d.k) value *= reach;
        for (std::size_t i = 0; i < d.k.size(); ++i) d.k[i] = d.k[i / (4 * row) * 4 * row + i % row];
        for (double& value : problem.dout) value = 1;
        RingResult const result = solve<T>(problem);
        double sum = 0, rows = static_cast<double>(d.query_length * d.query_heads);
        for (double value : result.dv) sum += value / static_cast<double>(d.value_dim);
        INFO(problem.text << ", operands of " << reach);
        CHECK(std::abs(sum / rows - 1) <= bounds_of_type<T>().of_result);
      }
}

TEMPLATE_TEST_CASE("huge logits: lse and its remainder together are the log-sum-exp", "[trap][huge]", float, double) {
  using T = TestType;
  RingProblem problem = huge_products(huge_unit<T>, 1, annulus::Contiguous{}, Rotation::keys, false);
  OracleProblem const& d = problem.dense;
  with_asked_backend([&](auto& backend) {
    annulus::SelfRing ring;
    auto const tensor = [](std::vector<double> const& values, Index rows, annulus::Index heads, Index dim) {
      Eigen::Tensor<T, 4, Eigen::RowMajor> result(1, rows, heads, dim);
      std::copy(values.begin(), values.end(), result.data());
      return result;
    };
    auto const q = tensor(d.q, d.query_length, d.query_heads, d.head_dim);
    auto const k = tensor(d.k, d.key_length, d.kv_heads, d.head_dim);
    auto const v = tensor(d.v, d.key_length, d.kv_heads, d.value_dim);
    auto const dout = tensor(problem.dout, d.query_length, d.query_heads, d.value_dim);
    annulus::RingAttention attention(ring, backend, problem.options);
    auto const forward = attention.forward(q, k, v);
    for (annulus::Index h = 0; h < d.query_heads; ++h)
      for (annulus::Index i = 0; i < d.query_length; ++i) {
        if (i % 3 == 2) continue;
        // 18 keys tie for the largest logit where it is positive, 6 where it is negative.
        double const logit = (i % 3 == 0 ? 1 : -0.5) * huge_unit<T> * huge_unit<T>;
        CHECK(forward.lse(0, h, i) == static_cast<T>(logit));
        CHECK(forward.lse_remainder(0, h, i) ==
              Approx(std::log(i % 3 == 0 ? 18.0 : 6.0)).epsilon(4 * std::numeric_limits<T>::epsilon()));
      }

    // It is optional in the *_into calls; without it a gradient is wrong by the number of keys that tie.
    auto output = forward.output;
    auto lse = forward.lse, remainder = forward.lse;
    attention.forward_into(q, k, v, output, lse, {}, remainder);
    bool same = true;
    for (annulus::Index e = 0; e < lse.size(); ++e)
      same = same && remainder.data()[e] == forward.lse_remainder.data()[e];
    CHECK(same);
    auto const gradients = attention.backward(dout, forward, q, k, v);
    auto dq = q, dk = k, dv = v;
    annulus::GradientViews<T> const views{annulus::view_of(dq), annulus::view_of(dk), annulus::view_of(dv)};
    attention.backward_into(dout, output, lse, q, k, v, views, {}, remainder);
    same = true;
    for (annulus::Index e = 0; e < dv.size(); ++e) same = same && dv.data()[e] == gradients.dv.data()[e];
    CHECK(same);
    attention.backward_into(dout, output, lse, q, k, v, views);
    auto without = forward;
    without.lse_remainder = {};
    auto const lacking = attention.backward(dout, without, q, k, v);
    same = true;
    double difference = 0;
    for (annulus::Index e = 0; e < dv.size(); ++e) {
      same = same && dv.data()[e] == lacking.dv.data()[e];
      difference = std::max(difference, std::abs(static_cast<double>(dv.data()[e] - gradients.dv.data()[e])));
    }
    CHECK(same);
    CHECK(difference > 0.1);
  });
}
