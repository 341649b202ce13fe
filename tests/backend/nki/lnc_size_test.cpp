// lnc_size of the NKI library's backward pass, which NkiBackend honours.

#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <string>
#include <utility>

#include "annulus/backend/nki.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/interop/nkilib.hpp"
#include "support/catch.hpp"

namespace {

using annulus::NkiBackend;
using annulus::nkilib::BackwardParameters;
using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Catch::Matchers::ContainsSubstring;

constexpr Eigen::Index heads = 1, dim = 8, tokens = 128;

Tensor random_tensor(Eigen::Index a, Eigen::Index b) {
  Tensor tensor(1, heads, a, b);
  tensor.setRandom();
  return tensor;
}

/// Largest magnitude of an element.
float largest(Tensor const& tensor) {
  Eigen::Tensor<float, 0, Eigen::RowMajor> const result = tensor.abs().maximum();
  return result();
}

TEST_CASE("lnc_size is the number of cores of NkiBackend", "[nki][nkilib]") {
  annulus::SelfRing self;
  annulus::ReferenceBackend reference;
  Tensor const q = random_tensor(dim, tokens), k = random_tensor(dim, tokens), v = random_tensor(tokens, dim);
  Tensor const dout = random_tensor(dim, tokens);
  Eigen::array<int, 4> const transposed{0, 1, 3, 2};
  auto const forward =
      annulus::nkilib::ring_attention_spmd_fwd(self, reference, q, k, v, {.use_causal_mask = true, .training = true});
  Tensor const output = forward.o.shuffle(transposed), v_features = v.shuffle(transposed);
  auto const backward = [&](auto& backend, int lnc_size) {
    BackwardParameters const parameters{.use_causal_mask = true, .lnc_size = lnc_size};
    return annulus::nkilib::ring_attention_spmd_bwd(self, backend, q, k, v_features, output, dout, *forward.lse,
                                                    parameters);
  };

  auto const wanted = backward(reference, 1);
  for (int cores : {1, 2}) {
    NkiBackend device({.cores = cores});
    auto const result = backward(device, cores);
    for (auto const& [found, exact] :
         {std::pair<Tensor, Tensor>(result.dq, wanted.dq), std::pair<Tensor, Tensor>(result.dk, wanted.dk),
          std::pair<Tensor, Tensor>(result.dv, wanted.dv)}) {
      Tensor const difference = found - exact;
      // Sums of at most 128 terms in float32, each with a few roundings: 2^-24 * 128 of the largest.
      CHECK(largest(difference) <= 0x1p-17F * std::max(1.0F, largest(exact)));
    }
    REQUIRE_THROWS_WITH(backward(device, 3 - cores), ContainsSubstring("lnc_size is " + std::to_string(3 - cores)) &&
                                                         ContainsSubstring("accepted: " + std::to_string(cores)));
    CHECK_THROWS_AS(backward(device, 3 - cores), annulus::UnsupportedError);
  }
  CHECK_THROWS_AS(backward(reference, 2), annulus::UnsupportedError);
}

}  // namespace
