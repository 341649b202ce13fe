#pragma once
// Panel of queries with its partial running state in the forward pass: loaded, folded block by block, stored.

#include <cmath>
#include <limits>

#include "annulus/backend/cpu/logits.hpp"
#include "annulus/backend/cpu/packed_head.hpp"
#include "annulus/backend/cpu/weigh.hpp"
#include "annulus/numerics/merge.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Queries of a panel, and the running state that a step's keys add to. Call order: begin, then for each tile look_at
/// and for each block of its keys load and fold, then store.
template <class T>
class ForwardPanel {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;
  using V = Vector<A>;
  using G = PackedGroup<E>;

 public:
  ForwardPanel() = default;
  /// Takes memory for queries and results from the arena.
  ForwardPanel(Arena& arena, PackedExtents<E> const& extents)
      : extents_(extents),
        queries_(arena.take<E>(extents.depth() * B::panel)),
        output_(arena.take<A>(extents.values_padded() * B::panel)) {}

  /// Starts on another panel; load() reads it when it is first needed.
  void begin(QueryPanel<A> const& panel) {
    panel_ = panel;
    loaded_ = false;
  }

  /// Finds the keys of a tile that the lanes see, see keys().
  void look_at(HostStep<T> const& step, StepDocuments const& documents, Tile const& tile) {
    keys_.find(step, documents, tile, panel_);
    for (int lane = 0; lane < panel_.count; ++lane)
      seen_[lane] = (loaded_ && seen_[lane]) || keys_.begin[lane] < keys_.end[lane];
  }
  PanelKeys<A> const& keys() const { return keys_; }

  /// Lists the rows that load() and store() will read, for prefetching.
  void expect_load(TensorView<T const, 4> const& q, PrefetchQueue& ahead) const {
    if (!loaded_) expect_rows(panel_, q, extents_.head_dim, ahead);
  }
  void expect_store(RunningState<A, HostMemory> const& state, PrefetchQueue& ahead) const {
    expect_rows(panel_, state.accumulator, extents_.value_dim, ahead);
  }

  /// Packs the queries and clears the sums, unless the panel is loaded.
  void load(HostStep<T> const& step, TensorView<T const, 4> const& q, RunningState<A, HostMemory> const& state) {
    if (loaded_) return;
    loaded_ = true;
    units_ = LogitUnits<A>::of(step);
    T const* rows[B::panel] = {};
    A scale[B::panel];
    std::fill_n(scale, B::panel, units_.query_scale);
    for (int lane = 0; lane < B::panel; ++lane) {
      maximum_[lane] = empty_row<A>;
      sum_[lane] = A(0);
      if (lane >= panel_.count) continue;
      auto const [b, i, h] = place(lane);
      rows[lane] = q.data() + q.offset(b, i, h, 0);
      maximum_[lane] = state.maximum(b, h, i);
    }
    if constexpr (is_pair<E>)
      pack_panel(rows, q.stride(axis::dim), extents_.head_dim, queries_);
    else
      pack_panel(rows, q.stride(axis::dim), extents_.head_dim, scale, queries_);
    std::fill_n(output_, extents_.values_padded() * B::panel, A(0));
  }

  /// Merges the panel's sums into the state. Each step is summed separately, as the rounding error of a sum grows with
  /// its length.
  void store(RunningState<A, HostMemory> const& state) const {
    if (!loaded_) return;
    A* rows[B::panel] = {};
    A kept[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) {
      // A row that sees no key of this step keeps its bits. A row whose logits are all NaN has a sum, but no maximum.
      if (!seen_[lane] || (maximum_[lane] == empty_row<A> && sum_[lane] == A(0))) continue;
      auto const [b, i, h] = place(lane);
      A const maximum = maximum_[lane] == empty_row<A> ? sum_[lane] : maximum_[lane];
      kept[lane] = rescale(state.maximum(b, h, i), maximum);
      A& sum = state.sum(b, h, i);
      sum = kept[lane] == A(0) ? sum_[lane] : sum * kept[lane] + sum_[lane];
      state.maximum(b, h, i) = maximum;
      rows[lane] = state.accumulator.data() + state.accumulator.offset(b, i, h, 0);
    }
    unpack_panel(output_, extents_.value_dim, kept, rows);
  }

  /// Adds keys [rows.begin, rows.end) of a block, those that any lane may see. `weights`: scratch of a block's size.
  void fold(HostStep<T> const& step, PackedHead<E> const& head, Index block, BlockRows rows,
            HeadRows<T const> const& values, UnitBlocks<A> const& blocks, E* weights, PrefetchQueue& ahead) {
    rows.first = rows.begin / G::rows * G::rows;
    V largest[B::panel_vectors];
    score(step, head, block, rows, blocks, largest, ahead);
    for (int v = 0; v < B::panel_vectors; ++v)
      largest[v] = larger(largest[v] * V::of(units_.weight_scale), V::load(maximum_ + v * B::lanes));

    raise(largest, maximum_, sum_, output_, extents_.value_dim);
    A* const scores = blocks.scores + rows.row(rows.begin) * B::panel;
    Index const count = rows.end - rows.begin;
    constexpr int depth = Operand<E>::depth;
    Index const first = rows.begin / depth / G::depth * G::depth, before = rows.begin / depth - first;
    Index const elements = ceil_divide(rows.end, depth) - first, padded = G::depth_padded(elements);
    E* const elements_of_weights = is_pair<E> ? weights : reinterpret_cast<E*>(scores);
    E* const place = elements_of_weights + before * B::panel;
    if constexpr (G::depth > 1) {
      std::fill_n(elements_of_weights, before * B::panel, E{});
      std::fill_n(elements_of_weights + elements * B::panel, (padded - elements) * B::panel, E{});
    }
    bool const has_dropout = step.dropout.active();
    if (!is_pair<E> || has_dropout) weigh(scores, count, units_.weight_scale, maximum_, sum_);
    if (has_dropout) {
      gather_kept(step, panel_, keys_, rows, blocks.kept);
      A const* const kept = blocks.kept + rows.row(rows.begin) * B::panel;
      // The factor of an invisible pair is not set; its weight is 0.
      for (Index e = 0; e < count * B::panel; ++e) scores[e] = scores[e] == A(0) ? A(0) : scores[e] * kept[e];
    }
    if constexpr (is_pair<E>) {
      if (has_dropout)
        pair_rows_of_panel(scores, rows.begin % depth, count, place);
      else
        weigh_to_pairs(scores, rows.begin % depth, count, units_.weight_scale, maximum_, sum_, place);
    }
    add_product_of_columns(head.values(block, first), B::key_block / depth * G::rows, elements_of_weights, padded,
                           output_, extents_.values_padded(), ahead);
    add_nonfinite_rows(step, head, block, rows, values, scores);
  }

 private:
  struct Place {
    Index batch, query, head;
  };
  Place place(int lane) const { return {panel_.rows->batch, panel_.query(lane), panel_.head(lane)}; }

  /// Computes the scores of the block: plain products for keys that all lanes see, masked logits for the others.
  void score(HostStep<T> const& step, PackedHead<E> const& head, Index block, BlockRows const& rows,
             UnitBlocks<A> const& blocks, V* largest, PrefetchQueue& ahead) {
    for (int v = 0; v < B::panel_vectors; ++v) largest[v] = V::of(empty_row<A>);
    auto const multiply = [&]<bool Maximum>(BlockRows const& part) {
      multiply_rows<Maximum>(head.keys(block, part.first), part.end - part.first, queries_, extents_.depth(),
                             blocks.scores + rows.row(part.first) * B::panel, largest, ahead);
    };
    auto const multiply_and_mask = [&](Index begin, Index end) {
      if (begin >= end) return;
      BlockRows const part{rows.block_begin, begin / G::rows * G::rows, begin, end};
      multiply.template operator()<false>(part);
      finish_logits(step, panel_, keys_, part, blocks.from_row(rows.row(part.first)), units_, largest);
    };
    // Whole packed groups of rows; the last group of the keys is padded with copies.
    Index const last = std::min<Index>(B::key_block, extents_.keys - rows.block_begin);
    RowRange const seen = keys_.all_in({rows.key(rows.begin), rows.key(rows.end)});
    Index const full_begin = G::rows_padded(seen.begin - rows.block_begin), seen_end = seen.end - rows.block_begin;
    Index const full_end = seen_end == last ? last : seen_end / G::rows * G::rows;
    if (units_.finished && !keys_.each && full_begin < full_end) {
      multiply_and_mask(rows.begin, full_begin);
      multiply.template operator()<true>({rows.block_begin, full_begin, full_begin, full_end});
      multiply_and_mask(full_end, rows.end);
    } else {
      multiply_and_mask(rows.begin, rows.end);
    }
  }

  /// Adds value rows that hold NaN or infinity, which are packed as zeros, to the queries that see them alone.
  void add_nonfinite_rows(HostStep<T> const& step, PackedHead<E> const& head, Index block, BlockRows const& rows,
                   HeadRows<T const> const& values, A const* scores) {
    if (head.not_finite(block).empty()) return;
    head.not_finite(block).for_each_in(rows.begin, rows.end, [&](Index j) {
      T const* const row = values.row(rows.key(j));
      for (int lane = 0; lane < panel_.count; ++lane) {
        A const score = scores[(j - rows.begin) * B::panel + lane];
        bool const weighed = !is_pair<E> || step.dropout.active();
        A const weight = weighed                 ? score
                         : score == empty_row<A> ? A(0)
                                                 : std::exp(score * units_.weight_scale - maximum_[lane]);
        if (weight == A(0)) continue;
        for (Index d = 0; d < extents_.value_dim; ++d)
          output_[d * B::panel + lane] += weight * static_cast<A>(row[d * values.dim_stride]);
      }
    });
  }

  PackedExtents<E> extents_{};
  QueryPanel<A> panel_{};
  PanelKeys<A> keys_;
  E* queries_ = nullptr;
  A* output_ = nullptr;
  alignas(64) A maximum_[B::panel], sum_[B::panel];
  LogitUnits<A> units_{};
  bool seen_[B::panel] = {};
  bool loaded_ = false;
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
