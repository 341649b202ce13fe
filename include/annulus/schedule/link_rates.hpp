#pragma once
// Rates of a link between ranks, by which plans estimate times.

#include <limits>

#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"

namespace annulus {

/// A link from one rank to another.
struct LinkRates {
  double latency = 0;                                          ///< seconds until the first byte arrives
  double bandwidth = std::numeric_limits<double>::infinity();  ///< bytes per second

  /// Seconds that a message takes.
  double seconds(Index bytes) const { return latency + static_cast<double>(bytes) / bandwidth; }

  bool operator==(LinkRates const&) const = default;
};

namespace detail {

/// Throws UnsupportedError for a latency or a bandwidth that cannot be.
inline void require_rates(LinkRates const& link) {
  check<UnsupportedError>(link.latency >= 0, "link rates: latency is ", link.latency, "; accepted: 0 or more");
  check<UnsupportedError>(link.bandwidth > 0, "link rates: bandwidth is ", link.bandwidth, "; accepted: above 0");
}

}  // namespace detail

}  // namespace annulus
