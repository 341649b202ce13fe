#pragma once
// Communicator that is correct except for one selected mistake, which it makes without throwing.

#include <Eigen/Core>
#include <algorithm>
#include <annulus/comm/communicator.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace annulus_test {

enum class RingFault {
  none,
  stale_prefetched,        ///< the second prefetched shift delivers nothing: the buffer keeps its contents
  early_wait,              ///< wait() returns, and the prefetched bytes arrive one wait later
  wrong_neighbour,         ///< prefetched shifts go in the other direction
  send_buffer_reused,      ///< half of a message is from the sender's previous message
  last_carried_lost,       ///< the shift that returns results to their owner delivers nothing
  carried_in_16_bits,      ///< floats are rounded to bfloat16 on every hop
  reduction_of_own_share,  ///< small sums receive zeros from the other ranks
};

/// Wraps the communicator of one rank, which must outlive it. The mistake is made on the receiving side.
template <annulus::Communicator C>
class FaultyCommunicator {
  /// Messages that this rank has received so far.
  struct History {
    int prefetched = 0, carried = 0;
    std::vector<std::byte> last_message;
    std::function<void()> late;
  };

 public:
  using memory_space = typename C::memory_space;

  class Transfer {
   public:
    void wait() {
      if (!inner_) return;
      inner_->wait();
      inner_.reset();
      deliver_();
    }

   private:
    friend class FaultyCommunicator;
    using Inner = annulus::TransferOf<C>;
    Transfer(std::unique_ptr<std::vector<std::byte>> bytes, std::unique_ptr<Inner> inner, std::function<void()> deliver)
        : bytes_(std::move(bytes)), inner_(std::move(inner)), deliver_(std::move(deliver)) {}

    std::unique_ptr<std::vector<std::byte>> bytes_;
    std::unique_ptr<Inner> inner_;  // destroyed before the bytes it writes to
    std::function<void()> deliver_;
  };

  FaultyCommunicator(C& inner, RingFault fault)
      : inner_(&inner), fault_(fault), history_(std::make_shared<History>()) {}

  annulus::Rank rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
    bool const prefetched = channel == annulus::Channel::prefetched, carried = channel == annulus::Channel::carried;
    int const number = prefetched ? history_->prefetched++ : carried ? history_->carried++ : 0;
    if (fault_ == RingFault::wrong_neighbour && prefetched) hop = size() - hop;

    std::size_t total = 0;
    for (auto const& run : in) total += run.size();
    auto bytes = std::make_unique<std::vector<std::byte>>(total);
    std::vector<std::span<std::byte>> places;
    std::size_t begin = 0;
    for (auto const& run : in) {
      places.emplace_back(bytes->data() + begin, run.size());
      begin += run.size();
    }
    std::vector<std::span<std::byte>> const target(in.begin(), in.end());
    auto deliver = [this_fault = fault_, history = history_, message = bytes.get(), target, prefetched, carried, number,
                    last = number % size() == size() - 1] {
      if (history->late) std::exchange(history->late, nullptr)();
      if (this_fault == RingFault::stale_prefetched && prefetched && number == 1) return;
      if (this_fault == RingFault::last_carried_lost && carried && last) return;
      if (this_fault == RingFault::reduction_of_own_share && !prefetched && !carried)
        std::fill(message->begin(), message->end(), std::byte{0});
      if (this_fault == RingFault::carried_in_16_bits && carried) narrow(*message);
      if (this_fault == RingFault::send_buffer_reused && prefetched) {
        auto const sent = *message;
        if (history->last_message.size() == message->size())
          std::copy_n(history->last_message.begin(), message->size() / 2, message->begin());
        history->last_message = sent;
      }
      auto const copy = [content = *message, target] {
        auto from = content.begin();
        for (auto const& run : target) {
          std::copy_n(from, run.size(), run.begin());
          from += static_cast<std::ptrdiff_t>(run.size());
        }
      };
      if (this_fault == RingFault::early_wait && prefetched)
        history->late = copy;
      else
        copy();
    };
    auto inner = std::make_unique<annulus::TransferOf<C>>(inner_->start_shift(channel, hop, out, places));
    return Transfer(std::move(bytes), std::move(inner), std::move(deliver));
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { inner_->all_gather(mine, all); }
  void abandon(std::string const& reason) noexcept { inner_->abandon(reason); }

 private:
  static void narrow(std::vector<std::byte>& bytes) {
    for (std::size_t i = 0; i + sizeof(float) <= bytes.size(); i += sizeof(float)) {
      float value;
      std::memcpy(&value, bytes.data() + i, sizeof value);
      value = static_cast<float>(static_cast<Eigen::bfloat16>(value));
      std::memcpy(bytes.data() + i, &value, sizeof value);
    }
  }

  C* inner_;
  RingFault fault_;
  std::shared_ptr<History> history_;
};

}  // namespace annulus_test
