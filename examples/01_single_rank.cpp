// Demonstrates: attention on one rank, with options as designated initialisers. A ring of one rank is plain attention.
#include <annulus/annulus.hpp>
#include <iostream>

int main() {
  using Tensor = Eigen::Tensor<double, 4, Eigen::RowMajor>;  // [batch, sequence, heads, dim]
  Tensor q(1, 6, 4, 8), k(1, 10, 2, 8), v(1, 10, 2, 3);       // 4 cached keys, 2 query heads per kv head, value_dim 3
  q.setRandom();
  k.setRandom();
  v.setRandom();

  annulus::SelfRing ring;
  annulus::CpuBackend backend;
  annulus::RingAttention attention(ring, backend, {.mask = {.causal = true, .window = {.left = 4}, .sink_tokens = 1},
                                                   .softmax_scale = 0.25,
                                                   .logit_softcap = 20.0,
                                                   .query_offset = 4});
  auto const forward = attention.forward(q, k, v);
  std::cout << "output [" << forward.output.dimensions() << "], lse of the first query: " << forward.lse(0, 0, 0) << '\n';
}
