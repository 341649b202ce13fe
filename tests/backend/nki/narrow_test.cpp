// 16-bit operands on simulated NeuronCores: errors compared with those of dense attention with the same roundings.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "backend/nki/ring_on_devices.hpp"
#include "support/catch.hpp"
#include "support/larger_error.hpp"
#include "support/three_way.hpp"

using namespace annulus_test;

namespace {

/// Mean square errors over all problems, each relative to the norm of the exact result.
struct Pooled {
  double device = 0, dense = 0;

  void add(std::vector<double> const& seen, std::vector<double> const& same_precision,
           std::vector<double> const& exact) {
    double const size = norm(exact);
    if (size == 0) return;
    device += std::pow(distance(seen, exact) / size, 2);
    dense += std::pow(distance(same_precision, exact) / size, 2);
  }
  double ratio() const { return std::sqrt(device / dense); }
};

}  // namespace

TEMPLATE_TEST_CASE("NkiBackend: errors with 16-bit operands are comparable with dense attention", "[nki]", Eigen::half,
                   Eigen::bfloat16) {
  ThreeWayJudge<TestType> three_way;
  RoundTo<TestType> const round;
  Pooled output, dq, dk, dv;
  double worst_lse = 0;
  int solved = 0;
  for (std::uint64_t seed = 3000; seed < 3080; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<TestType>(problem);
    annulus::NkiOptions const options = device_number(seed);
    if (!refusal_of<TestType>(annulus::NkiBackend(options), problem).empty()) continue;
    ++solved;
    RingResult const seen = on_devices<TestType>(problem, options);
    CHECK(three_way.complaint(problem, seen) == "");
    auto const exact = oracle_forward(problem.dense);
    auto const gradients = oracle_backward(problem.dense, problem.dout);
    auto const dense = dense_same_precision_forward(problem.dense, round);
    auto const dense_gradients = dense_same_precision_backward(problem.dense, problem.dout, round);
    output.add(seen.output, dense.output, exact.output);
    dq.add(seen.dq, dense_gradients.dq, gradients.dq);
    dk.add(seen.dk, dense_gradients.dk, gradients.dk);
    dv.add(seen.dv, dense_gradients.dv, gradients.dv);
    for (std::size_t i = 0; i < exact.lse.size(); ++i)
      if (seen.lse[i] != exact.lse[i])
        worst_lse =
            larger_error(worst_lse, std::abs(seen.lse[i] - exact.lse[i]) / std::max(1.0, std::abs(exact.lse[i])));
  }
  INFO("output " << output.ratio() << ", dq " << dq.ratio() << ", dk " << dk.ratio() << ", dv " << dv.ratio()
                 << ", lse " << worst_lse);
  CHECK(solved > 20);
  CHECK(three_way.complaint_about_all() == "");
  CHECK(output.ratio() <= 1.5);
  CHECK(worst_lse <= 1e-5);
  CHECK(dq.ratio() <= 2);
  CHECK(dk.ratio() <= 2);
  CHECK(dv.ratio() <= 2);
}
