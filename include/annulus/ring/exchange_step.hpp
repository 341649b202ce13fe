#pragma once
// Checksums and errors of the exchanges of a step.

#include <cstdint>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/check.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/mask/band.hpp"

namespace annulus::detail {

/// Seed of the checksum of the rows that step `step` of a call sends on `channel`. Unique for step < 2^24, call < 2^38.
constexpr std::uint64_t checksum_seed(std::uint64_t call, Channel channel, int step) {
  return (call << 24 | static_cast<std::uint64_t>(step)) << 2 | static_cast<std::uint64_t>(channel);
}

/// Throws CommunicationError if the checksum in `slot` shows that `rows` are not what `sender` sent.
template <class Payload>
void require_intact(Payload const& payload, RowRange rows, std::uint64_t seed, Index slot, Channel channel, Rank rank,
                    Rank sender) {
  if (!payload.is_intact(rows, seed, slot))
    throw CommunicationError(message_of("rank ", rank, ": ", name_of(channel), " rows from rank ", sender,
                                        " do not match the checksum that rank ", sender, " computed"),
                             rank, CommunicationError::unknown, sender);
}

/// Calls function(); adds the step to a CommunicationError that it throws.
template <class Function>
void in_step(Rank rank, int step, Function&& function) {
  try {
    function();
  } catch (CommunicationError const& error) {
    throw CommunicationError(message_of("step ", step, " of the ring: ", error.what()), rank, step, error.neighbour());
  }
}

}  // namespace annulus::detail
