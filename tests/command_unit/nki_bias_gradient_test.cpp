// dbias of simulated kernels: what belongs to the ranks of other rings must be 0.

#include <annulus/nki/hardware/hardware.hpp>
#include <annulus/nki/validate/validate.hpp>
#include <cmath>
#include <variant>

#include "command/nki_parts.hpp"
#include "support/catch.hpp"

using namespace annulus_command;
namespace nki = annulus::nki;

namespace {

/// Elements of dbias that are NaN after a run of the kernel.
Eigen::Index refused_elements(NkiProblem const& problem, NkiKernel const& kernel, Inputs<float> const& inputs) {
  Results<float> results = make_results<float>(problem.call, {problem.call.shape.queries, problem.call.shape.keys});
  for_each_tensor<float>(results, [](auto& tensor) { tensor.setZero(); });
  run_nki(problem, kernel, {0, 1}, inputs, results);
  REQUIRE(results.dbias);
  Eigen::Index refused = 0;
  for (Eigen::Index i = 0; i < results.dbias->size(); ++i) refused += std::isnan(results.dbias->data()[i]);
  return refused;
}

}  // namespace

TEST_CASE("dbias is refused if it is not 0 for the ranks of other rings", "[command][nki]") {
  NkiOptions options;
  options.attend.ranks = 2;
  options.groups = 2;
  options.cores = 1;
  options.tokens_per_rank = 16;
  options.head_dim = 16;
  options.bias = "heads,keys";
  options.bias_gradient = true;
  options.only = NkiOnly::backward;
  NkiProblem const problem = nki_problem(options, nki_shape(options, {}));
  Inputs<float> const inputs = nki_inputs(options, problem, {});
  std::vector<NkiKernel> kernels = nki_kernels(options, problem);
  REQUIRE(kernels.size() == 1);
  CHECK(refused_elements(problem, kernels[0], inputs) == 0);

  // Zeros are written to all entries first; those of this ring are overwritten.
  nki::Program program = kernels[0].program();
  int const zeros = program.find("no_bias_gradient");
  REQUIRE(zeros >= 0);
  nki::for_each_node(program.body, [&](nki::Node& node) {
    auto* const instruction = std::get_if<nki::Instruction>(&node.content);
    auto* const memset = instruction ? std::get_if<nki::Memset>(instruction) : nullptr;
    if (memset && memset->dst.buffer == zeros) memset->value = 1;
  });
  kernels[0].validated = nki::validated(std::move(program), nki::hardware_of(problem.spec.target));
  CHECK(refused_elements(problem, kernels[0], inputs) > 0);
}
