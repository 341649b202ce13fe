#pragma once
// Extents of an attention problem that are equal on every rank.

#include "annulus/core/index.hpp"

namespace annulus {

/// q [batch, local_queries, query_heads, head_dim], k [batch, local_keys, kv_heads, head_dim],
/// v [batch, local_keys, kv_heads, value_dim], output [batch, local_queries, query_heads, value_dim].
/// query_heads is a multiple of kv_heads: query head h reads kv head h / group().
struct AttentionShape {
  Index batch = 1;
  Index query_heads = 1;
  Index kv_heads = 1;
  Index head_dim = 1;
  Index value_dim = 1;

  bool operator==(AttentionShape const&) const = default;

  /// Query heads per kv head.
  constexpr Index group() const { return kv_heads == 0 ? 1 : query_heads / kv_heads; }
};

/// Forward or backward.
enum class Pass { forward, backward };

}  // namespace annulus
