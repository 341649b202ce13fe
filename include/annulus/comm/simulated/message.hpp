#pragma once
// Messages between the ranks of a simulated ring, and the pairing of their two ends.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "annulus/comm/ring_failure.hpp"

namespace annulus::detail {

/// Identity of a message or window: sender, receiver, channel, and sequence number on the channel.
struct SimulatedAddress {
  Rank from = 0, to = 0;
  Channel channel{};
  std::uint64_t number = 0;

  bool operator==(SimulatedAddress const&) const = default;
};

/// Both ends of a message. The rank that posts the second end copies, so that no rank depends on another's wait.
struct SimulatedMessage {
  SimulatedAddress address;
  std::vector<std::span<std::byte const>> out;
  std::vector<std::span<std::byte>> in;
  CallPosition sent_at, expected_at;  ///< of the two ranks when they posted their ends
  bool withdrawn;
  int posted;  ///< ends whose runs are set
  enum { awaited, copying, delivered } state;
  Complaint complaint;
  int holders = 0;  ///< ends that are in use; if 0, the object may serve a later message between the same ranks

  void copy() {
    if (sent_at != expected_at)
      complaint = wrong_position(expected_at, sent_at);
    else if (out.size() != in.size())
      complaint = wrong_run_count(in.size(), out.size());
    for (std::size_t p = 0; p < in.size() && complaint.empty(); ++p)
      if (in[p].size() != out[p].size())
        complaint = wrong_run_length(p, in[p].size(), out[p].size());
      else if (!in[p].empty())
        std::memcpy(in[p].data(), out[p].data(), in[p].size());
  }
};

/// The messages to one rank.
class SimulatedMailbox {
 public:
  /// The message of this address, with one more holder.
  SimulatedMessage& hold(SimulatedAddress const& address) {
    SimulatedMessage* spare = nullptr;
    for (auto const& message : messages_) {
      if (message->holders > 0 && message->address == address && !message->withdrawn) {
        ++message->holders;
        return *message;
      }
      if (message->holders == 0 && message->address.from == address.from && message->address.channel == address.channel)
        spare = message.get();
    }
    // Four objects: in a ring of two ranks both directions arrive from the same one, and in each the sender may post
    // the next message while the receiver still uses the last one.
    for (int made = 0; !spare && made < 4; ++made) {
      SimulatedMessage& fresh = *messages_.emplace_back(std::make_unique<SimulatedMessage>());
      fresh.address = address;
      fresh.out.reserve(max_window_runs);
      fresh.in.reserve(max_window_runs);
    }
    if (!spare) spare = messages_.back().get();
    spare->address = address;
    spare->withdrawn = false;
    spare->posted = 0;
    spare->state = SimulatedMessage::awaited;
    spare->complaint.clear();
    spare->holders = 1;
    return *spare;
  }

 private:
  std::vector<std::unique_ptr<SimulatedMessage>> messages_;
};

}  // namespace annulus::detail
