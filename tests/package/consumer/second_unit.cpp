// Second translation unit that includes the umbrella header: linking fails if a header defines a symbol twice.

#include <annulus/annulus.hpp>

// Equal logits: the output is the mean of the values 1 and 3.
float average_of_two_values() {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  Eigen::Tensor<float, 4> q(1, 1, 1, 2), k(1, 2, 1, 2), v(1, 2, 1, 1);
  q.setConstant(0.5f);
  k.setConstant(0.5f);
  v(0, 0, 0, 0) = 1.0f;
  v(0, 1, 0, 0) = 3.0f;
  return annulus::ring_attention_forward(ring, backend, {}, q, k, v).output(0, 0, 0, 0);
}
