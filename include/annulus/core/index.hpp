#pragma once
// Integer types of the library, and the extents of an attention problem. Positions and extents are signed, so that a
// distance is an ordinary difference.

#if __cplusplus < 202002L
#error "annulus requires C++20: compile with -std=c++20 (CMake: target_compile_features(... cxx_std_20))"
#endif

#include <cstddef>
#include <limits>

namespace annulus {

/// Positions, extents and counts.
using Index = std::ptrdiff_t;

/// Position of a process in the ring, 0 <= rank < ranks.
using Rank = int;

namespace detail {

/// The rank at a place of the ring that may lie beyond either end: place modulo ranks, also for a negative place.
constexpr Rank rank_at(int place, int ranks) { return (place % ranks + ranks) % ranks; }

/// floor(a / b) for b > 0, also for negative a.
constexpr Index floor_divide(Index a, Index b) { return a / b - (a % b < 0 ? 1 : 0); }

/// ceil(a / b) for b > 0, also for negative a.
constexpr Index ceil_divide(Index a, Index b) { return a / b + (a % b > 0 ? 1 : 0); }

inline constexpr Index largest_index = std::numeric_limits<Index>::max();

/// a + b and a * b, clamped to the range of Index on overflow.
constexpr Index saturating_sum(Index a, Index b) {
  Index sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? std::numeric_limits<Index>::min() : largest_index;
}
constexpr Index saturating_product(Index a, Index b) {
  Index product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) != (b < 0) ? std::numeric_limits<Index>::min() : largest_index;
}

}  // namespace detail

/// Extents of an attention problem that are equal on every rank:
/// q [batch, local_queries, query_heads, head_dim], k [batch, local_keys, kv_heads, head_dim],
/// v [batch, local_keys, kv_heads, value_dim], output [batch, local_queries, query_heads, value_dim].
/// query_heads is a multiple of kv_heads: query head h reads kv head h / group().
struct AttentionShape {
  Index batch = 1;        ///< batch items
  Index query_heads = 1;  ///< heads of q
  Index kv_heads = 1;     ///< heads of k and v
  Index head_dim = 1;     ///< elements of a row of q and k
  Index value_dim = 1;    ///< elements of a row of v and of the output

  bool operator==(AttentionShape const&) const = default;

  /// Query heads per kv head.
  constexpr Index group() const { return kv_heads == 0 ? 1 : query_heads / kv_heads; }
};

/// Forward or backward.
enum class Pass {
  forward,   ///< output and lse
  backward,  ///< gradients
};

}  // namespace annulus
