#pragma once
// The query rows of one or more kv heads, and their online softmax over blocks of keys that are read where they are.

#include <algorithm>
#include <cmath>

#include "annulus/backend/cpu/decode/key_splits.hpp"
#include "annulus/backend/cpu/decode/value_products.hpp"
#include "annulus/backend/cpu/panel/logits.hpp"
#include "annulus/backend/cpu/panel/online_softmax.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Working memory of one thread: queries and results of a group of kv heads for one piece of the keys. Call order:
/// load, clear, then for each tile look_at and for each block fold; then the results are statistics() and output().
template <class T>
class DecodeHeads {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using V = Vector<A>;
  static constexpr Index lanes = V::lanes, block = KeySplits::block;
  static constexpr bool widens = !std::is_same_v<T, E> && !is_pair<E>;  ///< operands are converted to be multiplied

 public:
  bool progresses = false;  ///< this is the calling thread, which calls Step::progress

  /// `call` and `extents` must outlive the object.
  DecodeHeads(Arena& arena, FoldArguments<T> const& call, StepExtents<E> const& extents, KeySplits const& splits)
      : call_(call),
        extents_(extents),
        scales_(LogitScales<A>::of(call.step)),
        heads_(splits.heads),
        rows_(extents.rows(0).count()),
        dim_(extents.value.padded()),
        in_place_(call.operands.v.stride(axis::dim) == 1 && extents.value.size == dim_),
        depth_(Blocking<A>::dim_padded(annulus::detail::ceil_divide(extents.head.size, Operand<E>::depth))),
        keys_ahead_(prefetched_to_ == Cache::l2 ? 64 / heads_ : keys_in(rows_ == 1 ? 8192 : 16384)),
        values_at_once_(prefetched_to_ == Cache::l2 ? 32 : std::clamp<Index>(keys_in(rows_ == 1 ? 4096 : 8192), 8, 32)),
        bounds_(arena.take<annulus::detail::KeyBounds>(extents.queries)),
        queries_(arena.take<E>(heads_ * rows_ * depth_)),
        lane_sums_(arena.take<V>(heads_ * rows_ * lanes)),
        scores_(arena.take<A>(heads_ * rows_ * block)),
        pair_weights_(is_pair<E> ? arena.take<E>(heads_ * rows_ * block / 2) : nullptr),
        output_(arena.take<A>(heads_ * rows_ * dim_)),
        keys_are_vectors_(call.operands.k.stride(axis::dim) == 1 && extents.head.size == depth_ * Operand<E>::depth),
        shares_vectors_(KeySplits::rows_of_vector > 0 && rows_ >= KeySplits::rows_of_vector),
        in_place_keys_(keys_are_vectors_ && !(widens && shares_vectors_)),
        copied_keys_(arena.take<E>(lanes * depth_)),
        of_block_(arena.take<A>(heads_ * rows_ * dim_)),
        copied_(in_place_ ? nullptr : arena.take<T>(block * dim_)),
        maximum_(arena.take<A>(heads_ * rows_)),
        sums_(arena.take<V>(heads_ * rows_)),
        values_(arena.take<T const*>(block * heads_)),
        zeros_(arena.take<T>(dim_)) {}

  /// Packs the queries of kv heads [first, first + KeySplits::heads), counted as StepExtents::heads(), unless they
  /// are loaded.
  void load(Index first) {
    if (first_head_ == first) return;
    first_head_ = first;
    first_rows_ = extents_.rows(first);
    std::fill_n(zeros_, dim_, T(0));
    TensorView<T const, 4> const& q = call_.operands.q;
    for (Index h = 0; h < heads_; ++h) {
      GroupedQueries const rows = extents_.rows(first + h);
      for (Index r = 0; r < rows_; ++r) {
        T const* const row = q.data() + q.offset(rows.batch, rows.query(r), rows.head(r), 0);
        pack_row(row, q.stride(axis::dim), scales_.query_scale, queries_ + h * rows_ * depth_,
                 QueryPlace<A>::of(r, depth_, rows_));
      }
    }
  }

  void clear() {
    for (Index r = 0; r < heads_ * rows_; ++r) {
      maximum_[r] = empty_row<A>;
      sums_[r] = V::zero();
    }
    std::fill_n(output_, heads_ * rows_ * dim_, A(0));
  }

  /// Finds the keys of `piece` within a tile that each query sees; returns the smallest range that contains them.
  RowRange look_at(Tile const& tile, RowRange piece) {
    RowRange any;
    for (Index query = 0; query < extents_.queries; ++query) {
      Index const in_tile = query - tile.query_begin;
      bounds_[query] = {};
      if (in_tile < 0 || in_tile >= tile.query_count) continue;
      bounds_[query] = call_.documents.bounds(call_.step, tile, first_rows_.batch, in_tile);
      RowRange& rows = bounds_[query].rows = annulus::detail::intersection(bounds_[query].rows, piece);
      if (!rows.empty()) any = annulus::detail::hull(any, rows);
    }
    return any;
  }

  /// Adds `keys`, which lie in the block that begins at key `begin`.
  void fold(Index begin, RowRange keys) {
    RowRange const in_block{keys.begin - begin, keys.end - begin};
    score(begin, in_block);
    list_values(begin, in_block);
    for (Index h = 0; h < heads_; ++h) {
      bool some_vanish = false;
      for (Index r = 0; r < rows_; ++r) some_vanish = online_softmax_row(h, r, begin, in_block) || some_vanish;
      not_finite_[h].reset();
      if (some_vanish) skip_vanishing(h, in_block);
    }
    multiply_values(begin, in_block);
    for (Index h = 0; h < heads_; ++h) add_tiles(of_block_ + h * rows_ * dim_, rows_, dim_, output(h, 0));
    for (Index h = 0; h < heads_; ++h) add_nonfinite_rows(h, begin, in_block);
  }

  /// Maximum and sum of row r of head h, and its values.
  SoftmaxRow<A> statistics(Index h, Index r) const {
    A of_lanes[lanes], sum = A(0);
    sums_[h * rows_ + r].store(of_lanes);
    for (A lane : of_lanes) sum += lane;
    return {maximum_[h * rows_ + r], sum};
  }
  A* output(Index h, Index r) const { return output_ + (h * rows_ + r) * dim_; }

 private:
  T const* row_of(TensorView<T const, 4> const& view, Index h, Index key) const {
    return view.data() + view.offset(first_rows_.batch, key, first_rows_.kv_head + h, 0);
  }

  /// An even number of keys whose rows have about as many bytes, at most a block.
  Index keys_in(Index bytes) const {
    Index const of_key = heads_ * std::max(extents_.head.size, dim_) * static_cast<Index>(sizeof(T));
    return std::clamp<Index>(bytes / of_key / 2, 1, block / 2) * 2;
  }

  /// Keys between a row that is read and the row that is prefetched, where `end` is the first key after those that are
  /// read. Rows beyond a piece are prefetched too: this or another thread reads the next piece at that time.
  Index prefetch_distance(Index end) const { return std::min(extents_.keys - end, keys_ahead_); }

  /// Elements from the row that is read to the one whose page is prefetched. 0, for none, if rows are prefetched to L2
  /// cache, long before they are read.
  Index page_distance(TensorView<T const, 4> const& view) const {
    return prefetched_to_ == Cache::l2 ? 0 : 2 * keys_ahead_ * view.stride(axis::sequence);
  }

  /// `keys` of a block, extended to whole pairs.
  static RowRange whole_pairs(RowRange keys) {
    constexpr Index pair = Operand<E>::depth;
    return {keys.begin / pair * pair, annulus::detail::ceil_divide(keys.end, pair) * pair};
  }

  /// Lists the value rows of `keys` as [key][head]. A key that only completes a pair gets a row of zeros.
  void list_values(Index begin, RowRange keys) {
    TensorView<T const, 4> const& v = call_.operands.v;
    RowRange const listed = whole_pairs(keys);
    std::fill(values_ + listed.begin * heads_, values_ + listed.end * heads_, zeros_);
    Index const stride = v.stride(axis::sequence), heads = heads_;
    for (Index h = 0; h < heads; ++h) {
      T const* row = row_of(v, h, begin + keys.begin);
      for (T const **place = values_ + keys.begin * heads + h, **end = place + keys.size() * heads; place != end;
           place += heads, row += stride)
        *place = row;
    }
  }

  /// Computes the products of the queries and `keys` of the block.
  void score(Index begin, RowRange keys) {
    TensorView<T const, 4> const& k = call_.operands.k;
    for (Index first = keys.begin / lanes * lanes; first < keys.end; first += lanes) {
      RowRange const seen{std::max(keys.begin, first), std::min(keys.end, first + lanes)};
      bool const whole = seen.size() == lanes;
      if (!whole) std::fill_n(lane_sums_, heads_ * rows_ * lanes, V::zero());
      T const* const rows = row_of(k, 0, begin + seen.begin);
      Index const ahead = prefetch_distance(begin + seen.end) * k.stride(axis::sequence);
      if (in_place_keys_ && (whole || !shares_vectors_)) {
        multiply_all_keys<T>({rows, k.stride(axis::sequence), k.stride(axis::heads), seen.size(), heads_, ahead,
                              page_distance(k), prefetched_to_},
                             seen.begin - first, first);
      } else {
        if (!whole) std::fill_n(copied_keys_, lanes * depth_, E{});
        for (Index j = 0; j < seen.size(); ++j) {
          prefetch_row(rows + j * k.stride(axis::sequence) + ahead, k.stride(axis::dim), extents_.head.size,
                       prefetched_to_);
          copy_key(rows + j * k.stride(axis::sequence), copied_keys_ + (seen.begin - first + j) * depth_);
        }
        multiply_all_keys<E>({copied_keys_, depth_, 0, lanes, 1, 0, 0, prefetched_to_}, 0, first);
      }
    }
  }

  /// Sets the scores of all query rows for the vector of keys from `first` on; `keys` begin at its lane `begin`.
  template <class R>
  void multiply_all_keys(KeyRows<R> const& keys, Index begin, Index first) {
    for_each_row_tile<Blocking<A>::micro_rows>(rows_, [&]<int Rows>(Index row, std::integral_constant<int, Rows>) {
      E const* const queries = queries_ + row * depth_;
      if constexpr (share_vector<Rows>) {
        if constexpr (std::is_same_v<R, E> || !widens)
          multiply_key_group<Rows, E, R>(keys, queries, depth_, scores_ + row * block + first, block);
      } else {
        multiply_keys<Rows, E, R>(keys, queries, depth_, rows_, lane_sums_ + row * lanes + begin);
        for (Index h = 0; h < heads_; ++h)
          for (Index r = h * rows_ + row; r < h * rows_ + row + Rows; ++r)
            sums_of_lanes<A>(lane_sums_ + r * lanes).store(scores_ + r * block + first);
      }
    });
  }

  /// Copies a key as packed elements.
  void copy_key(T const* row, E* to) const {
    if constexpr (widens)
      if (keys_are_vectors_) {
        for (Index k = 0; k < depth_; k += lanes) load_widened<A>(row + k).store(to + k);
        return;
      }
    pack_row(row, call_.operands.k.stride(axis::dim), A(1), to, [](Index element) { return element; });
  }

  /// Packs a row of queries or keys, times `scale` unless of pairs, padded with zeros. Element k becomes to[place(k)].
  template <class Place>
  void pack_row(T const* row, Index dim_stride, A scale, E* to, Place const& place) const {
    for (Index k = 0; k < depth_; ++k) {
      E element{};
      if (k * Operand<E>::depth < extents_.head.size) {
        element = packed_element<E>(row, dim_stride, extents_.head.size, k);
        if constexpr (!is_pair<E>) element *= scale;
      }
      to[place(k)] = element;
    }
  }

  /// Turns the products of a row into logits within vectors [vectors.begin, vectors.end) of the block.
  void finish_row(GroupedQueries const& rows, Index r, Index begin, RowRange vectors, A* scores) const {
    auto const& step = call_.step;
    annulus::detail::KeyBounds const& bounds = bounds_[rows.query(r)];
    RowRange const seen = annulus::detail::intersection({bounds.rows.begin - begin, bounds.rows.end - begin}, vectors);
    if (step.rules.logit_softcap > 0)
      cap<T>(scores + vectors.begin, vectors.size(), scales_.product_scale, static_cast<A>(step.rules.logit_softcap),
             static_cast<A*>(nullptr), static_cast<Vector<A>*>(nullptr));
    else if (scales_.product_scale != A(1))
      for (Index j = vectors.begin; j < vectors.end; ++j) scores[j] *= scales_.product_scale;
    if (step.bias.data() || bounds.each) {
      RowRange const in_step{begin + seen.begin, begin + std::max(seen.begin, seen.end)};
      bool const consecutive = are_consecutive(step.key_positions, in_step);
      if (step.bias.data()) add_bias(rows, r, in_step, consecutive, scores + seen.begin);
      if (bounds.each) {
        PairTests tests = bounds.tests;
        tests.consecutive = consecutive;
        bool visible[block];
        step.find_visible(rows.batch, rows.head(r), rows.query(r), in_step, tests, visible);
        for (Index j = seen.begin; j < seen.end; ++j)
          if (!visible[j - seen.begin]) scores[j] = empty_row<A>;
      }
    }
    if (seen.begin > vectors.begin || seen.end < vectors.end)
      for (Index j = vectors.begin; j < vectors.end; ++j)
        if (j < seen.begin || j >= seen.end) scores[j] = empty_row<A>;
  }

  /// Adds the bias of a row to the logits of `keys`.
  void add_bias(GroupedQueries const& rows, Index r, RowRange keys, bool consecutive, A* logits) const {
    auto const& bias = call_.step.bias;
    Index const* const position = call_.step.key_positions.data() + keys.begin;
    T const* const row = bias.data() + bias.offset(rows.batch, rows.head(r), rows.query(r), 0);
    Index j = 0;
    if (consecutive && bias.stride(3) == 1)
      for (; j + lanes <= keys.size(); j += lanes)
        (V::load(logits + j) + load_widened<A>(row + position[0] + j)).store(logits + j);
    for (; j < keys.size(); ++j) logits[j] += static_cast<A>(row[position[j] * bias.stride(3)]);
  }

  /// Replaces the products of a row by weights, and raises its maximum if necessary. True if some of them are 0.
  bool online_softmax_row(Index h, Index r, Index begin, RowRange keys) {
    GroupedQueries rows = first_rows_;
    rows.kv_head += h;
    Index const place = h * rows_ + r;
    A* const scores = scores_ + place * block;
    RowRange const vectors{keys.begin / lanes * lanes, annulus::detail::ceil_divide(keys.end, lanes) * lanes};
    finish_row(rows, r, begin, vectors, scores);
    V const scale = V::of(scales_.weight_scale);
    V largest = V::of(empty_row<A>);
    for (Index j = vectors.begin; j < vectors.end; j += lanes) largest = larger(V::load(scores + j), largest);
    largest = largest * scale;
    if (any(less(V::of(A(weight_headroom)), largest - V::of(maximum_[place])))) raise_row(place, largest);
    V const maximum = V::of(maximum_[place]), cut = cut_in_base_2(maximum);
    V sum = V::zero(), least = V::of(A(1));
    with_exponent<A>(
        any(is_large(maximum)), [&]<class Exponent>(std::type_identity<Exponent>) __attribute__((always_inline)) {
          Exponent const exponent(scales_.weight_scale, maximum);
          for (Index j = vectors.begin; j < vectors.end; j += lanes) {
            V const weight = exponential2(exponent(V::load(scores + j)) - cut);
            sum = sum + weight;
            least = select(less(weight, least), weight, least);
            weight.store(scores + j);
          }
        });
    sums_[place] = sums_[place] + sum;
    if (!call_.step.rules.dropout.active()) return any(less_or_equal(least, V::zero()));
    drop(rows, r, begin, keys, scores);
    return true;
  }

  [[gnu::noinline]] void raise_row(Index place, V largest) {
    A of_lanes[lanes];
    largest.store(of_lanes);
    SoftmaxRow<A> row{maximum_[place], A(0)};
    A const factor = row.raise(*std::max_element(of_lanes, of_lanes + lanes));
    maximum_[place] = row.maximum;
    sums_[place] = sums_[place] * V::of(factor);
    A* const values = output_ + place * dim_;
    // What has the weight 0 may be infinite.
    for (Index d = 0; d < dim_; ++d) values[d] = factor == A(0) ? A(0) : values[d] * factor;
  }

  /// Multiplies weights by the factors of dropout.
  void drop(GroupedQueries const& rows, Index r, Index begin, RowRange keys, A* weights) const {
    auto const& step = call_.step;
    DropoutRow row(step.rules.dropout, step.first_batch + rows.batch, step.first_head + rows.head(r),
                   step.query_positions[static_cast<std::size_t>(rows.query(r))]);
    A const scale = static_cast<A>(step.rules.dropout.keep_scale());
    for (Index j = keys.begin; j < keys.end; ++j)
      weights[j] = row.keeps(step.key_positions[static_cast<std::size_t>(begin + j)]) ? weights[j] * scale : A(0);
  }

  /// Replaces by zeros the value rows that have the weight 0 in every query row, and those that are not finite and have
  /// it in some: add_nonfinite_rows() then adds the latter to the other query rows.
  void skip_vanishing(Index h, RowRange keys) {
    Index const dim_stride = call_.operands.v.stride(axis::dim);
    for (Index j = keys.begin; j < keys.end; ++j) {
      Index vanish = 0;
      for (Index r = 0; r < rows_; ++r) vanish += scores_[(h * rows_ + r) * block + j] == A(0);
      T const*& row = values_[j * heads_ + h];
      if (vanish == rows_ || (vanish > 0 && !finite_row(row, dim_stride, extents_.value.size, j, not_finite_[h])))
        row = zeros_;
    }
  }

  /// Sets of_block_ to the products of weights and values, which are read where they are or from padded copies.
  void multiply_values(Index begin, RowRange keys) {
    TensorView<T const, 4> const& v = call_.operands.v;
    Index const stride = v.stride(axis::sequence), ahead = prefetch_distance(begin + keys.end);
    if (!in_place_) copy_values(keys, ahead);
    ValueRows<T> const values =
        in_place_
            ? ValueRows<T>{values_,       block, heads_, row_of(v, 0, begin + ahead), stride, page_distance(v) / 2,
                           prefetched_to_}
            : ValueRows<T>{values_, block, heads_, copied_, 0, 0, prefetched_to_};
    if constexpr (is_pair<E>)
      if (rows_ > 1) {
        round_to_pairs(scores_, heads_ * rows_ * block, pair_weights_);
        return add_rows(whole_pairs(keys), pair_weights_, values);
      }
    add_rows(keys, scores_, values);
  }

  /// Replaces the listed value rows, which are of one head, by padded copies; prefetches those `ahead` keys further.
  void copy_values(RowRange keys, Index ahead) {
    TensorView<T const, 4> const& v = call_.operands.v;
    Index const stride = v.stride(axis::dim);
    for (Index j = keys.begin; j < keys.end; ++j) {
      if (values_[j] == zeros_) continue;
      prefetch_row(values_[j] + ahead * v.stride(axis::sequence), stride, extents_.value.size, prefetched_to_);
      T* const copy = copied_ + j * dim_;
      for (Index d = 0; d < dim_; ++d) copy[d] = d < extents_.value.size ? values_[j][d * stride] : T(0);
      values_[j] = copy;
    }
  }

  /// weights: [heads][rows][block], or pairs of keys.
  template <class W, class R>
  void add_rows(RowRange keys, W const* weights, ValueRows<R> const& values) {
    constexpr Index stride = block / Operand<W>::depth;
    if (heads_ > 1 && rows_ == 1) std::fill_n(of_block_, heads_ * dim_, A(0));
    for (Index j = keys.begin; j < keys.end; j += values_at_once_) {
      RowRange const some{j, std::min(j + values_at_once_, keys.end)};
      W const* const of_some = weights + j / Operand<W>::depth;
      values.of(some).prefetch_pages();
      if constexpr (!is_pair<W>)
        if (heads_ > 1 && rows_ == 1) {
          add_values_of_heads(of_some, stride, values.of(some), dim_, of_block_);
          continue;
        }
      for (Index h = 0; h < heads_; ++h)
        add_all_values<stride>(of_some + h * rows_ * stride, rows_, values.of(some, h, dim_), dim_,
                               of_block_ + h * rows_ * dim_, j == keys.begin);
    }
  }

  void add_nonfinite_rows(Index h, Index begin, RowRange keys) {
    for_each_row_in(not_finite_[h], keys.begin, keys.end, [&](Index j) {
      T const* const row = row_of(call_.operands.v, h, begin + j);
      for (Index r = 0; r < rows_; ++r) {
        A const weight = scores_[(h * rows_ + r) * block + j];
        if (weight == A(0)) continue;
        for (Index d = 0; d < extents_.value.size; ++d)
          output(h, r)[d] += weight * static_cast<A>(row[d * call_.operands.v.stride(axis::dim)]);
      }
    });
  }

  FoldArguments<T> const& call_;
  StepExtents<E> const& extents_;
  LogitScales<A> const scales_;
  Index const heads_, rows_;  ///< kv heads, and query rows of each
  Index const dim_;           ///< of values, padded to whole vectors
  bool const in_place_;       ///< values are contiguous rows of whole vectors
  Index const depth_;         ///< packed elements of a query, padded to whole vectors
  Cache const prefetched_to_ = cache_of_streams();
  Index const keys_ahead_;      ///< keys between a row that is read and the row that is prefetched
  Index const values_at_once_;  ///< value rows that stay in L1 cache while several heads or rows pass over them
  Index first_head_ = -1;
  GroupedQueries first_rows_;                 ///< of head first_head_
  annulus::detail::KeyBounds* const bounds_;  ///< of each query, in the current tile
  E* const queries_;                          ///< [heads][rows][depth]
  V* const lane_sums_;                        ///< [heads][rows][keys], the sum of a product over vectors
  A* const scores_;                           ///< then weights, [heads][rows][block]
  E* const pair_weights_;                     ///< the weights, rounded; null unless E is a pair
  A* const output_;                           ///< [heads][rows][dim]
  bool const keys_are_vectors_;               ///< keys are contiguous rows of whole vectors
  bool const shares_vectors_;                 ///< some query rows share vectors; see KeySplits::rows_of_vector
  bool const in_place_keys_;                  ///< vectors of keys are read where they are
  E* const copied_keys_;                      ///< a vector of keys
  A* const of_block_;  ///< tiles of the sums of one block: the rounding error of a sum grows with its length
  T* const copied_;    ///< value rows, unless they are read where they are
  A* const maximum_;
  V* const sums_;  ///< one sum per lane
  T const** const values_;
  T* const zeros_;
  RowSet not_finite_[KeySplits::most_heads];
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
