#pragma once
// Fold of the pages of a cached sequence into the states of queries: one step of the backend for each part of them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "annulus/attention/cache/cache_pages.hpp"
#include "annulus/backend/open_close.hpp"
#include "annulus/mask/attention_rules.hpp"
#include "annulus/schedule/visible_tiles.hpp"

namespace annulus::detail {

/// The queries of a batch item: their positions, and the rows q [1, queries, query_heads, head_dim].
template <class T, class Space>
struct ItemQueries {
  Index item;  ///< place of its sequence in the call
  std::span<Segment const> segments;
  Index offset;  ///< added to the positions of the segments
  TensorView<T const, 4, Space> q;
  TensorView<std::int32_t const, 2, Space> ids{};  ///< document ids [1, queries]; without data: none
  TensorView<T const, 4, Space> bias{};            ///< [1, query_heads, queries, keys]; without data: none
  TensorView<bool const, 4, Space> mask{};         ///< shaped as the bias; without data: none
};

/// Builds the steps, and keeps what they refer to until release().
template <class Predicate>
class PageFold {
 public:
  /// Call when the backend has been synchronized: storage is reused.
  void release() { used_tiles_ = used_positions_ = 0; }
  /// Of the storage.
  Index bytes() const {
    std::size_t sum = 0;
    for (std::vector<Index> const& positions : positions_) sum += positions.capacity() * sizeof(Index);
    for (std::vector<Tile> const& tiles : tiles_) sum += tiles.capacity() * sizeof(Tile);
    return static_cast<Index>(sum);
  }

  /// Starts adding this rank's keys of a sequence to `state`, whose batch extent is 1. `rules`: with softmax_scale set;
  /// `predicate` outlives the steps.
  template <class T, class B, class A, class Space>
  void fold(B& backend, KvCache<T, B>& cache, Index sequence, AttentionRules const& rules, Predicate const& predicate,
            ItemQueries<T, Space> const& queries, RunningState<A, Space> state, Progress progress) {
    if (used_positions_ == positions_.size()) positions_.emplace_back();
    std::vector<Index>& query_positions = positions_[used_positions_++];
    query_positions.clear();
    for (Segment const& segment : queries.segments)
      for (Index i = 0; i < segment.length; ++i)
        query_positions.push_back(queries.offset + segment.global_begin + i * segment.global_stride);
    AttentionRules item_rules = rules;
    item_rules.query_offset = queries.offset;
    constexpr bool restricts = !std::same_as<Predicate, EveryPair>;

    CachePages<T, B> const pages(cache, backend);
    pages.for_each_part(sequence, range_of(queries.ids), runs_, [&](auto const& keys, auto positions) {
      if (used_tiles_ == tiles_.size()) tiles_.emplace_back();
      std::vector<Tile>& tiles = tiles_[used_tiles_];
      tiles.clear();
      for (CacheRuns::Run const& run : runs_.runs()) {
        finder_.find(queries.segments, runs_.segments(run), rules.mask, queries.offset,
                     restricts || queries.mask.data(), &of_run_, rules.block_mask);
        for (Tile tile : of_run_) {
          tile.key_begin += run.first_row;
          tiles.push_back(tile);
        }
      }
      if (tiles.empty()) return;
      ++used_tiles_;
      detail::fold(backend,
                   Step<T, Predicate, Space>{.tiles = tiles,
                                             .rules = item_rules,
                                             .query_positions = query_positions,
                                             .key_positions = positions,
                                             .first_batch = queries.item,
                                             .predicate = &predicate,
                                             .bias = queries.bias,
                                             .boolean_mask = queries.mask,
                                             .query_documents = queries.ids,
                                             .key_documents = keys.ids,
                                             .progress = progress,
                                             .recomputed = false},
                   StepOperands<T, Space>{queries.q, keys.k, keys.v}, state);
    });
  }

 private:
  // Elements of a deque stay where they are when it grows.
  std::deque<std::vector<Index>> positions_;
  std::deque<std::vector<Tile>> tiles_;
  std::size_t used_positions_ = 0, used_tiles_ = 0;
  CacheRuns runs_;
  std::vector<Tile> of_run_;
  TileFinder finder_;
};

}  // namespace annulus::detail
