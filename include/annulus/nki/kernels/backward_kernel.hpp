#pragma once
// Backward attention kernels: the whole SPMD ring, and one step that adds an owner's contribution to the gradients.
// forward_kernel.hpp lists the roles of the headers of this folder.

#include <utility>

#include "annulus/nki/definitions.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#if defined(ANNULUS_NKI_DEFINITIONS)
#include "annulus/nki/kernels/backward_writer.hpp"
#endif

namespace annulus::nki {

/// Builds backward programs. `mask` must outlive the kernel; it covers all ranks for ring(), one rank for step().
class BackwardKernel {
 public:
  /// Throws UnsupportedError if the spec is not supported, ShapeError if its extents are invalid or do not fit SBUF.
  BackwardKernel(KernelSpec spec, RingMask const& mask);

  /// The kernel of a whole ring. Inputs: q, k, v and the mask input as for ForwardKernel::ring(); dout and output
  /// [batch, query_heads, rows, value_dim]; lse [batch, query_heads, 128, columns] float32. Outputs, float32: dq
  /// [batch, query_heads, rows, head_dim], dk [batch, kv_heads, keys, head_dim], dv [batch, kv_heads, keys, value_dim].
  /// A row that sees no key gets a zero gradient and contributes nothing. Throws ShapeError if the mask does not match
  /// the spec.
  Program ring() &&;

  /// The kernel of one step: the keys of one owner, no collectives. Inputs: q, k, v, dout and the mask input as for
  /// ring(); lse and delta [batch * query_heads, 128, columns]; dq, dk, dv with the shapes of ring(); all float32 but
  /// q, k, v, dout. Outputs: new_dq, new_dk, new_dv, the sums with this step's contribution. Throws as ring() does.
  Program step() &&;

 private:
  KernelSpec spec_;
  RingMask const* mask_;
};

#if defined(ANNULUS_NKI_DEFINITIONS)

ANNULUS_NKI_INLINE BackwardKernel::BackwardKernel(KernelSpec spec, RingMask const& mask)
    : spec_(std::move(spec)), mask_(&mask) {
  BackwardWriter(spec_, *mask_);
}

ANNULUS_NKI_INLINE Program BackwardKernel::ring() && { return BackwardWriter(std::move(spec_), *mask_).ring(); }

ANNULUS_NKI_INLINE Program BackwardKernel::step() && { return BackwardWriter(std::move(spec_), *mask_).step(); }

#endif

}  // namespace annulus::nki
