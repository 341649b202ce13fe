// A translation unit that uses annulus::cpu, linked with second_unit.cpp, which is header-only.

#include <annulus/annulus.hpp>
#include <iostream>

float average_of_two_values();

int main() {
  auto const outputs = annulus::run_ring(2, [](annulus::SimulatedRing& ring) {
    annulus::CpuBackend backend;
    Eigen::Tensor<float, 4> q(1, 1, 1, 2), v(1, 1, 1, 3);
    q.setConstant(0.5f);
    v.setConstant(ring.rank() == 0 ? 1.0f : 7.0f);
    return annulus::ring_attention_forward(ring, backend, {}, q, q, v).output(0, 0, 0, 2);
  });
  float const average = average_of_two_values();
  std::cout << "compiled: " << outputs[0] << ", header-only: " << average << '\n';
  return outputs[0] == 4.0f && outputs[1] == 4.0f && average == 2.0f ? 0 : 1;
}
