#pragma once
// Communicator without payload transfers, to time a pass without its communication.

#include <annulus/comm/communicator.hpp>

#include <optional>
#include <string>

namespace annulus_bench {

/// Wraps any ring. Shifts are forwarded until disable_transfers() is called, so that the buffers then hold real data.
template <annulus::Communicator C>
class RingWithoutTransfers {
 public:
  using memory_space = typename C::memory_space;

  class Transfer {
   public:
    Transfer() = default;
    explicit Transfer(annulus::TransferOf<C> transfer) : transfer_(std::move(transfer)) {}
    void wait() {
      if (transfer_) transfer_->wait();
    }

   private:
    std::optional<annulus::TransferOf<C>> transfer_;
  };

  explicit RingWithoutTransfers(C& ring) : ring_(&ring) {}

  void disable_transfers() { disabled_ = true; }

  annulus::Rank rank() const { return ring_->rank(); }
  int size() const { return ring_->size(); }
  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
    return disabled_ ? Transfer() : Transfer(ring_->start_shift(channel, hop, out, in));
  }
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { ring_->all_gather(mine, all); }
  void abandon(std::string const& reason) noexcept { ring_->abandon(reason); }

 private:
  C* ring_;
  bool disabled_ = false;
};

}  // namespace annulus_bench
