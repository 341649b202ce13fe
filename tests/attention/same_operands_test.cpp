// The backward pass must be given the optional operands of the forward pass.

#include <cstdint>
#include <string>
#include <vector>

#include "annulus/attention/compiled.hpp"
#include "annulus/backend/cpu/cpu.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

TEST_CASE("a backward pass without an operand of the forward pass is refused on all ranks") {
  Eigen::Tensor<float, 4> x(1, 3, 1, 2), bias(1, 1, 3, 6);
  x.setConstant(0.5f), bias.setConstant(1.0f);
  Eigen::Tensor<std::int32_t, 2> ids(1, 3);
  ids.setConstant(1);
  Operands<float> const none, with_bias{.bias = bias}, both{.bias = bias, .query_documents = ids, .key_documents = ids};
  auto const calls = [&](Operands<float> const& forward, Operands<float> const& backward) {
    return [&, forward, backward](SimulatedRing& ring) {
      CpuBackend backend;
      RingAttention attention(ring, backend);
      auto given = attention.forward(x, x, x, forward);
      attention.backward(x, given, x, x, x, forward);
      // A Forward that the caller puts together is not compared.
      auto own = given;
      own.given.reset();
      attention.backward(x, own, x, x, x, backward);
      attention.backward(x, given, x, x, x, backward);
    };
  };
  std::string const end = "; pass the same operands to both", of_pass = "optional operands of the backward pass: ";
  std::vector<Refusal<SimulatedRing&>> const table{
      {"none", "ShapeError", of_pass + "none; of the forward pass: bias, document ids" + end, calls(both, none)},
      {"fewer", "ShapeError", of_pass + "bias; of the forward pass: bias, document ids" + end, calls(both, with_bias)},
      {"more", "ShapeError", of_pass + "bias; of the forward pass: none" + end, calls(none, with_bias)}};
  check_refused(table, on_ring(2));
}
