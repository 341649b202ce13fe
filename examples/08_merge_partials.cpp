// Demonstrates: the merge rule by itself. A query attends to two parts of a cache, perhaps on two machines; output and
// lse of the parts are enough to compute the exact result.
#include <annulus/annulus.hpp>
#include <annulus/numerics/softmax.hpp>
#include <cmath>
#include <iostream>

int main() {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Tensor q(1, 1, 1, 16), k(1, 40, 1, 16), v(1, 40, 1, 16);
  q.setRandom();
  k.setRandom();
  v.setRandom();
  annulus::SelfRing ring;
  annulus::CpuBackend backend;
  auto const attend = [&](Eigen::Index begin, Eigen::Index count) {
    annulus::TensorView<float const> const keys = annulus::view_of(k), values = annulus::view_of(v);
    return annulus::ring_attention_forward(ring, backend, {}, q, keys.slice(annulus::axis::sequence, begin, count),
                                           values.slice(annulus::axis::sequence, begin, count));
  };
  auto first = attend(0, 25);
  auto const second = attend(25, 15), whole = attend(0, 40);
  annulus::merge_rows<float, float>({first.output.data(), 16}, first.lse(0, 0, 0), {second.output.data(), 16},
                                    second.lse(0, 0, 0));
  float const difference = std::abs(first.output(0, 0, 0, 0) - whole.output(0, 0, 0, 0));
  std::cout << "merged lse " << first.lse(0, 0, 0) << ", over the whole cache " << whole.lse(0, 0, 0) << '\n';
  return difference < 1e-6f ? 0 : 1;
}
