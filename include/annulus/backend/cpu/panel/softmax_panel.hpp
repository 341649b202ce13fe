#pragma once
// Online softmax of a panel of queries in the forward pass (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv
// 2205.14135): all but the products with keys and values, so that a row has the same bits however its keys are read.

#include <algorithm>

#include "annulus/backend/cpu/panel/dropout_bits.hpp"
#include "annulus/backend/cpu/panel/logits.hpp"
#include "annulus/backend/cpu/panel/online_softmax.hpp"
#include "annulus/backend/cpu/panel/packing.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// The keys that the queries of a panel see, and their running state. A derived class computes scores, which are the
/// logits up to LogitScales::weight_scale, and adds values to the output.
template <class T>
class SoftmaxPanel {
 protected:
  using A = Accumulator<T>;
  using E = BlockElement<T>;
  using B = Blocking<A>;
  using V = Vector<A>;

 public:
  /// Finds the keys of a tile that the lanes see, see keys().
  void look_at(Tile const& tile) {
    keys_.find(call_.step, call_.documents, tile, panel_);
    for (int lane = 0; lane < panel_.count; ++lane)
      seen_[lane] = (loaded_ && seen_[lane]) || keys_.begin[lane] < keys_.end[lane];
  }
  PanelKeys<A> const& keys() const { return keys_; }

 protected:
  /// Takes memory for results from the arena. Arguments must outlive the object.
  SoftmaxPanel(Arena& arena, FoldArguments<T> const& call, StepExtents<E> const& extents)
      : call_(call),
        extents_(extents),
        scales_(LogitScales<A>::of(call.step)),
        output_(arena.take<A>(extents.value.grouped() * B::panel)) {}

  /// Starts on another panel.
  void begin(QueryPanel<A> const& panel) {
    panel_ = panel;
    bias_ = {call_.step.bias, panel};
    loaded_ = false;
  }

  /// Begins the sums, unless they have begun; true if it did. `state`, unless null: store() will merge them into it.
  bool load(RunningState<A, HostMemory> const* state) {
    if (loaded_) return false;
    loaded_ = true;
    has_sums_ = false;
    for (int lane = 0; lane < B::panel; ++lane) {
      maximum_[lane] = state && lane < panel_.count ? panel_.element(state->maximum, lane) : empty_row<A>;
      sum_[lane] = A(0);
    }
    return true;
  }

  /// Merges the panel's sums into the state. Each step is summed separately, as the rounding error of a sum grows with
  /// its length.
  void store(RunningState<A, HostMemory> const& state) {
    if (!loaded_) return;
    V uncut[B::panel_vectors];
    remove_cut(maximum_, sum_, uncut);
    A* rows[B::panel] = {};
    A kept[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) {
      // A row that sees no key of this step keeps its bits.
      if (!has_keys(lane)) continue;
      A &state_maximum = panel_.element(state.maximum, lane), &state_sum = panel_.element(state.sum, lane);
      SoftmaxRow<A> row{state_maximum, state_sum};
      kept[lane] = row.extend(row_of(lane));
      state_maximum = row.maximum;
      state_sum = row.sum;
      rows[lane] = panel_.row(state.accumulator, lane);
    }
    unpack_panel(output_, extents_.value.size, uncut, kept, rows);
  }

  /// Writes the results of the panel's rows, which see the keys of this step alone.
  void finish(ForwardResults<T, A, HostMemory> const& results) {
    V uncut[B::panel_vectors];
    if (loaded_) remove_cut(maximum_, sum_, uncut);
    T* rows[B::panel] = {};
    A scale[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) {
      bool const sees_keys = loaded_ && has_keys(lane);
      SoftmaxRow<A> const row = sees_keys ? row_of(lane) : SoftmaxRow<A>{};
      HostOperations::write_lse(row, panel_.rows->batch, panel_.head(lane), panel_.query(lane), results.lse,
                                results.lse_remainder);
      T* const to = panel_.row(results.output, lane);
      if (!sees_keys) {
        std::fill_n(to, extents_.value.size, T(0));
        continue;
      }
      scale[lane] = row.normaliser();
      rows[lane] = to;
    }
    if (loaded_) unpack_results(output_, extents_.value.size, uncut, scale, rows);
  }

  /// Raises the maxima of the lanes to the largest scores of a block, largest_, and rescales their sums; see raise().
  bool raise_maxima(V* factor) {
    for (int v = 0; v < B::panel_vectors; ++v)
      largest_[v] = larger(largest_[v] * V::of(scales_.weight_scale), V::load(maximum_ + v * B::lanes));
    return raise(largest_, maximum_, sum_, factor);
  }

  /// The factors of dropout for the pairs of `rows`, of which the first has score row 0.
  DropoutFactors<A> dropout_of(BlockKeys const& rows, PanelScratch<A> const& blocks) const {
    if (blocks.kept) find_kept(call_.step, panel_, rows, *blocks.kept);
    return {blocks.kept, rows.begin, static_cast<A>(call_.step.rules.dropout.keep_scale())};
  }

  /// Adds value row j of a block, which holds NaN or infinity, to the queries of `lanes` that see it alone. `scores`, of
  /// `rows`, are weights unless those are joined. Element d of a lane's output is output[lane * lane_stride + d *
  /// dim_stride].
  void add_nonfinite_row(HeadView<T const> const& values, BlockKeys const& rows, Index j, RowRange lanes,
                         A const* scores, DropoutFactors<A> const& dropout, A* output, Index lane_stride,
                         Index dim_stride) const {
    T const* const row = values.row(rows.key(j));
    for (Index lane = lanes.begin; lane < lanes.end; ++lane) {
      A const score = scores[(j - rows.begin) * B::panel + lane];
      A const weight = is_joined<E>
                           ? dropout.apply(rescale(score * scales_.weight_scale, maximum_[lane]), j - rows.begin, lane)
                           : score;
      if (weight == A(0)) continue;
      for (Index d = 0; d < extents_.value.size; ++d)
        output[lane * lane_stride + d * dim_stride] += weight * static_cast<A>(row[d * values.dim_stride]);
    }
  }

  FoldArguments<T> const& call_;
  StepExtents<E> const& extents_;
  LogitScales<A> scales_;
  QueryPanel<A> panel_{};
  BiasRows<T const> bias_;
  PanelKeys<A> keys_;
  Visibility visibility_ = Visibility::all;  ///< of the block that is folded next
  V largest_[B::panel_vectors];              ///< scores of that block
  A* output_;                                ///< [dim][panel]
  alignas(64) A maximum_[B::panel], sum_[B::panel];
  bool loaded_ = false, has_sums_ = false;  ///< the sums have begun; a block has been folded since

 private:
  /// True if a lane has seen keys.
  bool has_keys(int lane) const { return seen_[lane] && !(maximum_[lane] == empty_row<A> && sum_[lane] == A(0)); }
  /// The sums of the lane. A row whose logits are all NaN has a sum, but no maximum.
  SoftmaxRow<A> row_of(int lane) const {
    return {maximum_[lane] == empty_row<A> ? sum_[lane] : maximum_[lane], sum_[lane]};
  }

  bool seen_[B::panel] = {};
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
