#pragma once
// Options of a ring over MPI.

#include <chrono>
#include <climits>
#include <cstddef>

#include "annulus/comm/zero_copy.hpp"
#include "annulus/core/error.hpp"

namespace annulus {

/// Options of MpiRing.
struct MpiRingOptions {
  /// The longest wait of this rank, after which the peer counts as late; at least 1 ms. Ranks may choose differently.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Longer runs are sent in several messages. Between 1 and INT_MAX (MPI counts with int); the same on all ranks.
  std::size_t max_message_bytes = std::size_t{1} << 30;
  /// Possible if all ranks of the ring run on one node (Linux, one user, no container boundary between them). A ring
  /// over several nodes is as fast as its slowest hop, so all its hops are messages. During compute, messages advance
  /// only as far as MPI moves them by itself or the backend calls Step::progress; a progress thread inside MPI takes a
  /// core from the compute, and is not offered. The same on all ranks.
  ZeroCopy zero_copy = ZeroCopy::automatic;
};

namespace detail {

/// Throws UnsupportedError for options of a rank that are out of range.
inline void validate(MpiRingOptions const& options, Rank rank) {
  check<UnsupportedError>(options.timeout.count() >= 1, "rank ", rank, ": MpiRingOptions: timeout is ",
                          options.timeout.count(), " ms; at least 1 ms is accepted");
  check<UnsupportedError>(options.max_message_bytes >= 1 && options.max_message_bytes <= INT_MAX,
                          "rank ", rank, ": MpiRingOptions: max_message_bytes is ", options.max_message_bytes, "; 1 to ", INT_MAX,
                          " are accepted");
  check<UnsupportedError>(options.zero_copy == ZeroCopy::automatic || options.zero_copy == ZeroCopy::never ||
                              options.zero_copy == ZeroCopy::always,
                          "rank ", rank, ": MpiRingOptions: zero_copy is ", static_cast<int>(options.zero_copy),
                          "; automatic, never and always are accepted");
}

}  // namespace detail

}  // namespace annulus
