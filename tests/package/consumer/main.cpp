// Two translation units that both include the library must link: no header may define a symbol twice.

#include <annulus/annulus.hpp>
#include <iostream>

float average_of_two_values();

int main() {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  Eigen::Tensor<float, 4> q(1, 1, 1, 2), v(1, 1, 1, 3);
  q.setConstant(0.5f);
  v.setConstant(4.0f);
  float const alone = annulus::ring_attention_forward(ring, backend, {}, q, q, v).output(0, 0, 0, 2);
  float const average = average_of_two_values();
  std::cout << "one key: " << alone << ", two keys: " << average << '\n';
  return alone == 4.0f && average == 2.0f ? 0 : 1;
}
