#pragma once
// Saturating arithmetic on extents and strides, so that an oversized value is detected instead of wrapping around.

#include <limits>

#include "annulus/core/index.hpp"

namespace annulus::nki {

/// a * b, or the limit of Index with the sign of the product on overflow.
constexpr Index saturating_multiply(Index a, Index b) {
  Index product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) == (b < 0) ? std::numeric_limits<Index>::max() : std::numeric_limits<Index>::min();
}

/// a + b, or the limit of Index with the sign of b on overflow.
constexpr Index saturating_add(Index a, Index b) {
  Index sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b < 0 ? std::numeric_limits<Index>::min() : std::numeric_limits<Index>::max();
}

}  // namespace annulus::nki
