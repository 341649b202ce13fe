#pragma once
// Communicator that loses its peer during a pass.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "annulus/comm/communicator.hpp"

namespace annulus_test {

/// Wraps the communicator of one rank, which must outlive it; models Communicator. wait() number `fatal_wait`, counted
/// from 0 over all channels, throws CommunicationError instead of waiting; -1: none does.
template <annulus::Communicator C>
class LosingCommunicator {
 public:
  using memory_space = typename C::memory_space;

  class Transfer {
   public:
    /// queue: that of the memory space, unless it is empty.
    template <class... Queue>
    void wait(Queue const&... queue) {
      if ((*waits_)-- == 0) throw annulus::CommunicationError("the peer was lost");
      inner_.wait(queue...);
    }

   private:
    friend class LosingCommunicator;
    Transfer(annulus::TransferOf<C> inner, std::shared_ptr<int> waits)
        : inner_(std::move(inner)), waits_(std::move(waits)) {}

    annulus::TransferOf<C> inner_;
    std::shared_ptr<int> waits_;
  };

  LosingCommunicator(C& inner, int fatal_wait) : inner_(&inner), waits_(std::make_shared<int>(fatal_wait)) {}

  annulus::Rank rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  template <class... Queue>
  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in,
                       Queue const&... queue) {
    return {inner_->start_shift(channel, hop, out, in, queue...), waits_};
  }
  void finish(annulus::QueueOf<memory_space> const& queue) { annulus::detail::finish_queue(*inner_, queue); }
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { inner_->all_gather(mine, all); }
  void abandon(std::string const& reason) noexcept { inner_->abandon(reason); }

 private:
  C* inner_;
  std::shared_ptr<int> waits_;
};

}  // namespace annulus_test
