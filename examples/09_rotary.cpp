// Demonstrates: rotary position embeddings on shards. positions() gives the global position of every local row,
// whatever the sharding; with it the result on 4 ranks equals that on one.
#include <annulus/annulus.hpp>
#include <cmath>
#include <iostream>
#include <vector>

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;  // [batch, sequence, heads, dim]

/// Rotates the pairs (x[d], x[d + dim / 2]) of each row by position / 10000^(2 d / dim) (Su et al., arXiv 2104.09864).
Tensor rotary(Tensor x, std::vector<annulus::Index> const& positions) {
  Eigen::Index const half = x.dimension(3) / 2;
  for (Eigen::Index b = 0; b < x.dimension(0); ++b)
    for (Eigen::Index row = 0; row < x.dimension(1); ++row)
      for (Eigen::Index h = 0; h < x.dimension(2); ++h)
        for (Eigen::Index d = 0; d < half; ++d) {
          double const position = static_cast<double>(positions[static_cast<std::size_t>(row)]);
          double const angle = position * std::pow(10000.0, -static_cast<double>(d) / static_cast<double>(half));
          float const c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
          float const first = x(b, row, h, d), second = x(b, row, h, d + half);
          x(b, row, h, d) = c * first - s * second;
          x(b, row, h, d + half) = s * first + c * second;
        }
  return x;
}

int main() {
  constexpr Eigen::Index tokens = 75;
  Tensor q(1, tokens, 4, 16), k(1, tokens, 2, 16), v(1, tokens, 2, 16);
  q.setRandom();
  k.setRandom();
  v.setRandom();
  auto const attend = [&](auto& ring, annulus::Sharding const& sharding) {
    annulus::CpuBackend backend;
    annulus::RingAttention attention(ring, backend, {.mask = annulus::causal(), .sharding = sharding});
    Tensor const local_q = attention.scatter(q), local_k = attention.scatter(k), local_v = attention.scatter(v);
    auto const positions = attention.positions();
    auto const forward = attention.forward(rotary(local_q, positions), rotary(local_k, positions), local_v);
    return attention.gather(forward.output);
  };
  annulus::SelfRing alone;
  Tensor const expected = attend(alone, annulus::Contiguous{});
  auto const outputs = annulus::run_ring(4, [&](auto& ring) { return attend(ring, annulus::Zigzag{}); });
  Eigen::Map<Eigen::ArrayXf const> const one(expected.data(), expected.size()),
      four(outputs[0].data(), expected.size());
  float const largest = (four - one).abs().maxCoeff<Eigen::PropagateNaN>();
  std::cout << "largest difference between 4 ranks and 1: " << largest << '\n';
  return largest < 1e-5f ? 0 : 1;
}
