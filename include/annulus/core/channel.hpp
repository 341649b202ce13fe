#pragma once
// Channels: streams of exchanges between ranks.

#include <string_view>

namespace annulus {

/// A stream of shifts. Shifts on different channels never match each other, and complete in any order.
enum class Channel : int {
  prefetched,  ///< what the next step needs; sent before the compute of a step
  carried,     ///< what a step has added to; sent after its compute
  reduction,   ///< small sums over all ranks
};

constexpr std::string_view name_of(Channel channel) {
  return channel == Channel::prefetched ? "prefetched" : channel == Channel::carried ? "carried" : "reduction";
}

}  // namespace annulus
