#pragma once
// Options, operands and results of CachedAttention.

#include <cstdint>
#include <optional>
#include <span>

#include "annulus/core/old_name.hpp"
#include "annulus/core/scalar.hpp"
#include "annulus/mask/attention_rules.hpp"
#include "annulus/schedule/merge_plan.hpp"
#include "annulus/sharding/sharding.hpp"
#include "annulus/tensor/operands.hpp"
#include "annulus/tensor/tensor_like.hpp"

namespace annulus {

/// Options of a CachedAttention; they must be equal on all ranks.
struct CachedOptions {
  Mask mask{};  ///< default: every query sees the whole sequence
  /// Hides blocks of queries x keys; covers the positions of all queries and rows. Default: none.
  BlockMask block_mask{};
  std::optional<double> softmax_scale{};  ///< default 1 / sqrt(head_dim); any finite value
  double logit_softcap = 0;               ///< c > 0: c * tanh(x / c); 0: no cap
  /// Drops the pairs that a call without a cache drops: by batch item, which is the place of the sequence in the list
  /// of the call, query head, and positions in the sequence. Default: none.
  Dropout dropout{};
  /// The bits of a reproducible RingAttention, in any chunks and batches, and on any number of ranks.
  bool reproducible = false;
  /// Positions of a leaf, as Options::reproducible_leaf. On several ranks that of CacheShape.
  Index reproducible_leaf = AttentionRules{}.reproducible_leaf;
  Sharding sharding{};  ///< of the rows of prefill and append_shards; default contiguous, of any lengths
  MergeMethod merge = MergeMethod::automatic;  ///< how the partial results of decode are merged; reproducible: gather
  LinkRates link = usual_link;                 ///< by which MergeMethod::automatic chooses
  /// Detect errors between ranks, as Options::checked does. Unset: on in builds without NDEBUG.
  std::optional<bool> checked{};
};

/// Operands of a call in addition to queries, keys and values.
template <Scalar T, class Space = HostMemory>
struct CachedOperands {
  OptionalSinks<Accumulator<T>, Space> sinks{};  ///< [query_heads] or [query_heads, n], equal on all ranks
  /// [batch|1, query_heads|1, queries, keys], added to the logits; keys: positions in the sequence, at least as many as
  /// the longest one has rows. For decode; equal on all ranks.
  OptionalView<T, 4, Space> bias{};
  /// Shaped as the bias, bool or any integer type; true, or not 0: the query may see the key. For decode.
  OptionalIntegers<bool, 4, Space> mask{};
  /// Document ids [batch, queries] of any integer type, which a cache with CacheShape::document_ids requires, and no
  /// other accepts. Equal positive ids see each other; 0 and negative ids are padding. In decode equal on all ranks, in
  /// prefill those of this rank's shard.
  OptionalIntegers<std::int32_t, 2, Space> query_documents{};
  detail::OldName<OptionalIntegers<std::int32_t, 2, Space>> query_segments{};  ///< deprecated: query_documents
  OptionalIntegers<std::int32_t, 2, Space>
      key_documents{};  ///< likewise, [batch, rows] of the rows that decode appends
  detail::OldName<OptionalIntegers<std::int32_t, 2, Space>> key_segments{};  ///< deprecated: key_documents
  /// Position of query 0 of each batch item; empty: the queries are the last rows of their sequences.
  std::span<Index const> query_offsets{};
  std::optional<Index> call{};  ///< number of the call, chosen by the caller; compared across ranks
};

/// Operands of append and append_shards in addition to keys and values.
template <class Space = HostMemory>
struct AppendOperands {
  OptionalIntegers<std::int32_t, 2, Space> key_documents{};  ///< document ids [batch, rows]; see CachedOperands
  detail::OldName<OptionalIntegers<std::int32_t, 2, Space>> key_segments{};  ///< deprecated: key_documents
  std::optional<Index> call{};                                               ///< number of the call; see CachedOperands
};

/// Result of prefill and decode. T: a tensor type with four axes.
template <TensorLike T>
struct CachedForward {
  T output;  ///< [batch, queries, query_heads, value_dim], in the axis order of q; a row that sees no key is 0
  /// [batch, query_heads, queries], natural log, sink logits included; -inf if no key is seen.
  MadeLike<T, Accumulator<ScalarOf<T>>, 3> lse;
  MadeLike<T, Accumulator<ScalarOf<T>>, 3> lse_remainder;  ///< rounding error of lse, shaped as it
};

}  // namespace annulus
