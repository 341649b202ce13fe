#include <algorithm>
#include <annulus/annulus.hpp>

// Two ranks with one position each; all values are equal, so every output is that value.
int main() {
  auto const outputs = annulus::run_ring(2, [](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    Eigen::Tensor<float, 4> x(1, 1, 1, 2);
    x.setConstant(2.0f);
    return annulus::ring_attention_forward(ring, backend, {}, x, x, x).output(0, 0, 0, 1);
  });
  return outputs.size() == 2 && std::ranges::all_of(outputs, [](float y) { return y == 2.0f; }) ? 0 : 1;
}
