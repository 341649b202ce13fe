#pragma once
// Products and sums of extents and strides that stop at the ends of Index, so that what is far too large is seen as such
// and does not wrap around to something small.

#include <limits>

#include "annulus/core/index.hpp"

namespace annulus::nki {

constexpr Index saturating_multiply(Index a, Index b) {
  Index product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) == (b < 0) ? std::numeric_limits<Index>::max() : std::numeric_limits<Index>::min();
}

constexpr Index saturating_add(Index a, Index b) {
  Index sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? std::numeric_limits<Index>::min() : std::numeric_limits<Index>::max();
}

}  // namespace annulus::nki
