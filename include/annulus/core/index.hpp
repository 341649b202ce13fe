#pragma once
// The integers of the library: positions and extents are signed, so that a distance is an ordinary difference.

#include <cstddef>

namespace annulus {

using Index = std::ptrdiff_t;

/// Place of a participant in the ring, 0 <= rank < ranks.
using Rank = int;

/// floor(a / b) for b > 0, also for negative a.
constexpr Index floor_divide(Index a, Index b) { return a / b - (a % b < 0 ? 1 : 0); }

/// ceil(a / b) for b > 0, also for negative a.
constexpr Index ceil_divide(Index a, Index b) { return a / b + (a % b > 0 ? 1 : 0); }

}  // namespace annulus
