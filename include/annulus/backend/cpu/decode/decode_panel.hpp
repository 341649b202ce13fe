#pragma once
// A panel of the query rows of one or more kv heads, over keys and values that are read where they are.

#include <algorithm>

#include "annulus/backend/cpu/decode/key_splits.hpp"
#include "annulus/backend/cpu/decode/value_products.hpp"
#include "annulus/backend/cpu/panel/softmax_panel.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Working memory of one thread: the queries and results of a group of kv heads. Order: of the sums of a product.
template <class T, class Order>
class DecodePanel : public SoftmaxPanel<T> {
  using Base = SoftmaxPanel<T>;
  using typename Base::A, typename Base::E, typename Base::B, typename Base::V;
  using Weight = typename Order::Packed;
  static constexpr Index lanes = V::lanes, pair = Operand<Weight>::depth;

 public:
  bool progresses = false;  ///< this is the calling thread, which calls Step::progress

  /// `call` and `extents` must outlive the object.
  DecodePanel(Arena& arena, FoldArguments<T> const& call, StepExtents<E> const& extents, KeySplits const& splits)
      : Base(arena, call, extents),
        heads_(splits.heads),
        rows_(extents.rows(0).count()),
        depth_(B::dim_padded(annulus::detail::ceil_divide(extents.head.size, pair))),
        dim_(extents.value.padded()),
        keys_in_place_(call.operands.k.stride(axis::dim) == 1 && extents.head.size == depth_ * pair),
        values_in_place_(call.operands.v.stride(axis::dim) == 1 && extents.value.size == dim_),
        keys_ahead_(prefetched_to_ == Cache::l2 ? 16 / heads_ : keys_in(rows_ == 1 ? 8192 : 16384)),
        blocks_(PanelScratch<A>::of(arena, call.step, Pass::forward)),
        queries_(arena.take<typename Order::Query>(heads_ * rows_ * depth_)),
        products_(arena.take<A>(B::panel * product_stride)),
        weights_(is_joined<E> ? arena.take<Weight>(B::key_block / pair * B::panel)
                              : reinterpret_cast<Weight*>(blocks_.scores)),
        sums_(arena.take<A>(heads_ * rows_ * dim_)),
        of_block_(arena.take<A>(heads_ * rows_ * dim_)),
        copied_keys_(arena.take<T>(keys_at_once * depth_ * pair)),
        copied_values_(arena.take<T>(values_at_once * dim_)) {}

  /// Merges the keys of `piece`, whole key blocks, into `state`: of kv head `head`, counted as StepExtents::heads(), and
  /// those after it.
  void fold(Index head, RowRange piece, RunningState<A, HostMemory> const& state) {
    GroupedQueries rows = extents_.rows(head);
    rows.heads = heads_;
    Base::begin(QueryPanel<A>(rows, 0));
    for (Tile const& tile : call_.step.tiles) {
      Base::look_at(tile);
      RowRange const any = annulus::detail::intersection(keys_.any, piece);
      for (Index block = any.begin / B::key_block * B::key_block; block < any.end; block += B::key_block) {
        if (progresses) call_.step.progress();
        BlockKeys const keys = BlockKeys::of(block, any);
        if (!sees(keys)) continue;
        if (Base::load(&state)) pack_queries();
        fold_block(keys);
      }
    }
    if (!loaded_) return;
    A const* sums[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) sums[lane] = sums_ + lane * dim_;
    pack_panel<A>(sums, 1, extents_.value.size, A(1), output_);
    Base::store(state);
  }

 private:
  /// Value rows that stay in L1 cache while several heads or rows pass over them; those of a chunk of AMX tiles.
  static constexpr Index values_at_once = Order::in_chunks ? amx_tile_side * pair : 16;
  static constexpr Index product_stride = B::key_block + keys_at_once;

  /// An even number of keys whose rows have about as many bytes, at most a block.
  Index keys_in(Index bytes) const {
    Index const of_key = heads_ * std::max(extents_.head.size, dim_) * static_cast<Index>(sizeof(T));
    return std::clamp<Index>(bytes / of_key / 2, 1, B::key_block / 2) * 2;
  }

  T const* row_of(TensorView<T const, 4> const& view, Index h, Index key) const {
    return view.data() + view.offset(panel_.rows->batch, key, panel_.rows->kv_head + h, 0);
  }

  /// Packs the queries and clears the sums.
  void pack_queries() {
    for (Index h = 0; h < heads_; ++h)
      for_each_row_tile<B::micro_rows>(rows_, [&]<int Rows>(Index row, std::integral_constant<int, Rows>) {
        Index const first = h * rows_ + row;
        for (int r = 0; r < Rows; ++r) pack_query(static_cast<int>(first) + r, Rows, queries_ + first * depth_ + r);
      });
    std::fill_n(products_, B::panel * product_stride, A(0));
    std::fill_n(sums_, heads_ * rows_ * dim_, A(0));
  }
  /// Packs the query row of a lane to elements `stride` apart.
  void pack_query(int lane, Index stride, typename Order::Query* to) {
    TensorView<T const, 4> const& q = call_.operands.q;
    T const* const row = panel_.row(q, lane);
    for (Index k = 0; k < depth_; ++k, to += stride) {
      Weight element{};
      if (k * pair < extents_.head.size) {
        element = packed_element<Weight>(row, q.stride(axis::dim), extents_.head.size, k);
        if constexpr (!is_joined<E>) element *= scales_.query_scale;
      }
      *to = Order::query(element);
    }
  }

  bool sees(BlockKeys const& keys) {
    visibility_ = keys_.each ? find_visible(call_.step, panel_, keys_, keys,
                                            VisibilityCache<T>::same_for_heads(call_.step), *blocks_.visible)
                             : Visibility::all;
    return visibility_ != Visibility::none;
  }

  void fold_block(BlockKeys const& keys) {
    multiply_block(keys);
    for (V& largest : largest_) largest = V::of(empty_row<A>);
    finish_logits(call_.step, bias_, keys_, visibility_, keys, blocks_, scales_, largest_);
    V factor[B::panel_vectors];
    if (Base::raise_maxima(factor) && has_sums_) scale_sums(factor);
    DropoutFactors<A> const dropout = Base::dropout_of(keys, blocks_);
    if (panel_.count <= lanes)
      weigh<1>(keys, dropout);
    else
      weigh<B::panel_vectors>(keys, dropout);
    add_block(keys, dropout);
    has_sums_ = true;
  }

  /// Turns the scores of the lanes of the first Vectors vectors into weights.
  template <int Vectors>
  void weigh(BlockKeys const& keys, DropoutFactors<A> const& dropout) {
    A* const scores = blocks_.scores + keys.begin * B::panel;
    Index const count = keys.end - keys.begin;
    if constexpr (is_joined<E>) {
      NoProducts none;
      online_softmax_to_joined_rows<Vectors>(scores, keys.begin % pair, count, scales_.weight_scale, maximum_, sum_,
                                             dropout, weights_ + keys.begin / pair * B::panel, none);
    } else {
      online_softmax<Vectors>(scores, count, scales_.weight_scale, maximum_, sum_, dropout);
    }
  }

  /// The rows that are read after `keys`. Rows beyond a piece too: this or another thread reads the next piece at that
  /// time.
  LinesAhead<T> lines_after(TensorView<T const, 4> const& view, BlockKeys const& keys, Index at_once) const {
    Index const ahead = at_once + keys_ahead_, first = keys.key(keys.begin) + ahead;
    if (view.stride(axis::dim) != 1 || first >= extents_.keys) return {};
    Index const stride = view.stride(axis::sequence);
    return {row_of(view, 0, first),
            stride,
            heads_ * view.extent(axis::dim),
            std::min(keys.end - keys.begin, extents_.keys - first),
            prefetched_to_,
            prefetched_to_ == Cache::l2 ? 0 : ahead * stride};
  }

  /// Copies a row of `dim` elements, and zeros up to `padded` of them.
  static void copy_row(T const* row, Index dim_stride, Index dim, Index padded, T* to) {
    if (dim_stride == 1)
      std::copy_n(row, dim, to);
    else
      for (Index d = 0; d < dim; ++d) to[d] = row[d * dim_stride];
    std::fill(to + dim, to + padded, T(0));
  }

  /// Sets the scores of the block to the products of the queries and `keys`.
  void multiply_block(BlockKeys const& keys) {
    LinesAhead<T> lines = lines_after(call_.operands.k, keys, keys_at_once);
    for (Index j = keys.begin; j < keys.end; j += keys_at_once)
      for (Index h = 0; h < heads_; ++h) {
        KeyRows<T> const some = keys_of(h, keys.key(j), std::min(keys_at_once, keys.end - j));
        for_each_row_tile<B::micro_rows>(rows_, [&]<int Rows>(Index row, std::integral_constant<int, Rows>) {
          LinesAhead<T> none;
          multiply_keys<Rows, Order>(some, queries_ + (h * rows_ + row) * depth_, depth_,
                                     products_ + (h * rows_ + row) * product_stride + j - keys.begin, product_stride,
                                     row == 0 ? lines : none);
        });
      }
    for (Index j = keys.begin; j < keys.end; j += lanes)
      for (Index first = 0; first < B::panel; first += lanes) {
        V square[lanes];
        for (Index i = 0; i < lanes; ++i)
          square[i] = V::load(products_ + (first + i) * product_stride + j - keys.begin);
        interleave(square);
        for (Index i = 0; i < std::min(lanes, keys.end - j); ++i)
          square[i].store(blocks_.scores + (j + i) * B::panel + first);
      }
  }

  /// `count` keys from `key` on, where they are or, with padding, copied.
  KeyRows<T> keys_of(Index h, Index key, Index count) const {
    TensorView<T const, 4> const& k = call_.operands.k;
    Index const stride = k.stride(axis::sequence), dim = depth_ * pair;
    T const* const first = row_of(k, h, key);
    if (keys_in_place_ && count == keys_at_once) return {first, stride};
    for (Index i = 0; i < keys_at_once; ++i)
      copy_row(first + std::min(i, count - 1) * stride, k.stride(axis::dim), extents_.head.size, dim,
               copied_keys_ + i * dim);
    return {copied_keys_, dim};
  }

  void scale_sums(V const* factor) {
    A factors[B::panel];
    for (int v = 0; v < B::panel_vectors; ++v) factor[v].store(factors + v * lanes);
    for (int lane = 0; lane < panel_.count; ++lane)
      for (Index d = 0; d < dim_; ++d) sums_[lane * dim_ + d] *= factors[lane];
  }

  /// Adds the products of weights and values to the sums.
  void add_block(BlockKeys const& keys, DropoutFactors<A> const& dropout) {
    TensorView<T const, 4> const& v = call_.operands.v;
    LinesAhead<T> lines = lines_after(v, keys, values_at_once);
    add_values_of_heads({0, heads_}, keys, {}, lines);
    for (Index h = 0; h < heads_; ++h) {
      RowSet const not_finite = find_nonfinite(h, keys);
      if (not_finite.any()) add_values_of_heads({h, h + 1}, keys, not_finite, lines);
      end_block(h);
      for_each_row_in(not_finite, keys.begin, keys.end, [&](Index j) {
        Base::add_nonfinite_row({v, panel_.rows->batch, panel_.rows->kv_head + h}, keys, j,
                                {h * rows_, (h + 1) * rows_}, blocks_.scores + keys.begin * B::panel, dropout, sums_,
                                dim_, 1);
      });
    }
  }

  /// Sets the sums of the block, of some heads; value rows `zeros` count as zeros.
  void add_values_of_heads(RowRange heads, BlockKeys const& keys, RowSet const& zeros, LinesAhead<T>& lines) {
    for (Index h = heads.begin; h < heads.end; ++h) begin_block(h);
    for (Index j = keys.begin, end; j < keys.end; j = end) {
      end = std::min((j / values_at_once + 1) * values_at_once, keys.end);
      for (Index h = heads.begin; h < heads.end; ++h) add_values_of_head(h, keys, {j, end}, zeros, lines);
    }
  }

  /// Begins the sums of a head over a block: from 0, as the rounding error of a sum grows with its length, or in chunks
  /// that are added to the sums.
  void begin_block(Index h) {
    A* const place = of_block_ + h * rows_ * dim_;
    if constexpr (Order::in_chunks)
      std::copy_n(sums_ + h * rows_ * dim_, rows_ * dim_, place);
    else
      std::fill_n(place, rows_ * dim_, A(0));
  }
  void end_block(Index h) {
    A const* const place = of_block_ + h * rows_ * dim_;
    A* const to = sums_ + h * rows_ * dim_;
    if constexpr (Order::in_chunks)
      std::copy_n(place, rows_ * dim_, to);
    else
      for (Index e = 0; e < rows_ * dim_; ++e) to[e] += place[e];
  }

  /// Adds the values of `some` of the keys of a block to its sums.
  void add_values_of_head(Index h, BlockKeys const& keys, RowRange some, RowSet const& zeros, LinesAhead<T>& lines) {
    TensorView<T const, 4> const& v = call_.operands.v;
    RowRange const pairs{some.begin / pair * pair, annulus::detail::ceil_divide(some.end, pair) * pair};
    Index const stride = v.stride(axis::sequence);
    ValueRows<T> values{copied_values_, dim_, pairs.size()};
    if (values_in_place_ && zeros.none() && pairs.begin == some.begin && pairs.end == some.end)
      values = {row_of(v, h, keys.key(some.begin)), stride, pairs.size()};
    else
      for (Index j = pairs.begin; j < pairs.end; ++j) {
        bool const present = some.begin <= j && j < some.end && !zeros[static_cast<std::size_t>(j)];
        copy_row(row_of(v, h, keys.key(j)), v.stride(axis::dim), present ? extents_.value.size : 0, dim_,
                 copied_values_ + (j - pairs.begin) * dim_);
      }
    add_all_values<Order>(weights_ + pairs.begin / pair * B::panel + h * rows_, rows_, values,
                          of_block_ + h * rows_ * dim_, dim_, lines);
  }

  /// The value rows of a head that hold NaN or infinity. If there is one, the sums of the block do too, also where its
  /// weight is 0.
  RowSet find_nonfinite(Index h, BlockKeys const& keys) const {
    RowSet found;
    A const* sums[B::panel];
    for (Index r = 0; r < rows_; ++r) sums[r] = of_block_ + (h * rows_ + r) * dim_;
    if (all_finite(sums, rows_, dim_)) return found;
    TensorView<T const, 4> const& v = call_.operands.v;
    for (Index j = keys.begin; j < keys.end; ++j)
      finite_row(row_of(v, h, keys.key(j)), v.stride(axis::dim), extents_.value.size, j, found);
    return found;
  }

  using Base::bias_, Base::visibility_, Base::largest_, Base::output_, Base::maximum_, Base::sum_;
  using Base::call_, Base::extents_, Base::scales_, Base::panel_, Base::keys_, Base::loaded_, Base::has_sums_;
  Index const heads_, rows_;    ///< kv heads, and query rows of each
  Index const depth_;           ///< packed elements of a query, whole vectors
  Index const dim_;             ///< of values, whole vectors
  bool const keys_in_place_;    ///< keys are contiguous rows of whole vectors
  bool const values_in_place_;  ///< so are values
  Cache const prefetched_to_ = cache_of_streams();
  Index const keys_ahead_;  ///< keys between those that are multiplied and those that are prefetched
  PanelScratch<A> const blocks_;
  typename Order::Query* const queries_;  ///< [heads][tile of rows][depth][row]
  A* const products_;                     ///< [panel][product_stride]
  Weight* const weights_;                 ///< pairs of keys, [key_block / 2][panel]; others overwrite the scores
  A* const sums_;                         ///< [heads][rows][dim]
  A* const of_block_;                     ///< those of a block
  T *const copied_keys_, *const copied_values_;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
