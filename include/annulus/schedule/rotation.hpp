#pragma once

#include <string_view>

namespace annulus {

/// Which side travels around the ring; the other one stays.
enum class Rotation {
  automatic,  ///< the side that sends fewer bytes; keys where both send the same
  keys,       ///< k and v travel, in the backward pass with their gradients behind them
  queries,    ///< q travels, with the running state (forward) or dout, lse, its remainder, delta and dq (backward)
};

constexpr std::string_view name_of(Rotation rotation) {
  return rotation == Rotation::automatic ? "automatic" : rotation == Rotation::keys ? "keys" : "queries";
}

}  // namespace annulus
