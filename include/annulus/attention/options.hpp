#pragma once
// Options of RingAttention: an aggregate for designated initialisers.

#include <optional>

#include "annulus/mask/mask.hpp"
#include "annulus/numerics/dropout.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus {

/// Options of a RingAttention; they must be equal on all ranks. logit = softcap(q.k * softmax_scale) + bias for visible
/// pairs, then softmax with sink logits, then dropout.
struct Options {
  Mask mask{};                            ///< default: everything is visible
  std::optional<double> softmax_scale{};  ///< default 1 / sqrt(head_dim); any finite value, 0 and negative included
  /// c > 0: c * tanh(x / c), with c from 1.2e-38 to 2.5e30 (sums in double: 2.3e-308 to 2.4e291); default 0: no cap
  double logit_softcap = 0;
  Dropout dropout{};                      ///< default: none
  Sharding sharding{};                    ///< owner of each position; default contiguous, of any lengths
  Index query_offset = 0;                 ///< global position of query 0, e.g. the number of cached keys; any sign
  Rotation rotation = Rotation::automatic;
  /// Detect errors between ranks: payloads and call records carry checksums, values that must be equal on all ranks are
  /// compared, and a call ends with a final confirmation, so that no rank returns if another throws. Host memory only;
  /// costs a pass over all bytes exchanged. Unset: on in builds without NDEBUG.
  std::optional<bool> checked{};
  /// Throw an Error that names rank, step and row of the first result that is not finite. Host memory only.
  bool require_finite = false;
};

}  // namespace annulus
