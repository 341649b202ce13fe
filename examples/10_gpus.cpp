// Demonstrates: causal attention over all GPUs of a machine, forward and backward, on zigzag shards, compared with one
// rank on one GPU. On a machine with one GPU, two ranks share it. Argument: tokens. Explained in guide/gpus.md.
#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/backend/cuda/cuda.hpp>
#include <annulus/comm/peer_ring.hpp>
#include <annulus/tensor/cuda/device_tensor.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

using Tensor = Eigen::Tensor<Eigen::bfloat16, 4, Eigen::RowMajor>;  // [batch, sequence, heads, dim]

struct Results {
  Tensor output, dq, dk, dv;  // of the whole sequence
  double seconds;             // of a repeated call of both passes
};

Results attend(std::vector<int> const& gpus, Tensor const& q, Tensor const& k, Tensor const& v, Tensor const& dout) {
  using Clock = std::chrono::steady_clock;
  auto const results = annulus::run_peer_ring(gpus, [&](annulus::PeerRing& ring) {  // a thread for each rank
    annulus::CudaBackend backend;
    annulus::RingAttention attention(ring, backend, {.mask = annulus::causal(), .sharding = annulus::Zigzag{}});
    auto const own_q = attention.scatter(q), own_k = attention.scatter(k), own_v = attention.scatter(v),
               own_dout = attention.scatter(dout);  // DeviceTensors
    auto const both_passes = [&] {
      auto forward = attention.forward(own_q, own_k, own_v);
      auto gradients = attention.backward(own_dout, forward, own_q, own_k, own_v);
      return std::pair(std::move(forward.output), std::move(gradients));
    };
    both_passes();  // plans, buffers, and what is uploaded once
    auto const begin = Clock::now();
    auto const [output, gradients] = both_passes();
    double const seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return Results{attention.gather(output), attention.gather(gradients.dq),
                   attention.gather(gradients.dk, {.side = annulus::Side::key}),
                   attention.gather(gradients.dv, {.side = annulus::Side::key}), seconds};
  });
  return results[0];
}

// The largest difference of two tensors, relative to the largest element.
float difference(Tensor const& a, Tensor const& b) {
  auto const elements = [](Tensor const& x) {
    return Eigen::Map<Eigen::ArrayX<Eigen::bfloat16> const>(x.data(), x.size()).cast<float>();
  };
  return (elements(a) - elements(b)).abs().maxCoeff<Eigen::PropagateNaN>() / elements(b).abs().maxCoeff();
}

int main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("skipped: this program needs a GPU, and there is none");
    return 77;
  }
  annulus::Index const tokens = argc > 1 ? std::atoll(argv[1]) : 16384;
  auto const random = [&](annulus::Index heads) {
    Eigen::Tensor<float, 4, Eigen::RowMajor> x(1, tokens, heads, 128);
    x.setRandom();
    return Tensor((x - 0.5f).cast<Eigen::bfloat16>());
  };
  Tensor const q = random(8), k = random(2), v = random(2), dout = random(8);
  std::vector<int> gpus;  // of each rank
  for (int rank = 0; rank < std::max(count, 2); ++rank) gpus.push_back(rank % count);

  Results const ring = attend(gpus, q, k, v, dout), one = attend({0}, q, k, v, dout);
  float const errors[] = {difference(ring.output, one.output), difference(ring.dq, one.dq), difference(ring.dk, one.dk),
                          difference(ring.dv, one.dv)};
  std::printf("%zu ranks on %d GPUs: %.1f ms; one rank: %.1f ms\n", gpus.size(), count, 1e3 * ring.seconds,
              1e3 * one.seconds);
  std::printf("relative differences: output %.1e, dq %.1e, dk %.1e, dv %.1e\n", static_cast<double>(errors[0]),
              static_cast<double>(errors[1]), static_cast<double>(errors[2]), static_cast<double>(errors[3]));
  for (float const error : errors)
    if (!(error < 0.01f)) return 1;  // two roundings to bfloat16
  return 0;
}
