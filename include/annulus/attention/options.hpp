#pragma once
// Options of RingAttention: an aggregate for designated initialisers.

#include <optional>

#include "annulus/core/old_name.hpp"
#include "annulus/mask/attention_rules.hpp"
#include "annulus/ring/observer.hpp"
#include "annulus/schedule/estimate.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus {

/// Options of a RingAttention; they must be equal on all ranks. logit = softcap(q.k * softmax_scale) + bias for visible
/// pairs, then softmax with sink logits, then dropout.
struct Options {
  Mask mask{};                            ///< default: everything is visible
  BlockMask block_mask{};                 ///< hides blocks of queries x keys, which cost nothing; default: none
  std::optional<double> softmax_scale{};  ///< default 1 / sqrt(head_dim); any finite value, 0 and negative included
  /// c > 0: c * tanh(x / c), with c from 1.2e-38 to 2.5e30 (sums in double: 2.3e-308 to 2.4e291); default 0: no cap
  double logit_softcap = 0;
  Dropout dropout{};    ///< default: none
  Sharding sharding{};  ///< owner of each position; default contiguous, of any lengths
  /// Global position of query 0, of any sign. 0 aligns queries and keys at the start, global keys - global queries
  /// aligns them at the end, as FlashAttention does since version 2.1. Unset: 0, but refused where it decides: if
  /// queries and keys differ in number and the mask is causal, a window or chunks.
  std::optional<Index> query_offset{};
  /// The same bits for any number of ranks, either rotation and every sharding whose pieces are whole leaves; others
  /// are refused with UnsupportedError. For a given number of ranks, rotation and sharding, results always have the
  /// same bits.
  bool reproducible = false;
  /// Positions of a leaf of a reproducible call: leaf i is [i * reproducible_leaf, (i + 1) * reproducible_leaf) of the
  /// queries, or of the keys. Leaves are computed apart, and their partial results are joined in a fixed binary tree.
  Index reproducible_leaf = AttentionRules{}.reproducible_leaf;
  Rotation rotation = Rotation::automatic;  ///< default: the side that sends fewer bytes
  Schedule schedule = Schedule::ring;       ///< how rows travel (schedule/schedule.hpp); results agree within rounding
  /// Consecutive ranks of a group, in schedules that have groups. 0: those of a double ring are the ranks that the
  /// communicator says are near each other (refused if it does not know); others have as many as send the fewest bytes,
  /// for two_levels among those whose ranks are near each other.
  int ranks_per_group = 0;
  detail::OldName<int> group{};  ///< deprecated: ranks_per_group
  /// Of the ranks and links, for Schedule::automatic, which then chooses the least estimated time. Unset: the fewest
  /// bytes. With `far` and without a group, groups are the ranks that the communicator says are near each other.
  std::optional<Rates> rates{};
  /// Type in which float and double operands travel. With a narrower one, results are those of q, k, v and dout rounded
  /// to it, on every rank and in every schedule; joint keys, a bias, and all sums keep their type. Host memory only.
  Wire wire = Wire::as_stored;
  /// Detect errors between ranks: payloads and call records carry checksums, values that must be equal on all ranks are
  /// compared, and a call ends with a final confirmation, so that no rank returns if another throws. Host memory only;
  /// costs a pass over all bytes exchanged. Unset: on in builds without NDEBUG; in a program that links annulus::cpu, in
  /// builds of that library without it.
  std::optional<bool> checked{};
  /// Throw an Error that names rank, step and row of the first result that is not finite. Host memory only.
  bool require_finite = false;
  /// Receives what this rank does, step by step, with times (ring/observer.hpp); write_trace (ring/trace.hpp) draws it.
  /// Not compared across ranks; never changes results. Unset: no time is measured.
  Observer observer{};
};

}  // namespace annulus
