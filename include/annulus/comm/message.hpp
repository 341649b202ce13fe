#pragma once
// Identity of a message between two ranks, and the agreement of its two ends.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "annulus/comm/ring_failure.hpp"

namespace annulus::detail {

/// Identity of a message or window: sender, receiver, channel, and sequence number on the channel.
struct Address {
  Rank from = 0, to = 0;
  Channel channel{};
  std::uint64_t number = 0;

  bool operator==(Address const&) const = default;
};

/// Numbers the messages or windows of a rank: to each peer and from it, on each channel.
class MessageNumbers {
 public:
  MessageNumbers(Rank rank, int size) : rank_(rank), size_(size), sent_(num_streams(size), 0), received_(sent_) {}

  Address to_next(Channel channel, int hop) {
    Rank const to = ring_neighbour(rank_, hop, size_);
    return {rank_, to, channel, sent_[stream_index(channel, to)]++};
  }
  Address from_next(Channel channel, int hop) {
    Rank const from = ring_neighbour(rank_, -hop, size_);
    return {from, rank_, channel, received_[stream_index(channel, from)]++};
  }

 private:
  Rank rank_;
  int size_;
  std::vector<std::uint64_t> sent_, received_;
};

/// Empty if the sender's runs and position are those that the receiver expects; else what is wrong.
template <class Expected, class Sent>
Complaint disagreement(Expected const& in, CallPosition const& expected_at, Sent const& out,
                       CallPosition const& sent_at) {
  if (sent_at != expected_at) return wrong_position(expected_at, sent_at);
  if (out.size() != in.size()) return wrong_run_count(in.size(), out.size());
  for (std::size_t p = 0; p < in.size(); ++p)
    if (in[p].size() != out[p].size()) return wrong_run_length(p, in[p].size(), out[p].size());
  return {};
}

}  // namespace annulus::detail
