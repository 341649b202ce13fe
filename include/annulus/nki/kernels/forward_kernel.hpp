#pragma once
// Forward attention kernels: the whole SPMD ring, and one step that folds an owner's keys into a running state.
//
// The headers of this folder by their last word, for both passes:
//   kernel    the public class: a kernel_spec and a ring_mask in, a Program out
//   writer    chooses sizes that fit SBUF, declares the tensors, and writes the rounds (round.hpp)
//   work      the units of work of a round or step, and what they refer to; emits no instruction
//   schedule  orders the units of a forward round, with the transfers between them
//   pipeline  emits the instructions of the units, stage by stage (stationary_pipeline: without a running maximum)
//   epilogue  emits what follows the last unit of a row tile: division by the sums, log-sum-exp
//   operands, loads, tiles, buffers   operands and results in SBUF and HBM, which the above share

#include <utility>

#include "annulus/nki/definitions.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#if defined(ANNULUS_NKI_DEFINITIONS)
#include "annulus/nki/kernels/forward_writer.hpp"
#endif

namespace annulus::nki {

/// Builds forward programs. `mask` must outlive the kernel; it covers all ranks for ring(), one rank for step().
class ForwardKernel {
 public:
  /// Throws UnsupportedError if the spec is not supported, ShapeError if its extents are invalid or do not fit SBUF.
  ForwardKernel(KernelSpec spec, RingMask const& mask, ForwardTuning tuning = {});

  /// The kernel of a whole ring. Inputs: q [batch, query_heads, head_dim, rows] (queries_by_token: [.., rows,
  /// head_dim]), k [batch, kv_heads, head_dim, keys] (keys_by_token: [.., keys, head_dim]), v [batch, kv_heads, keys,
  /// value_dim], the mask input, `bias` and `kept` if there are any, and sink logits `sinks` [batch, query_heads, n],
  /// the same for each batch item. Outputs: output [batch, query_heads, rows, value_dim] and, in training, lse [batch,
  /// query_heads, 128, columns], row c * 128 + p at (p, c), natural logarithm, 0 beyond the last row. Throws ShapeError
  /// if the mask does not match the spec or SBUF is exceeded.
  ///
  /// With keys_stationary no maximum is subtracted from the logits (nki/README.md, "Stationary keys"), and there is
  /// another output: beyond_range, with the shape of lse, float32. It is 1 for rows whose sum of weights is not between
  /// 2^-60 and 2^60, for all rows of a head with a sink logit above 60 log 2, for rows that see no key, and where a row
  /// overflows, perhaps for the one in its place in the other half of a zigzag shard. All other rows are as accurate as
  /// without keys_stationary, lse within 2^-8, for elements of v that are 0 or between 2^-60 and 2^60 in magnitude. If
  /// any rank reports a row, the caller runs the kernel without keys_stationary instead, on all ranks.
  Program ring() &&;

  /// The kernel of one step: the keys of one owner, no collectives. Inputs: q, k, v and the mask input as for ring(),
  /// and the running state, float32: old_negated_maximum and old_sum [batch * query_heads, 128, columns],
  /// old_accumulator [batch * query_heads, rows, value_dim]. Outputs: new_negated_maximum, new_sum, new_accumulator. A
  /// row that has seen no key has negated maximum 1e30, sum 0 and an accumulator of zeros. Throws as ring() does.
  Program step() &&;

 private:
  KernelSpec spec_;
  RingMask const* mask_;
  ForwardTuning tuning_;
};

#if defined(ANNULUS_NKI_DEFINITIONS)

ANNULUS_NKI_INLINE ForwardKernel::ForwardKernel(KernelSpec spec, RingMask const& mask, ForwardTuning tuning)
    : spec_(std::move(spec)), mask_(&mask), tuning_(tuning) {
  ForwardWriter(spec_, *mask_, tuning_);
}

ANNULUS_NKI_INLINE Program ForwardKernel::ring() && { return ForwardWriter(std::move(spec_), *mask_, tuning_).ring(); }

ANNULUS_NKI_INLINE Program ForwardKernel::step() && { return ForwardWriter(std::move(spec_), *mask_, tuning_).step(); }

#endif

}  // namespace annulus::nki
