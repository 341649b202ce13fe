#pragma once
// The options of a ring attention, for designated initialisers.

#include <optional>

#include "annulus/mask/mask.hpp"
#include "annulus/numerics/dropout.hpp"
#include "annulus/schedule/rotation.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus {

/// Equal on all ranks. logit = softcap(q.k * softmax_scale) + bias, where the mask allows it; then softmax with sinks,
/// then dropout.
struct Options {
  Mask mask{};                            ///< default: everything is visible
  std::optional<double> softmax_scale{};  ///< default 1 / sqrt(head_dim); 0 and negative values mean what they say
  double logit_softcap = 0;               ///< c > 0: c * tanh(x / c); default 0: no cap
  Dropout dropout{};                      ///< default: none
  Sharding sharding{};                    ///< who owns which position; default contiguous, of any lengths
  Index query_offset = 0;                 ///< global position of query 0, e.g. the number of cached keys; any sign
  Rotation rotation = Rotation::automatic;
};

}  // namespace annulus
