#pragma once
// On-chip memory that the tiles of a buffer occupy, over all places of its rotation.

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/program/saturating.hpp"

namespace annulus::nki {

/// Bytes of SBUF per partition.
inline Index bytes_per_partition(Buffer const& buffer) {
  return saturating_multiply(saturating_multiply(buffer.elements_per_partition(), bytes_of(buffer.type)),
                             buffer.rotation);
}

/// Banks of PSUM. Every place begins at a bank boundary, so that no result crosses one.
inline Index psum_banks(Buffer const& buffer, Limits const& limits) {
  Index const bytes = saturating_multiply(buffer.elements_per_partition(), bytes_of(buffer.type));
  return saturating_multiply(ceil_divide(bytes, limits.psum_bank_bytes), buffer.rotation);
}

}  // namespace annulus::nki
