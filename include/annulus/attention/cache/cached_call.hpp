#pragma once
// A call of CachedAttention, the shards of its rows, and the validation of its arguments. No function here
// communicates.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "annulus/attention/agreement.hpp"
#include "annulus/attention/cache/cache_pages.hpp"
#include "annulus/attention/cache/cached_options.hpp"
#include "annulus/attention/validate.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus::detail {

/// An operation on the sequences of a cache. Batch item b belongs to sequence sequences[b].
template <class T, class B>
struct CacheCall {
  std::string_view name;
  bool sharded;  ///< each rank passes its shard of the rows, else equal rows
  std::optional<Index> call;
  KvCache<T, B>& cache;
  std::span<Index const> sequences;

  Index batch() const { return static_cast<Index>(sequences.size()); }
  Index number() const { return CachePages<T, B>::number(cache); }  ///< of the cache
};

/// Rows to append; by default none are given.
template <class T, class Space>
struct NewRows {
  bool given = false;
  TensorView<T const, 4, Space> k{}, v{};
  OptionalIntegers<std::int32_t, 2, Space> ids{};  ///< document ids

  Index rows() const { return k.extent(axis::sequence); }
  CacheRows<T const, Space> all() const { return {k, v, ids ? *ids : TensorView<std::int32_t const, 2, Space>()}; }
};

/// The segments of all ranks, and their numbers of rows, for one side of a sharding; found again if the rows change.
class ShardedRows {
 public:
  /// `records`: of the ranks' calls. Throws ShapeError for lengths that the sharding does not accept.
  void find(Sharding const& sharding, Side side, std::span<CallRecord const> records) {
    auto const rows = [&](CallRecord const& r) { return side == Side::query ? r.local_queries : r.local_keys; };
    bool const known = lengths_.size() == records.size() && segments_.size() == records.size() &&
                       std::equal(records.begin(), records.end(), lengths_.begin(),
                                  [&](CallRecord const& r, Index length) { return rows(r) == length; });
    if (known) return;
    lengths_.clear();
    segments_.clear();
    for (CallRecord const& record : records) lengths_.push_back(rows(record));
    for (std::size_t r = 0; r < records.size(); ++r)
      segments_.push_back(sharding.segments(side, static_cast<Rank>(r), lengths_));
  }

  std::span<Index const> lengths() const { return lengths_; }
  Index total() const { return std::accumulate(lengths_.begin(), lengths_.end(), Index{0}); }
  std::span<Segment const> segments(Rank rank) const { return segments_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<Index> lengths_;
  std::vector<std::vector<Segment>> segments_;
};

/// Validates the options of a reproducible call. of_cache: CacheShape::reproducible_leaf.
inline void validate_leaves(Index leaf, MergeMethod merge, Index of_cache, int ranks) {
  check<UnsupportedError>(leaf >= 1, "reproducible leaf is ", leaf, "; accepted: 1 or more positions");
  check<UnsupportedError>(
      merge != MergeMethod::tree,
      "reproducible with merge tree, whose order is that of the ranks; accepted: automatic, gather");
  check<UnsupportedError>(ranks == 1 || of_cache == leaf, "reproducible with leaves of ", leaf, " positions on ", ranks,
                          " ranks; the cache was made with CacheShape::reproducible_leaf ", of_cache,
                          ", and the same is accepted, as its pages then do not cut leaves");
}

/// Validates options and sequences, and that the cache is one of `ring`.
template <class A, class T, class B, Communicator C>
void validate_cache(CacheCall<T, B> const& call, CachedOptions const& options, C const& ring, bool checked) {
  AttentionRules const rules = rules_of(options);
  PageTable const& table = call.cache.table();
  validate_rules(rules);
  validate_range<A>(rules);
  if constexpr (!std::same_as<typename B::memory_space, HostMemory>)
    check<UnsupportedError>(!checked, "checked is accepted for operands in host memory");
  Rank const held_by = CachePages<T, B>::rank(call.cache);
  check<ShapeError>(table.ranks() == ring.size() && held_by == ring.rank(), "the cache was made by rank ", held_by,
                    " of ", table.ranks(), " ranks; this is rank ", ring.rank(), " of ", ring.size());
  for (Index sequence : call.sequences) table.length(sequence);
  if (rules.reproducible)
    validate_leaves(rules.reproducible_leaf, options.merge, call.cache.shape().reproducible_leaf, ring.size());
}

/// Validates the document ids of `rows` rows of each sequence, which a cache requires or refuses. `converted` receives
/// ids of another integer type than int32.
template <class T, class B, class Ids>
void validate_ids(std::string_view name, CacheCall<T, B> const& call, Ids& ids, Index rows,
                  std::vector<std::byte>& converted) {
  bool const required = call.cache.shape().document_ids;
  check<ShapeError>(required || !ids, name, " are given to ", call.name,
                    " of a cache without document ids; accepted with CacheShape::document_ids");
  check<ShapeError>(!required || ids, call.name, " of a cache with document ids is given no ", name,
                    "; they are required for all rows and queries");
  if (!ids) return;
  require_extents(name, *ids, {call.batch(), rows}, "[sequences, rows]");
  ids.convert(name, converted);
}

/// Validates the rows to append. `converted`: see validate_ids.
template <class T, class B, class Space>
void validate_rows(CacheCall<T, B> const& call, NewRows<T, Space>& rows, std::vector<std::byte>& converted) {
  check<ShapeError>(rows.given || !rows.ids, "key_documents are given to ", call.name,
                    " without rows to append; accepted with k and v");
  if (!rows.given) return;
  CacheShape const& s = call.cache.shape();
  require_extents("k", rows.k, {call.batch(), rows.rows(), s.kv_heads, s.head_dim},
                  "[sequences, rows, kv_heads, head_dim] of the cache");
  require_extents("v", rows.v, {call.batch(), rows.rows(), s.kv_heads, s.value_dim},
                  "[sequences, rows, kv_heads, value_dim] of the cache");
  validate_ids("key_documents", call, rows.ids, rows.rows(), converted);
  if (!call.sharded) call.cache.table().require_room(call.sequences, rows.rows());
}

/// Validates a bias or boolean mask, if it is given.
template <class T, class B, class Optional>
void validate_pairs(std::string_view name, CacheCall<T, B> const& call, Optional const& pairs,
                    AttentionShape const& shape, Index queries) {
  if (!pairs) return;
  check<UnsupportedError>(!call.sharded, "a ", name, " is given to ", call.name,
                          ", whose queries visit all ranks; accepted: by decode");
  require_pairs(name, *pairs, shape, queries);
}

/// Throws ShapeError unless the bias or boolean mask covers all positions of the sequences, `added` rows included.
template <class T, class B, class Optional>
void require_columns(std::string_view name, CacheCall<T, B> const& call, Optional const& pairs, Index added) {
  if (!pairs) return;
  for (Index sequence : call.sequences)
    check<ShapeError>(pairs->extent(3) >= call.cache.length(sequence) + added, name, " covers ", pairs->extent(3),
                      " keys; sequence ", sequence, " has ", call.cache.length(sequence) + added);
}

/// Position of query 0 of batch item `item`, whose sequence has `length` rows.
inline Index first_position(std::span<Index const> offsets, std::size_t item, Index length, Index queries) {
  return offsets.empty() ? length - queries : offsets[item];
}

/// Throws unless the rules apply to the positions of the queries and of the rows of the sequences, `added` ones
/// included: ShapeError if the block mask does not cover them, UnsupportedError if they are too large for dropout.
template <class T, class B>
void require_positions(CacheCall<T, B> const& call, AttentionRules const& rules, std::span<Index const> offsets,
                       Index queries, Index added) {
  BlockMask const& blocks = rules.block_mask;
  for (std::size_t b = 0; b < call.sequences.size(); ++b) {
    Index const sequence = call.sequences[b], length = call.cache.length(sequence) + added;
    Index const first = first_position(offsets, b, length, queries);
    require_dropout_positions(rules.dropout, std::abs(first) + queries, length);
    if (!blocks) continue;
    check<ShapeError>(queries == 0 || (first >= 0 && first + queries <= blocks.queries()),
                      "block mask covers the query positions [0, ", blocks.queries(), "); the queries of sequence ",
                      sequence, " have [", first, ", ", first + queries, ")");
    check<ShapeError>(length <= blocks.keys(), "block mask covers ", blocks.keys(), " keys; sequence ", sequence,
                      " has ", length);
  }
}

/// Validates queries and operands; returns the shape of the call. `converted` receives a mask, and document ids, of
/// other integers.
template <class T, class B, class Space>
AttentionShape validate_queries(CacheCall<T, B> const& call, TensorView<T const, 4, Space> const& q,
                                CachedOperands<T, Space>& operands, std::span<std::vector<std::byte>, 2> converted) {
  CacheShape const& s = call.cache.shape();
  AttentionShape const shape{call.batch(), q.extent(axis::heads), s.kv_heads, s.head_dim, s.value_dim};
  Index const queries = q.extent(axis::sequence);
  require_extents("q", q, {shape.batch, queries, shape.query_heads, s.head_dim},
                  "[sequences, queries, query_heads, head_dim of the cache]");
  check<ShapeError>(shape.query_heads >= 1 && shape.query_heads % s.kv_heads == 0, "q has ", shape.query_heads,
                    " heads, the cache has ", s.kv_heads, "; query_heads must be a positive multiple of kv_heads");
  check<ShapeError>(operands.query_offsets.empty() || operands.query_offsets.size() == call.sequences.size(),
                    operands.query_offsets.size(), " query_offsets are given for ", call.sequences.size(),
                    " sequences; accepted: one for each, or none");
  validate_pairs("bias", call, operands.bias, shape, queries);
  operands.mask.convert("mask", converted[0]);
  validate_pairs("mask", call, operands.mask, shape, queries);
  validate_ids("query_documents", call, operands.query_documents, queries, converted[1]);
  for (Index offset : operands.query_offsets) validate_rules({.query_offset = offset});
  require_countable("the state of the queries", std::array{shape.batch, queries, shape.query_heads, s.value_dim + 2},
                    sizeof(double));
  if (operands.sinks)
    require_extents("sinks", *operands.sinks, {shape.query_heads, operands.sinks->extent(1)},
                    "[query_heads] or [query_heads, n]");
  return shape;
}

}  // namespace annulus::detail
