// scatter, gather and all_reduce of host tensors on a ring of GPUs: shards are on the rank's GPU.

#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/comm/peer_ring.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "annulus/tensor/cuda/device_tensor.hpp"
#include "support/catch.hpp"
#include "support/cuda_space.hpp"
#include "support/host_function_backend.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

Tensor numbered(Index batch, Index rows) {
  Tensor tensor(batch, rows, 2, 3);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>(i);
  return tensor;
}

bool same(Tensor const& a, Tensor const& b) {
  return a.dimensions() == b.dimensions() && std::equal(a.data(), a.data() + a.size(), b.data());
}

}  // namespace

TEST_CASE("whole tensors are scattered to the GPUs of a ring and gathered from them", "[peer]") {
  if (number_of_gpus() == 0) return;
  Tensor const whole = numbered(2, 11);
  for (int const ranks : {1, 2, 3}) {
    auto const expected =
        run_ring(ranks, [&](SimulatedRing& ring) { return Tensor(scatter(ring, whole, Sharding(Zigzag{}))); });
    auto const right = run_peer_ring(gpus_of(ranks, 2), [&](PeerRing& ring) {
      Tensor const nothing(0, 0, 0, 0);
      DeviceTensor<float> const shard = scatter(ring, ring.rank() == 0 ? whole : nothing, Sharding(Zigzag{}));
      Tensor const on_host = to_host(shard);
      bool const gathered = same(gather(ring, shard, Zigzag{}), whole),
                 from_host = same(gather(ring, on_host, Zigzag{}), whole);
      return gathered && from_host && same(on_host, expected[static_cast<std::size_t>(ring.rank())]);
    });
    CHECK(right == std::vector<bool>(static_cast<std::size_t>(ranks), true));
  }
}

TEST_CASE("tensors on GPUs are scattered and gathered in their axis order", "[peer]") {
  if (number_of_gpus() == 0) return;
  Tensor const whole = numbered(2, 5);
  Tensor const heads_first = whole.shuffle(Eigen::array<int, 4>{0, 2, 1, 3});
  auto const right = run_peer_ring(gpus_of(2, 1), [&](PeerRing& ring) {
    HostFunctionBackend<> backend(-1);
    RingAttention attention(ring, backend);
    DeviceTensor<float> const shard = attention.scatter(bhsd(heads_first));
    bool const shaped = shard.extents() == std::array<Index, 4>{2, 2, ring.rank() == 0 ? 3 : 2, 3};
    return same(attention.gather(bhsd(shard)), heads_first) && shaped;
  });
  CHECK(right == std::vector{true, true});
}

TEST_CASE("host tensors are summed over the ranks of a ring of GPUs", "[peer]") {
  if (number_of_gpus() == 0) return;
  auto const right = run_peer_ring(gpus_of(3, 2), [](PeerRing& ring) {
    Tensor x = numbered(1, 4) * static_cast<float>(ring.rank() + 1);
    all_reduce(ring, x);
    return same(x, numbered(1, 4) * 6.f);
  });
  CHECK(right == std::vector{true, true, true});
}

TEST_CASE("a rank that is lost in a gather ends the ring of GPUs", "[peer]") {
  if (number_of_gpus() == 0) return;
  auto const failed = run_peer_ring(gpus_of(3, 1), [](PeerRing& ring) {
    DeviceTensor<float> const shard = to_device(numbered(1, 2));
    if (ring.rank() == 1) return true;
    try {
      gather(ring, shard, Contiguous{});
      return false;
    } catch (CommunicationError const& error) {
      return error.neighbour() == 1;
    }
  });
  CHECK(failed == std::vector{true, true, true});
}
