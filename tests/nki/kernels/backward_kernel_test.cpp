// Backward kernel: results with a log-sum-exp that does not belong to the scores; gradients of a single element.

#include "annulus/nki/kernels/backward_kernel.hpp"

#include <algorithm>
#include <cmath>

#include "nki/kernels/vendor_problem.hpp"
#include "nki/simulate/simulated_launch.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
namespace nki = annulus::nki;

TEST_CASE("an lse of other scores leaves the gradients finite", "[nki]") {
  for (float const logit : {1.0e2f, 1.0e8f}) {
    CAPTURE(logit);
    VendorProblem const problem({full, 1, 1, 160, 16, 1, 1, bf16});
    nki::RingMask const mask = problem.mask();
    nki::ValidatedProgram const program = valid(nki::BackwardKernel(problem.spec(), mask).ring());
    std::vector<nki::Tensors> inputs = problem.inputs(mask);
    // All logits are about `logit`, far above the lse of 0.
    for (char const* name : {"q", "k"})
      std::ranges::fill(inputs[0][name], std::sqrt(logit / static_cast<float>(problem.scale() * 16)));
    inputs[0]["output"] = std::vector<float>(160 * 16, 0.0f);
    inputs[0]["lse"] = std::vector<float>(128 * 2, 0.0f);
    nki::Tensors const gradients = launch(program, inputs)[0];
    for (char const* name : {"dq", "dk", "dv"}) {
      CAPTURE(name);
      CHECK(std::ranges::all_of(gradients.at(name), [](float value) { return std::isfinite(value); }));
      CHECK(std::ranges::any_of(gradients.at(name), [](float value) { return value != 0; }));
    }
  }
}

TEST_CASE("two cores share a gradient of one element in an odd ring", "[nki]") {
  for (auto side : {nki::RotatingSide::queries, nki::RotatingSide::keys}) {
    VendorProblem const problem({full, 1, 1, 1, 1, 3, 2, bf16});
    nki::RingMask const mask = problem.mask();
    nki::KernelSpec spec = problem.spec();
    spec.travels = side;
    CHECK_NOTHROW(valid(nki::BackwardKernel(spec, mask).ring()));
  }
}
