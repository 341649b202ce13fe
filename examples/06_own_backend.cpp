// Demonstrates: a backend of one's own (plain_backend.hpp), forward and backward on a ring of 3 ranks, compared with
// the reference backend, and what happens to a call that it refuses.
#include <algorithm>
#include <annulus/annulus.hpp>
#include <cmath>
#include <iostream>

#include "plain_backend.hpp"

int main() {
  annulus::Options const options{.mask = annulus::causal(), .logit_softcap = 20, .sharding = annulus::Zigzag{}};
  auto const differences = annulus::run_ring(3, [&](annulus::SimulatedRing& ring) {
    using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
    Tensor q(1, 100, 4, 16), k(1, 100, 2, 16), v(1, 100, 2, 16), dout(1, 100, 4, 16);
    for (Tensor* tensor : {&q, &k, &v, &dout}) tensor->setRandom();
    auto const gradients_of = [&](auto backend) {
      annulus::RingAttention attention(ring, backend, options);
      return attention.backward(dout, attention.forward(q, k, v), q, k, v);
    };
    auto const found = gradients_of(example::PlainBackend()), expected = gradients_of(annulus::ReferenceBackend());
    float largest = 0;
    for (auto const gradient : {&decltype(found)::dq, &decltype(found)::dk, &decltype(found)::dv}) {
      auto const &a = found.*gradient, &b = expected.*gradient;
      for (Eigen::Index i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a.data()[i] - b.data()[i]));
    }
    return largest;
  });
  float const largest = *std::max_element(differences.begin(), differences.end());
  std::cout << "largest difference of a gradient from the reference: " << largest << '\n';

  annulus::SelfRing alone;
  example::PlainBackend backend;
  Eigen::Tensor<float, 4> x(1, 8, 2, 16);
  x.setRandom();
  try {
    annulus::ring_attention_forward(alone, backend, {.dropout = {.probability = 0.1}}, x, x, x);
    return 1;
  } catch (annulus::UnsupportedError const& error) {
    std::cout << "refused: " << error.what() << '\n';
  }
  return largest < 1e-5f ? 0 : 1;
}
