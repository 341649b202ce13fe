// Demonstrates: a communicator of one's own (socket_ring.hpp), forward and backward on 4 ranks, and a rank that fails.
#include <annulus/annulus.hpp>
#include <iostream>
#include <stdexcept>

#include "socket_ring.hpp"

int main() {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Tensor q(1, 75, 4, 16), k(1, 75, 2, 16), v(1, 75, 2, 16), dout(1, 75, 4, 16);
  for (Tensor* tensor : {&q, &k, &v, &dout}) tensor->setRandom();
  auto const dk_on = [&](auto& ring) {
    annulus::CpuBackend backend;
    annulus::RingAttention attention(ring, backend, {.mask = annulus::causal(), .sharding = annulus::Zigzag{}});
    auto const shard = [&](Tensor const& x) { return attention.scatter(x); };
    auto const forward = attention.forward(shard(q), shard(k), shard(v));
    auto const gradients = attention.backward(shard(dout), forward, shard(q), shard(k), shard(v));
    return attention.gather(gradients.dk);
  };
  annulus::SelfRing alone;
  Tensor const expected = dk_on(alone);
  float largest = 0;
  example::run_socket_ring(4, [&](example::SocketRing& ring) {
    Tensor const dk = dk_on(ring);
    if (ring.rank() != 0) return;  // every rank has all rows
    Eigen::Map<Eigen::ArrayXf const> const one(dk.data(), dk.size()), other(expected.data(), dk.size());
    largest = (one - other).abs().maxCoeff<Eigen::PropagateNaN>();
  });
  std::cout << "largest difference of dk between 4 ranks and 1: " << largest << '\n';

  // No rank waits for one that has failed: its reason reaches all.
  example::run_socket_ring(3, [&](example::SocketRing& ring) {
    try {
      if (ring.rank() == 1) annulus::or_abandon(ring, [] { throw std::runtime_error("its file is missing"); });
      dk_on(ring);
    } catch (annulus::CommunicationError const& error) {
      if (ring.rank() == 0) std::cout << error.what() << '\n';
    } catch (std::runtime_error const&) {
    }
  });
  return largest < 1e-5f ? 0 : 1;
}
