#pragma once
// Rotation: which side of a pass travels.

#include <string_view>

namespace annulus {

/// The side that travels around the ring; the other one stays. pass-KV and pass-Q are the names of Yang et al., "Context
/// Parallelism for Scalable Million-Token Inference", arXiv 2411.01783.
enum class Rotation {
  automatic,  ///< the side that sends fewer bytes; keys if both send the same
  keys,       ///< pass-KV: k and v travel, in the backward pass followed by their gradients
  queries,    ///< pass-Q: q travels with the running state; backward with dout, lse, its remainder, delta and dq
};

constexpr std::string_view name_of(Rotation rotation) {
  return rotation == Rotation::automatic ? "automatic" : rotation == Rotation::keys ? "keys" : "queries";
}

}  // namespace annulus
