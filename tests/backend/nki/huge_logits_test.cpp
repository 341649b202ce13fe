// Rows with large logits on simulated NeuronCores: correct up to a limit, refused beyond it.

#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "annulus/comm/self.hpp"
#include "backend/nki/ring_on_devices.hpp"
#include "support/catch.hpp"
#include "support/huge_logits.hpp"

using namespace annulus_test;
using annulus::NkiBackend;
using annulus::Rotation;
using Catch::Matchers::ContainsSubstring;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

Tensor filled(annulus::Index rows, float value) {
  Tensor tensor(1, rows, 1, 1);
  tensor.setConstant(value);
  return tensor;
}

/// The error of each rank, or "no error", for a forward pass over keys of 1 in which the last rank's query is `logit`.
std::vector<std::string> errors_for(float logit, int ranks) {
  return annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) -> std::string {
    NkiBackend backend;
    annulus::RingAttention attention(ring, backend, {.softmax_scale = 1.0});
    try {
      attention.forward(filled(1, ring.rank() == ranks - 1 ? logit : 1.0f), filled(2, 1), filled(2, 1));
    } catch (annulus::Error const& error) {
      return error.what();
    }
    return "no error";
  });
}

}  // namespace

TEST_CASE("NkiBackend: gradients of rows whose lse is so large that log(number of keys) rounds away", "[nki]") {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (bool with_sinks : {false, true}) {
        RingProblem problem = huge_products(0x1p11, ranks, annulus::Zigzag{}, rotation, with_sinks);
        problem.dense.causal = with_sinks;
        settle(problem);
        INFO(problem.text);
        CHECK(judge(problem, on_devices<float>(problem), float_bounds).complaint == "");
        // Five values are rounded: a weight, a logit gradient, dout times a factor, the output in delta, the result.
        Bounds const bfloat16{5 * 0x1p-8, 5 * 0x1p-8};
        CHECK(judge(problem, on_devices<Eigen::bfloat16>(problem), bfloat16).complaint == "");
      }
}

TEST_CASE("NkiBackend: logits beyond the limit are refused with the row and the limit", "[nki]") {
  float const limit = 0x1p24f, beyond = std::nextafter(limit, 2 * limit);
  for (float sign : {1.0f, -1.0f}) {
    CHECK(errors_for(sign * limit, 1) == std::vector<std::string>{"no error"});
    for (float logit : {beyond, 1e9f, 1e12f, 1e30f, 1e31f, std::numeric_limits<float>::max()}) {
      INFO("logit " << sign * logit);
      auto const said = errors_for(sign * logit, 1);
      CHECK_THAT(said[0], ContainsSubstring("nki: the largest logit of batch item 0, query head 0, query row 0"));
      CHECK_THAT(said[0], ContainsSubstring("accepted: magnitudes of at most 16777216"));
    }
  }
  for (int ranks : {2, 3}) {
    // Ranks that need no more data of this one may have finished without error; the others report the same error.
    auto const said = errors_for(1e9f, ranks);
    CHECK_THAT(said.back(), ContainsSubstring("nki: the largest logit"));
    for (std::string const& text : said)
      if (text != "no error") CHECK_THAT(text, ContainsSubstring("at most 16777216"));
  }
}

TEST_CASE("NkiBackend: the backward pass refuses an lse beyond the limit", "[nki]") {
  annulus::SelfRing ring;
  NkiBackend backend;
  annulus::RingAttention attention(ring, backend, {.softmax_scale = 1.0});
  Tensor const q = filled(1, 0x1p24f), k = filled(2, 1), v = k, dout = filled(1, 1);
  auto forward = attention.forward(q, k, v);
  auto const gradients = attention.backward(dout, forward, q, k, v);
  CHECK(gradients.dv(0, 0, 0, 0) == Approx(0.5));
  forward.lse(0, 0, 0) = 0x1p26f;
  CHECK_THROWS_WITH(attention.backward(dout, forward, q, k, v),
                    ContainsSubstring("nki: the log-sum-exp of batch item 0, query head 0, query row 0") &&
                        ContainsSubstring("at most 33554432"));
}
