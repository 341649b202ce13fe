// The backward pass must be given the optional operands of the forward pass.

#include <cstdint>
#include <string>
#include <vector>

#include "annulus/attention/compiled.hpp"
#include "annulus/backend/cpu/cpu.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/catch.hpp"

using namespace annulus;

TEST_CASE("a backward pass without an operand of the forward pass is refused on all ranks") {
  auto const texts = run_ring(2, [](SimulatedRing& ring) {
    Eigen::Tensor<float, 4> x(1, 3, 1, 2), bias(1, 1, 3, 6);
    x.setConstant(0.5f);
    bias.setConstant(1.0f);
    Eigen::Tensor<std::int32_t, 2> ids(1, 3);
    ids.setConstant(1);
    CpuBackend backend;
    RingAttention attention(ring, backend);
    auto const plain = attention.forward(x, x, x);
    auto const biased = attention.forward(x, x, x, {.bias = bias, .query_documents = ids, .key_documents = ids});
    std::string text;
    auto const refused = [&](auto const& forward, Operands<float> const& operands) {
      try {
        attention.backward(x, forward, x, x, x, operands);
        text += "not refused;";
      } catch (ShapeError const& error) {
        text += error.what() + std::string(";");
      }
    };
    refused(biased, {});
    refused(biased, {.bias = bias});
    refused(plain, {.bias = bias});
    attention.backward(x, biased, x, x, x, {.bias = bias, .query_documents = ids, .key_documents = ids});
    attention.backward(x, plain, x, x, x);
    // A Forward that the caller puts together is not compared.
    auto own = biased;
    own.given.reset();
    attention.backward(x, own, x, x, x);
    return text;
  });
  std::string const end = "; pass the same operands to both;";
  for (std::string const& text : texts) {
    CHECK(text.find("optional operands of the backward pass: none; of the forward pass: bias, document ids" + end) !=
          std::string::npos);
    CHECK(text.find("of the backward pass: bias; of the forward pass: bias, document ids" + end) != std::string::npos);
    CHECK(text.find("of the backward pass: bias; of the forward pass: none" + end) != std::string::npos);
    CHECK(text.find("not refused") == std::string::npos);
  }
}
