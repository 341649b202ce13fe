// Demonstrates: a custom mask, a predicate on (batch, head, query, key) in global positions. Here a prefix that all
// queries see, causal attention after it, and dilation in every second head. Explained in
// guide/shardings_and_masks.md.
#include <annulus/annulus.hpp>
#include <iostream>

int main() {
  auto const prefix_and_dilation = [](annulus::Index, annulus::Index head, annulus::Index query, annulus::Index key) {
    bool const prefix_or_causal = key < 8 || key <= query;
    return prefix_or_causal && (head % 2 == 0 || key < 8 || (query - key) % 2 == 0);
  };
  auto const lse = annulus::run_ring(4, [&](annulus::SimulatedRing& ring) {
    Eigen::Tensor<float, 4> q(1, 16, 2, 8), k(1, 16, 2, 8), v(1, 16, 2, 8);
    q.setConstant(0.5f);
    k.setConstant(0.0f);
    v.setConstant(1.0f);
    annulus::CpuBackend backend;
    annulus::RingAttention attention(ring, backend, {.sharding = annulus::Striped{}}, prefix_and_dilation);
    auto const forward = attention.forward(q, k, v);
    return std::pair{forward.lse(0, 0, 15), forward.lse(0, 1, 15)};
  });
  // With keys of zero, lse is the logarithm of the number of visible keys. The last query of rank 3 is position 63.
  std::cout << "query 63 sees " << std::exp(lse[3].first) << " keys in head 0, " << std::exp(lse[3].second)
            << " in head 1\n";
}
