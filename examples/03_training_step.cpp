// Demonstrates: forward and backward on packed documents, and a plan that predicts work and traffic without data.
#include <annulus/annulus.hpp>
#include <iostream>

int main() {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  constexpr int ranks = 4, tokens = 256;
  annulus::Options const options{.mask = annulus::causal(), .sharding = annulus::Zigzag{}};

  auto const lengths = options.sharding.lengths(annulus::Side::query, ranks, tokens);
  annulus::RingPlan const plan({.pass = annulus::Pass::backward,
                                .shape = {.batch = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 32, .value_dim = 32},
                                .query_lengths = lengths,
                                .key_lengths = lengths,
                                .sharding = options.sharding,
                                .rules = rules_of(options)});
  std::cout << "backward: " << plan.steps() << " steps, " << name_of(plan.rotation()) << " rotate, "
            << plan.bytes_sent(0) << " bytes sent and " << plan.peak_buffer_bytes(0)
            << " bytes of buffers per rank, work of the busiest rank / mean = " << plan.imbalance() << '\n';

  // Three documents of 100, 60 and 90 tokens, and 6 tokens of padding (id 0).
  Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> documents(1, tokens);
  for (int i = 0; i < tokens; ++i) documents(0, i) = i < 100 ? 1 : i < 160 ? 2 : i < 250 ? 3 : 0;

  annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    annulus::CpuBackend backend;
    annulus::RingAttention attention(ring, backend, options);
    auto const ids = attention.scatter(documents);
    Eigen::Index const local = ids.dimension(1);

    Tensor q(1, local, 4, 32), k(1, local, 2, 32), v(1, local, 2, 32), dout(1, local, 4, 32);
    q.setRandom();
    k.setRandom();
    v.setRandom();
    dout.setRandom();
    auto const forward = attention.forward(q, k, v, {.query_documents = ids, .key_documents = ids});
    auto const gradients = attention.backward(dout, forward, q, k, v, {.query_documents = ids, .key_documents = ids});
    float const rate = 0.01f;
    q -= rate * gradients.dq;
    k -= rate * gradients.dk;
    v -= rate * gradients.dv;
  });
}
