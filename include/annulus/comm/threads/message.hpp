#pragma once
// Messages between ranks that are threads, and the pairing of their two ends.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "annulus/comm/message.hpp"

namespace annulus::detail {

/// Both ends of a message. The rank that posts the second end copies, so that no rank depends on another's wait.
struct ThreadMessage {
  Address address;
  std::vector<std::span<std::byte const>> out;
  std::vector<std::span<std::byte>> in;
  CallPosition sent_at, expected_at;  ///< of the two ranks when they posted their ends
  bool withdrawn = false;
  int posted = 0;  ///< ends whose runs are set
  enum { awaited, copying, delivered } state = awaited;
  Complaint complaint;
  int holders = 0;  ///< ends that are in use; if 0, the object may serve a later message between the same ranks

  ThreadMessage() {
    out.reserve(max_window_runs);
    in.reserve(max_window_runs);
  }

  /// Makes the object a message that no rank has posted.
  void renew(Address const& renewed) {
    address = renewed;
    withdrawn = false;
    posted = 0;
    state = awaited;
    complaint.clear();
    holders = 1;
  }

  /// True if the two ends agree; else sets the complaint.
  bool agrees() {
    complaint = disagreement(in, expected_at, out, sent_at);
    return complaint.empty();
  }
};

/// The messages to one rank.
template <class Message>
class Mailbox {
 public:
  /// The message of this address, with one more holder. make(): a new object, where none can be used again.
  template <class Make>
  Message& hold(Address const& address, Make make) {
    Message* spare = nullptr;
    for (auto const& message : messages_) {
      if (message->holders > 0 && message->address == address && !message->withdrawn) {
        ++message->holders;
        return *message;
      }
      bool const fits = message->address.from == address.from && message->address.channel == address.channel;
      // The oldest: the others show what the ranks have done last.
      if (message->holders == 0 && fits && (!spare || message->address.number < spare->address.number))
        spare = message.get();
    }
    for (int made = 0; !spare && made < Message::made_at_once; ++made) {
      messages_.push_back(make());
      messages_.back()->address = {address.from, address.to, address.channel, 0};
    }
    if (!spare) spare = messages_.back().get();
    spare->renew(address);
    return *spare;
  }

  auto begin() const { return messages_.begin(); }
  auto end() const { return messages_.end(); }

 private:
  std::vector<std::unique_ptr<Message>> messages_;
};

}  // namespace annulus::detail
