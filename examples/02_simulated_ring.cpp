// Demonstrates: scattering global tensors over 4 ranks, running the ring in one process, and gathering the result. The
// same function runs over MPI with annulus::run_mpi_ring. Explained in guide/ring_attention.md.
#include <annulus/annulus.hpp>
#include <iostream>

int main() {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Tensor q(1, 101, 4, 16), k(1, 101, 4, 16), v(1, 101, 4, 16);  // 101 tokens: any length works on 4 ranks
  q.setRandom();
  k.setRandom();
  v.setRandom();
  auto const outputs = annulus::run_ring(4, [&](auto& ring) {
    annulus::CpuBackend backend;
    annulus::RingAttention attention(ring, backend, {.mask = annulus::causal(), .sharding = annulus::Zigzag{}});
    auto const forward = attention.forward(attention.scatter(q), attention.scatter(k), attention.scatter(v));
    return attention.gather(forward.output);
  });
  Tensor const& output = outputs[0];  // every rank has all rows

  annulus::SelfRing alone;
  annulus::CpuBackend backend;
  auto const whole = annulus::ring_attention_forward(alone, backend, {.mask = annulus::causal()}, q, k, v);
  Eigen::Map<Eigen::ArrayXf const> const found(output.data(), output.size()),
      expected(whole.output.data(), output.size());
  float const largest = (found - expected).abs().maxCoeff<Eigen::PropagateNaN>();
  std::cout << "largest difference between 4 ranks and 1: " << largest << '\n';
  return largest < 1e-5f ? 0 : 1;
}
