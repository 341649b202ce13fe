#pragma once
// What the tiles of a buffer take of the chip's memories, all places of its rotation at once.

#include "annulus/backend/nki/hardware/hardware.hpp"
#include "annulus/backend/nki/program/saturating.hpp"

namespace annulus::nki {

/// Bytes per partition.
inline Index bytes_per_partition(Buffer const& buffer) {
  return saturating_multiply(saturating_multiply(buffer.elements_per_partition(), bytes_of(buffer.type)),
                             buffer.rotation);
}

/// Banks of PSUM. Every place begins a bank: only then is it certain that results do not cross one.
inline Index psum_banks(Buffer const& buffer, Limits const& limits) {
  Index const bytes = saturating_multiply(buffer.elements_per_partition(), bytes_of(buffer.type));
  return saturating_multiply(ceil_divide(bytes, limits.psum_bank_bytes), buffer.rotation);
}

}  // namespace annulus::nki
