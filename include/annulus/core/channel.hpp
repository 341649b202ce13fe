#pragma once
// Channels: streams of exchanges between ranks.

#include <cstddef>
#include <string_view>

namespace annulus {

/// A stream of shifts. Shifts on different channels never match each other, and complete in any order.
enum class Channel : int {
  prefetched,  ///< what the next step needs; sent before the compute of a step
  carried,     ///< what a step has added to; sent after its compute
  reduction,   ///< small sums over all ranks
};

/// Number of channels.
inline constexpr std::size_t num_channels = 3;

/// Number of windows that a rank can open to another on one channel before the reader has waited for the first; to open
/// one more, it may wait for the reader.
constexpr std::size_t max_open_windows = 8;

constexpr std::string_view name_of(Channel channel) {
  return channel == Channel::prefetched ? "prefetched" : channel == Channel::carried ? "carried" : "reduction";
}

}  // namespace annulus
