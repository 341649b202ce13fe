#pragma once
// One panel of queries and its running state: loaded, folded block by block, stored.

#include <cmath>
#include <limits>

#include "annulus/backend/cpu/logits.hpp"
#include "annulus/backend/cpu/packed_head.hpp"
#include "annulus/numerics/merge.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

namespace detail {

/// Lifts the maxima to `largest`, turns scores into weights 2^(score - maximum) and adds them up. What was accumulated
/// before is rescaled where a maximum rose.
template <class A>
[[gnu::noinline]] void weigh(A* scores, Index rows, Vector<A> const* largest, A* maximum, A* sum, A* output, Index dim) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V before[vectors], finite[vectors], sums[vectors];
  bool rose = false;
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) {
    before[v] = V::load(maximum + v * lanes);
    sums[v] = V::load(sum + v * lanes);
    // Rows that have seen nothing keep a maximum of -inf; -inf - -inf must not come up.
    finite[v] = larger(largest[v], V::of(std::numeric_limits<A>::lowest()));
    rose = rose || any(less(before[v], largest[v]));
  }
  if (rose) {
    V factor[vectors];
    for (int v = 0; v < vectors; ++v) {
      factor[v] = exponential2(before[v] - finite[v]);
      sums[v] = sums[v] * factor[v];
      largest[v].store(maximum + v * lanes);
    }
    for (Index d = 0; d < dim; ++d)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        A* const place = output + d * panel + v * lanes;
        (V::load(place) * factor[v]).store(place);
      }
  }
#pragma GCC unroll 2
  for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      A* const place = scores + j * panel + v * lanes;
      V const weight = exponential2(V::load(place) - finite[v]);
      sums[v] = sums[v] + weight;
      weight.store(place);
    }
  for (int v = 0; v < vectors; ++v) sums[v].store(sum + v * lanes);
}

}  // namespace detail

/// Inside, logits and maxima count in powers of 2; in the state of the step they are natural.
template <class T>
class ForwardPanel {
  using A = Accumulator<T>;
  using B = Blocking<A>;
  using V = Vector<A>;

 public:
  /// Room for queries and results.
  ForwardPanel() = default;
  ForwardPanel(Dealer& dealer, PackedExtents<A> const& extents)
      : extents_(extents),
        queries_(dealer.take<A>(extents.head_dim * B::panel)),
        output_(dealer.take<A>(extents.values_padded() * B::panel)) {}

  void begin(QueryPanel<A> const& panel) {
    panel_ = panel;
    loaded_ = false;
  }

  /// Says which keys of a tile the lanes see.
  void look_at(HostStep<T> const& step, StepDocuments const& documents, Tile const& tile) {
    keys_.find(step, documents, tile, panel_);
    for (int lane = 0; lane < panel_.count; ++lane) seen_[lane] = (loaded_ && seen_[lane]) || keys_.begin[lane] < keys_.end[lane];
  }
  PanelKeys<A> const& keys() const { return keys_; }

  void load(HostStep<T> const& step, TensorView<T const, 4> const& q, RunningState<A, HostMemory> const& state) {
    if (loaded_) return;
    loaded_ = true;
    auto const units = LogitUnits<A>::of(step);
    unit_ = units.unit;
    T const* rows[B::panel] = {};
    A const* accumulated[B::panel] = {};
    A scale[B::panel], factor[B::panel];
    std::fill_n(scale, B::panel, units.query_scale);
    for (int lane = 0; lane < B::panel; ++lane) {
      maximum_[lane] = loaded_maximum_[lane] = natural_[lane] = empty_row<A>;
      sum_[lane] = factor[lane] = A(0);
      if (lane >= panel_.count) continue;
      auto const [b, i, h] = place(lane);
      rows[lane] = q.data() + q.offset(b, i, h, 0);
      natural_[lane] = state.maximum(b, h, i);
      if (natural_[lane] == empty_row<A>) continue;
      maximum_[lane] = loaded_maximum_[lane] = static_cast<A>(static_cast<double>(natural_[lane]) * log2_e);
      factor[lane] = base_change(natural_[lane], maximum_[lane]);
      sum_[lane] = state.sum(b, h, i) * factor[lane];
      accumulated[lane] = state.accumulator.data() + state.accumulator.offset(b, i, h, 0);
    }
    pack_panel(rows, q.stride(axis::dim), extents_.head_dim, scale, queries_);
    pack_panel(accumulated, 1, extents_.value_dim, factor, output_);
    std::fill_n(output_ + extents_.value_dim * B::panel, (extents_.values_padded() - extents_.value_dim) * B::panel, A(0));
  }

  void store(RunningState<A, HostMemory> const& state) const {
    if (!loaded_) return;
    A* rows[B::panel] = {};
    A factor[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) {
      // A row that sees nothing of this step keeps its bits.
      if (!seen_[lane] || maximum_[lane] == empty_row<A>) continue;
      auto const [b, i, h] = place(lane);
      bool const unchanged = natural_[lane] != empty_row<A> && maximum_[lane] == loaded_maximum_[lane];
      A const natural = unchanged ? natural_[lane] : static_cast<A>(static_cast<double>(maximum_[lane]) * ln_2);
      factor[lane] = A(1) / base_change(natural, maximum_[lane]);
      state.maximum(b, h, i) = natural;
      state.sum(b, h, i) = sum_[lane] * factor[lane];
      rows[lane] = state.accumulator.data() + state.accumulator.offset(b, i, h, 0);
    }
    unpack_panel(output_, extents_.value_dim, factor, rows);
  }

  /// Adds keys [rows.begin, rows.end) of a block, which any of the lanes may see.
  void fold(HostStep<T> const& step, PackedHead<A> const& head, Index block, BlockRows rows, HeadRows<T const> const& values,
            UnitBlocks<A> const& blocks) {
    rows.first = rows.begin / B::micro_rows * B::micro_rows;
    Index const last = std::min<Index>(B::key_block, extents_.keys - rows.block_begin);
    V largest[B::panel_vectors];
    for (int v = 0; v < B::panel_vectors; ++v) largest[v] = V::load(maximum_ + v * B::lanes);
    auto const score = [&]<bool Maximum>(BlockRows const& part) {
      multiply_rows<Maximum>(head.keys(block, part.first), part.end - part.first, queries_, extents_.head_dim,
                             blocks.scores + rows.row(part.first) * B::panel, largest);
    };
    auto const score_with_care = [&](Index begin, Index end) {
      if (begin >= end) return;
      BlockRows const part{rows.block_begin, begin / B::micro_rows * B::micro_rows, begin, end};
      score.template operator()<false>(part);
      finish_logits(step, panel_, keys_, part, blocks.from_row(rows.row(part.first)), unit_, largest);
    };
    // Groups of keys that all lanes see carry no test. The last group of the keys is filled up with copies.
    RowRange const seen = keys_.all_in({rows.key(rows.begin), rows.key(rows.end)});
    Index const full_begin = B::rows_padded(seen.begin - rows.block_begin), full_end = seen.end - rows.block_begin;
    Index const whole_end = full_end == last ? last : full_end / B::micro_rows * B::micro_rows;
    if (unit_ == A(1) && !keys_.each && full_begin < whole_end) {
      score_with_care(rows.begin, full_begin);
      score.template operator()<true>({rows.block_begin, full_begin, full_begin, whole_end});
      score_with_care(whole_end, rows.end);
    } else {
      score_with_care(rows.begin, rows.end);
    }
    A* const weights = blocks.scores + rows.row(rows.begin) * B::panel;
    Index const count = rows.end - rows.begin;
    detail::weigh(weights, count, largest, maximum_, sum_, output_, extents_.value_dim);
    if (step.dropout.active()) {
      gather_kept(step, panel_, keys_, rows, blocks.kept);
      A const* const kept = blocks.kept + rows.row(rows.begin) * B::panel;
      // Where nothing is visible the factor is not set, and the weight is 0.
      for (Index e = 0; e < count * B::panel; ++e) weights[e] = weights[e] == A(0) ? A(0) : weights[e] * kept[e];
    }
    add_product_of_columns(head.values(block, rows.begin), B::key_block * B::micro_rows, weights, count, output_, extents_.values_padded());
    head.not_finite(block).for_each_in(rows.begin, rows.end, [&](Index j) {
      T const* const row = values.row(rows.key(j));
      for (int lane = 0; lane < panel_.count; ++lane)
        if (A const weight = blocks.scores[rows.row(j) * B::panel + lane]; weight != A(0))
          for (Index d = 0; d < extents_.value_dim; ++d)
            output_[d * B::panel + lane] += weight * static_cast<A>(row[d * values.dim_stride]);
    });
  }

 private:
  struct Place {
    Index batch, query, head;
  };
  Place place(int lane) const { return {panel_.rows->batch, panel_.query(lane), panel_.head(lane)}; }

  /// e^natural / 2^binary: what makes a row that is relative to one maximum relative to the other. Near 1, since both are
  /// the same number but for rounding.
  static A base_change(A natural, A binary) {
    return static_cast<A>(std::exp2(static_cast<double>(natural) * log2_e - static_cast<double>(binary)));
  }

  PackedExtents<A> extents_{};
  QueryPanel<A> panel_{};
  PanelKeys<A> keys_;
  A* queries_ = nullptr;
  A* output_ = nullptr;
  alignas(64) A maximum_[B::panel], sum_[B::panel];
  A natural_[B::panel], loaded_maximum_[B::panel];
  A unit_ = A(1);
  bool seen_[B::panel] = {};
  bool loaded_ = false;
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
