// Demonstrates: a custom communicator, which wraps another one and counts the bytes sent. It models the same concept as
// one for a custom network.
#include <annulus/annulus.hpp>
#include <iostream>

class CountingRing {
 public:
  using memory_space = annulus::HostMemory;

  explicit CountingRing(annulus::SimulatedRing& ring) : ring_(ring) {}

  annulus::Rank rank() const { return ring_.rank(); }
  int size() const { return ring_.size(); }
  auto start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
    for (auto const& run : out) bytes += run.size();
    return ring_.start_shift(channel, hop, out, in);
  }
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { ring_.all_gather(mine, all); }
  void abandon(std::string const& reason) noexcept { ring_.abandon(reason); }

  std::size_t bytes = 0;

 private:
  annulus::SimulatedRing& ring_;
};

static_assert(annulus::Communicator<CountingRing>);

int main() {
  auto const counted = annulus::run_ring(3, [](annulus::SimulatedRing& simulated) {
    CountingRing ring(simulated);
    Eigen::Tensor<float, 4> q(1, 20, 2, 8), k(1, 20, 2, 8), v(1, 20, 2, 8);
    q.setRandom();
    k.setRandom();
    v.setRandom();
    annulus::CpuBackend backend;
    annulus::RingAttention attention(ring, backend);
    attention.forward(q, k, v);
    return std::pair{static_cast<annulus::Index>(ring.bytes), attention.plan(annulus::Pass::forward)->bytes_sent(ring.rank())};
  });
  for (auto const& [sent, planned] : counted) {
    std::cout << "sent " << sent << " bytes, planned " << planned << '\n';
    if (sent != planned) return 1;
  }
}
