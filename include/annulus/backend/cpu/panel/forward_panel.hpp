#pragma once
// A panel of queries in the forward pass: online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv
// 2205.14135) over packed blocks of keys.

#include <algorithm>

#include "annulus/backend/cpu/panel/dropout_bits.hpp"
#include "annulus/backend/cpu/panel/logits.hpp"
#include "annulus/backend/cpu/panel/online_softmax.hpp"
#include "annulus/backend/cpu/panel/packed_keys.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Queries of a panel, and the running state that a step's keys add to. Call order: begin; for each tile look_at; for
/// each block of its keys sees, load, score (or products and take), fold; at last store, or finish in a pass of one
/// step.
template <class T>
class ForwardPanel {
  using A = Accumulator<T>;
  using E = BlockElement<T>;
  using B = Blocking<A>;
  using V = Vector<A>;
  using G = PackedGroup<E>;

 public:
  /// Takes memory for queries and results from the arena. Arguments must outlive the object.
  ForwardPanel(Arena& arena, FoldArguments<T> const& call, StepExtents<E> const& extents,
               VisibilityCache<T> const& cache)
      : call_(call),
        extents_(extents),
        visibility_cache_(cache),
        scales_(LogitScales<A>::of(call.step)),
        queries_(arena.take<E>(extents.head.packed() * B::panel)),
        output_(arena.take<A>(extents.value.grouped() * B::panel)) {}

  /// Starts on another panel, whose keys are in `packed`; load() reads it when it is first needed.
  void begin(QueryPanel<A> const& panel, PackedKeys<T> const& packed) {
    panel_ = panel;
    packed_ = &packed;
    bias_ = {call_.step.bias, panel};
    loaded_ = false;
  }

  /// Finds the keys of a tile that the lanes see, see keys().
  void look_at(Tile const& tile) {
    keys_.find(call_.step, call_.documents, tile, panel_);
    for (int lane = 0; lane < panel_.count; ++lane)
      seen_[lane] = (loaded_ && seen_[lane]) || keys_.begin[lane] < keys_.end[lane];
  }
  PanelKeys<A> const& keys() const { return keys_; }
  /// The keys of a block that any lane may see, by the bounds.
  BlockKeys rows(Index block) const { return BlockKeys::of(packed_->begin(block), keys_.any); }

  /// Lists the rows that load() and store() will read, for prefetching.
  void expect_load(PrefetchQueue& ahead) const {
    if (!loaded_) panel_.expect(call_.operands.q, ahead);
  }
  void expect_store(PrefetchQueue& ahead) const {
    if (call_.results)
      panel_.expect(call_.results->output, ahead);
    else
      panel_.expect(call_.state.accumulator, ahead);
  }

  /// Lists the rows of the bias that fold() will read for a key block.
  void expect_bias(Index block, PrefetchQueue& ahead) const {
    BlockKeys const rows = this->rows(block);
    bias_.expect(ahead, call_.step.key_positions, {rows.key(rows.begin), rows.key(rows.end)});
  }

  /// Packs the queries, unless the panel is loaded; fold() will set the sums.
  void load() {
    if (loaded_) return;
    loaded_ = true;
    has_sums_ = false;
    TensorView<T const, 4> const& q = call_.operands.q;
    T const* rows[B::panel] = {};
    for (int lane = 0; lane < B::panel; ++lane) {
      maximum_[lane] = empty_row<A>;
      sum_[lane] = A(0);
      if (lane >= panel_.count) continue;
      rows[lane] = panel_.row(q, lane);
      if (!call_.results) maximum_[lane] = panel_.element(call_.state.maximum, lane);
    }
    pack_panel(rows, q.stride(axis::dim), extents_.head.size, scales_.query_scale, queries_);
  }

  /// Merges the panel's sums into the state. Each step is summed separately, as the rounding error of a sum grows with
  /// its length.
  void store() {
    if (!loaded_) return;
    V uncut[B::panel_vectors];
    remove_cut(maximum_, sum_, uncut);
    A* rows[B::panel] = {};
    A kept[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) {
      // A row that sees no key of this step keeps its bits.
      if (!has_keys(lane)) continue;
      A &state_maximum = panel_.element(call_.state.maximum, lane), &state_sum = panel_.element(call_.state.sum, lane);
      SoftmaxRow<A> row{state_maximum, state_sum};
      kept[lane] = row.extend(row_of(lane));
      state_maximum = row.maximum;
      state_sum = row.sum;
      rows[lane] = panel_.row(call_.state.accumulator, lane);
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

  /// True if a lane sees one of `rows`, which are within the bounds of the lanes. Call it before fold().
  bool sees(BlockKeys const& rows, PanelScratch<A> const& blocks) {
    visibility_ = visibility_cache_.find(call_.step, panel_, keys_, rows, *blocks.visible);
    return visibility_ != Visibility::none;
  }

  /// True if a lane may see keys of a block, as far as that is known without looking at them.
  bool may_see(Index block) const {
    BlockKeys const rows = this->rows(block);
    return rows.begin < rows.end && !visibility_cache_.hides(panel_, keys_, block);
  }

  /// Computes the scores of keys [rows.begin, rows.end) of a block, those that any lane may see: plain products for
  /// keys that all lanes see, masked logits for the others.
  void score(Index block, BlockKeys rows, PanelScratch<A> const& blocks, PrefetchQueue& ahead) {
    rows.first = first_of_group(rows);
    for (V& largest : largest_) largest = V::of(empty_row<A>);
    RowRange const plain = plain_rows(rows);
    if (plain.empty()) return multiply_and_mask(block, rows, {rows.begin, rows.end}, blocks, ahead);
    multiply_and_mask(block, rows, {rows.begin, plain.begin}, blocks, ahead);
    multiply_vectors<true, 0>(packed_->keys(block, plain.begin), plain.size(), queries_, extents_.head.packed(),
                              blocks.scores + rows.row(plain.begin) * B::panel, largest_, ahead);
    multiply_and_mask(block, rows, {plain.end, rows.end}, blocks, ahead);
  }

  /// The products of score(), for fold() of the panel before to compute meanwhile; then take() them. Empty without AMX,
  /// or if the scores need more than products: a mask, bias or soft cap.
  OverlappedProducts<E> products([[maybe_unused]] Index block, [[maybe_unused]] BlockKeys const& rows,
                                 [[maybe_unused]] A* scores, [[maybe_unused]] PrefetchQueue& ahead) const {
#if defined(ANNULUS_CPU_HAS_AMX)
    if constexpr (G::tiled) {
      RowRange const plain = plain_rows(rows);
      if (amx_is_permitted() && plain.begin == rows.begin && plain.end >= rows.end)
        return {packed_->keys(block, plain.begin), plain.size(), queries_, extents_.head.packed(), scores, ahead};
    }
#endif
    return {};
  }
  void take(auto const& products) {
    if constexpr (G::tiled)
      for (int v = 0; v < B::panel_vectors; ++v) largest_[v] = products.largest(v);
  }

  /// Adds the keys of a block whose scores are computed. `weights`: scratch of a block's size. `products` are finished.
  void fold(Index block, BlockKeys rows, PanelScratch<A> const& blocks, E* weights, OverlappedProducts<E>& products,
            PrefetchQueue& ahead) {
    rows.first = first_of_group(rows);
    for (int v = 0; v < B::panel_vectors; ++v)
      largest_[v] = larger(largest_[v] * V::of(scales_.weight_scale), V::load(maximum_ + v * B::lanes));

    raise(largest_, maximum_, sum_, output_, has_sums_ ? extents_.value.size : 0);
    A* const scores = blocks.scores + rows.row(rows.begin) * B::panel;
    Index const count = rows.end - rows.begin;
    constexpr int depth = Operand<E>::depth;
    Index const first = rows.begin / depth / G::depth * G::depth, before = rows.begin / depth - first;
    Index const elements = annulus::detail::ceil_divide(rows.end, depth) - first, padded = G::depth_padded(elements);
    E* const elements_of_weights = is_joined<E> ? weights : reinterpret_cast<E*>(scores);
    E* const place = elements_of_weights + before * B::panel;
    if constexpr (G::depth > 1) {
      std::fill_n(elements_of_weights, before * B::panel, E{});
      std::fill_n(elements_of_weights + elements * B::panel, (padded - elements) * B::panel, E{});
    }
    DropoutFactors<A> const dropout{blocks.kept, rows.begin, static_cast<A>(call_.step.rules.dropout.keep_scale())};
    if (blocks.kept) find_kept(call_.step, panel_, rows, *blocks.kept);
    if constexpr (is_joined<E>)
      online_softmax_to_joined_rows(scores, rows.begin % depth, count, scales_.weight_scale, maximum_, sum_, dropout,
                                    place, products);
    else
      online_softmax(scores, count, scales_.weight_scale, maximum_, sum_, dropout);
    products.finish();
    Index const first_half_end = rows.first_half_end<E>(keys_);
    Index const first_half = first_half_end == rows.end ? padded : std::max(first_half_end / depth - first, Index{0});
    add_product_of_columns(packed_->values(block, first), B::key_block / depth * G::rows, elements_of_weights, padded,
                           first_half, output_, extents_.value.grouped(), ahead, has_sums_);
    has_sums_ = true;
    add_nonfinite_rows(block, rows, scores, dropout);
  }

 private:
  /// True if a lane has seen keys.
  bool has_keys(int lane) const { return seen_[lane] && !(maximum_[lane] == empty_row<A> && sum_[lane] == A(0)); }
  /// The sums of the lane. A row whose logits are all NaN has a sum, but no maximum.
  SoftmaxRow<A> row_of(int lane) const {
    return {maximum_[lane] == empty_row<A> ? sum_[lane] : maximum_[lane], sum_[lane]};
  }

  /// The masked logits of keys `of` of a block.
  void multiply_and_mask(Index block, BlockKeys const& rows, RowRange of, PanelScratch<A> const& blocks,
                         PrefetchQueue& ahead) {
    if (of.empty()) return;
    BlockKeys const part{rows.block_begin, of.begin / G::rows * G::rows, of.begin, of.end};
    E const* const keys = packed_->keys(block, part.first);
    Index const count = part.end - part.first, first_half = part.first_half_end<E>(keys_) - part.first;
    A* const scores = blocks.scores + rows.row(part.first) * B::panel;
    if constexpr (!G::tiled)
      if (scales_.finished) {
        auto const multiply = [&](auto const& see) {
          multiply_rows<true>(keys, count, first_half, queries_, extents_.head.packed(), scores, ahead, largest_, see);
        };
        if (visibility_ == Visibility::some) return multiply(SeenByBits<A>{blocks.visible, part.first});
        BlockBounds<A> const bounds(keys_, part.block_begin);
        return multiply(SeenByBounds<A>{&bounds, part.first});
      }
    multiply_rows(keys, count, first_half, queries_, extents_.head.packed(), scores, ahead);
    finish_logits(call_.step, bias_, keys_, visibility_, {part.block_begin, rows.first, part.begin, part.end}, blocks,
                  scales_, largest_);
  }

  static Index first_of_group(BlockKeys const& rows) { return rows.begin / G::rows * G::rows; }

  /// Rows of the block whose scores are plain products: whole packed groups that all lanes see; the last group of the
  /// section is padded with copies.
  RowRange plain_rows(BlockKeys const& rows) const {
    if (!scales_.finished || visibility_ != Visibility::all) return {};
    Index const last = std::min<Index>(B::key_block, packed_->rows().end - rows.block_begin);
    RowRange const seen = keys_.all_in({rows.key(rows.begin), rows.key(rows.end)});
    Index const seen_end = seen.end - rows.block_begin;
    return {G::rows_padded(seen.begin - rows.block_begin), seen_end == last ? last : seen_end / G::rows * G::rows};
  }

  /// Adds value rows that hold NaN or infinity, which are packed as zeros, to the queries that see them alone.
  void add_nonfinite_rows(Index block, BlockKeys const& rows, A const* scores, DropoutFactors<A> const& dropout) {
    for_each_row_in(packed_->not_finite(block), rows.begin, rows.end, [&](Index j) {
      HeadView<T const> const& values = packed_->value_rows();
      T const* const row = values.row(rows.key(j));
      for (int lane = 0; lane < panel_.count; ++lane) {
        A const score = scores[(j - rows.begin) * B::panel + lane];
        A const weight =
            is_joined<E> ? dropout.apply(rescale(score * scales_.weight_scale, maximum_[lane]), j - rows.begin, lane)
                         : score;
        if (weight == A(0)) continue;
        for (Index d = 0; d < extents_.value.size; ++d)
          output_[d * B::panel + lane] += weight * static_cast<A>(row[d * values.dim_stride]);
      }
    });
  }

  FoldArguments<T> const& call_;
  StepExtents<E> const& extents_;
  VisibilityCache<T> const& visibility_cache_;
  LogitScales<A> scales_;
  QueryPanel<A> panel_{};
  PackedKeys<T> const* packed_ = nullptr;
  BiasRows<T const> bias_;
  PanelKeys<A> keys_;
  Visibility visibility_ = Visibility::all;  ///< of the block that is folded next
  V largest_[B::panel_vectors];              ///< scores of that block
  E* queries_;
  A* output_;
  alignas(64) A maximum_[B::panel], sum_[B::panel];
  bool seen_[B::panel] = {};
  bool loaded_ = false, has_sums_ = false;  ///< the queries are packed; a block has been folded since
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
