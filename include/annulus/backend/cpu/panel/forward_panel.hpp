#pragma once
// A panel of queries in the forward pass, over packed blocks of keys.

#include <algorithm>

#include "annulus/backend/cpu/panel/packed_keys.hpp"
#include "annulus/backend/cpu/panel/softmax_panel.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Queries of a panel, and the running state that a step's keys add to. Call order: begin; for each tile look_at; for
/// each block of its keys sees, load, score (or products and take), fold; at last store.
template <class T>
class ForwardPanel : public SoftmaxPanel<T> {
  using Base = SoftmaxPanel<T>;
  using typename Base::A, typename Base::E, typename Base::B, typename Base::V;
  using G = PackedGroup<E>;

 public:
  /// Takes memory for queries and results from the arena. Arguments must outlive the object.
  ForwardPanel(Arena& arena, FoldArguments<T> const& call, StepExtents<E> const& extents,
               VisibilityCache<T> const& cache)
      : Base(arena, call, extents),
        visibility_cache_(cache),
        queries_(arena.take<E>(extents.head.packed() * B::panel)) {}

  /// Starts on another panel, whose keys are in `packed`; load() reads it when it is first needed.
  void begin(QueryPanel<A> const& panel, PackedKeys<T> const& packed) {
    Base::begin(panel);
    packed_ = &packed;
  }

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
    if (!Base::load(call_.results ? nullptr : &call_.state)) return;
    TensorView<T const, 4> const& q = call_.operands.q;
    T const* rows[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) rows[lane] = panel_.row(q, lane);
    pack_panel(rows, q.stride(axis::dim), extents_.head.size, scales_.query_scale, queries_);
  }

  /// Writes the results, if the step is the only one, or else merges the sums into the state.
  void store() {
    if (call_.results)
      Base::finish(*call_.results);
    else
      Base::store(call_.state);
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
    V factor[B::panel_vectors];
    if (Base::raise_maxima(factor)) scale_lanes(output_, has_sums_ ? extents_.value.size : 0, factor);
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
    DropoutFactors<A> const dropout = Base::dropout_of(rows, blocks);
    if constexpr (is_joined<E>)
      online_softmax_to_joined_rows<B::panel_vectors>(scores, rows.begin % depth, count, scales_.weight_scale, maximum_,
                                                      sum_, dropout, place, products);
    else
      online_softmax<B::panel_vectors>(scores, count, scales_.weight_scale, maximum_, sum_, dropout);
    products.finish();
    Index const first_half_end = rows.first_half_end<E>(keys_);
    Index const first_half = first_half_end == rows.end ? padded : std::max(first_half_end / depth - first, Index{0});
    add_product_of_columns(packed_->values(block, first), B::key_block / depth * G::rows, elements_of_weights, padded,
                           first_half, output_, extents_.value.grouped(), ahead, has_sums_);
    has_sums_ = true;
    // Rows that hold NaN or infinity are packed as zeros.
    for_each_row_in(packed_->not_finite(block), rows.begin, rows.end, [&](Index j) {
      Base::add_nonfinite_row(packed_->value_rows(), rows, j, {0, panel_.count}, scores, dropout, output_, 1, B::panel);
    });
  }

 private:
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

  using Base::call_, Base::extents_, Base::scales_, Base::panel_, Base::bias_, Base::keys_, Base::visibility_;
  using Base::largest_, Base::output_, Base::maximum_, Base::sum_, Base::loaded_, Base::has_sums_;
  VisibilityCache<T> const& visibility_cache_;
  PackedKeys<T> const* packed_ = nullptr;
  E* queries_;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
