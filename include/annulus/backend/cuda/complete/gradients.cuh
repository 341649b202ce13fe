#pragma once
// The backward pass of the complete path. Probabilities are recomputed from the log-sum-exp. Each sum has one owner,
// which adds its terms in a fixed order: dq a block for each tile of queries of a head, dk and dv a block for each tile
// of keys of a kv head, the gradient of the bias a block for each tile of queries x 64 keys.

#include "annulus/backend/cuda/complete/fold.cuh"

namespace annulus::cuda::detail {

/// The operands of one head.
template <class T>
struct HeadOperands {
  HeadRows<T> q, k, v, dout;

  __device__ HeadOperands(StepPairs<T> const& step, Strided<T const, 4> const& dout_rows, HeadPlace const& place)
      : q(step.q, place.batch, place.head, step.queries, step.head_dim),
        k(step.k, place.batch, place.kv_head, step.keys, step.head_dim),
        v(step.v, place.batch, place.kv_head, step.keys, step.value_dim),
        dout(dout_rows, place.batch, place.head, step.queries, step.value_dim) {}
};

/// Gradients of the pairs of a thread.
template <class T, class P, class Tile>
class TileGradients {
 public:
  using A = SumOfElement<T>;
  using Products = typename Tile::Products;

  __device__ TileGradients(StepPairs<T> const& step, P const& predicate)
      : step_(step), rules_(step, predicate), plain_(PairRules<T, P>::is_plain(step)) {}

  /// True if all pairs of a tile of untested blocks are plain; see weigh_plain.
  __device__ bool is_plain(Index first_query, Index first_key, Index query_count, Index key_count) const {
    return plain_ && first_query + query_count <= step_.queries && first_key + key_count <= step_.keys;
  }

  /// What is known of the pairs of a tile: they are plain, or the rules by position must be tested.
  struct Known {
    bool plain, tests_positions;
  };

  /// The gradient of a pair, 0 if it is hidden.
  __device__ PairGradient<A> of_pair(HeadPlace const& place, Index query, Index key, Known const& pairs,
                                     KnownRow<A> const& row, A product, A dweight) const {
    // A row that has seen no key has gradient 0; its lse of -inf must not be combined with a finite logit.
    if (row.lse == empty_row<A>) return {};
    if (pairs.plain && isfinite(product)) return of_plain_pair(row, product, dweight);
    if (!rules_.visible(place, query, key, pairs.tests_positions)) return {};
    return pair_gradient<T, P>(rules_, place, query, key, row, product, dweight);
  }

 private:
  __device__ PairGradient<A> of_plain_pair(KnownRow<A> const& row, A product, A dweight) const {
    A const scale = rules_.rule().scale;
    A const weight = Tile::exponential((rounded(product * scale) - row.lse) - row.remainder);
    A const dlogit = weight * (dweight - row.delta);
    return {weight, dlogit, dlogit * scale};
  }

  StepPairs<T> const& step_;
  PairRules<T, P> rules_;
  bool plain_;
};

/// Gradients of the pairs of a tile whose rows are queries.
template <class T, class P, class Tile>
class QueryGradients {
 public:
  using A = SumOfElement<T>;
  using Products = typename Tile::Products;

  __device__ QueryGradients(StepPairs<T> const& step, KnownResults<T, A> const& known, P const& predicate,
                            HeadPlace const& place, Index first_query)
      : pairs_(step, predicate), place_(place), first_(first_query), operands_(step, known.dout, place) {
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r)
      known_[r] = KnownRow<A>::of(known, place, first_ + Tile::row(r), step.queries);
  }

  /// Places the queries and their dout.
  __device__ void place(Tile& tile) const {
    tile.template place_left<0>(operands_.q, first_);
    tile.template place_left<1>(operands_.dout, first_);
  }

  /// Places 64 keys and calls function(r, c, gradient) for each pair of the thread, with gradient 0 if it is hidden.
  /// Returns whether pairs may be hidden.
  template <class Function>
  __device__ bool for_each_pair(Tile& tile, Index first_key, bool tests_positions, Function&& function) {
    tile.template place_right<0>(operands_.k, first_key);
    tile.template place_right<1>(operands_.v, first_key);
    tile.place_nothing();
    Products products, dweights;
    tile.template multiply<0>(products);
    tile.template multiply<1>(dweights);
    bool const plain = !tests_positions && pairs_.is_plain(first_, first_key, Tile::rows, Tile::columns);
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r)
#pragma unroll
      for (int c = 0; c < Tile::columns_of_thread; ++c) {
        Index const query = first_ + Tile::row(r), key = first_key + Tile::column(c);
        function(
            r, c,
            pairs_.of_pair(place_, query, key, {plain, tests_positions}, known_[r], products[r][c], dweights[r][c]));
      }
    return !plain;
  }

 private:
  TileGradients<T, P, Tile> pairs_;
  HeadPlace place_;
  Index first_;
  HeadOperands<T> operands_;
  KnownRow<A> known_[Tile::rows_of_thread];
};

template <class T, class P, class Tile, class A = SumOfElement<T>>
__global__ void __launch_bounds__(Tile::threads)
    query_gradients_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ KnownResults<T, A> const known,
                           __grid_constant__ Strided<A, 4> const dq, __grid_constant__ P const predicate) {
  HeadPlace const place{blockIdx.z, blockIdx.y, blockIdx.y / (step.query_heads / step.kv_heads)};
  Index const first = Index{blockIdx.x} * Tile::rows;
  BlockCursor block(step.of_queries, first);
  if (!block.valid()) return;
  Tile tile(shared_memory(), static_cast<int>(step.head_dim), static_cast<int>(step.value_dim));
  QueryGradients<T, P, Tile> rows(step, known, predicate, place, first);
  rows.place(tile);
  typename Tile::Sums sums = {};
  for_each_sum<Tile>(first, step.queries, step.head_dim, sums,
                     [&](Index i, int d, A& sum) { sum = dq(place.batch, i, place.head, d); });
  for (; block.valid(); block.advance()) {
    typename Tile::Products weights;
    bool const guards =
        rows.for_each_pair(tile, block.first_row(), block.tests_positions(),
                           [&](int r, int c, PairGradient<A> const& gradient) { weights[r][c] = gradient.dproduct; });
    tile.template accumulate<0>(weights, guards, sums);
  }
  for_each_sum<Tile>(first, step.queries, step.head_dim, sums,
                     [&](Index i, int d, A& sum) { dq(place.batch, i, place.head, d) = sum; });
}

/// Which gradients of keys a block sums.
enum class OfKeys { dk, dv, both };

/// Gradients of the pairs of a tile whose rows are keys.
template <class T, class P, class Tile>
class KeyGradients {
 public:
  using A = SumOfElement<T>;
  using Products = typename Tile::Products;

  __device__ KeyGradients(StepPairs<T> const& step, KnownResults<T, A> const& known, P const& predicate,
                          Index first_key, OfKeys which)
      : step_(step), known_(known), pairs_(step, predicate), first_(first_key), which_(which) {}

  /// Places the keys and their values.
  __device__ void place(Tile& tile, Index batch, Index kv_head) const {
    HeadOperands<T> const operands(step_, known_.dout,
                                   {batch, kv_head * (step_.query_heads / step_.kv_heads), kv_head});
    tile.template place_left<0>(operands.k, first_);
    tile.template place_left<1>(operands.v, first_);
  }

  /// Adds the share of 64 queries of a head. Of the sums, those of `which` are added to; dk is the first.
  __device__ void add(Tile& tile, HeadPlace const& place, Index first_query, bool tests_positions,
                      typename Tile::Sums& first_sums, typename Tile::Sums& second_sums) {
    HeadOperands<T> const operands(step_, known_.dout, place);
    tile.template place_right<0>(operands.q, first_query);
    tile.template place_right<1>(operands.dout, first_query);
    tile.place_nothing();
    Products products, dweights = {};
    tile.template multiply<0>(products);
    if (which_ != OfKeys::dv) tile.template multiply<1>(dweights);
    bool const plain = !tests_positions && pairs_.is_plain(first_query, first_, Tile::columns, Tile::rows);
    find_weights(place, first_query, {plain, tests_positions}, products, dweights);
    if constexpr (Tile::sums_both) {
      tile.template accumulate<0>(dweights, !plain, first_sums);
      tile.template accumulate<1>(products, !plain, second_sums);
    } else if (which_ == OfKeys::dk) {
      tile.template accumulate<0>(dweights, !plain, first_sums);
    } else {
      tile.template accumulate<1>(products, !plain, first_sums);
    }
  }

 private:
  /// Turns products into weights of dv, and products of dout and values into weights of dk.
  __device__ void find_weights(HeadPlace const& place, Index first_query,
                               typename TileGradients<T, P, Tile>::Known const& known, Products& products,
                               Products& dweights) const {
#pragma unroll
    for (int c = 0; c < Tile::columns_of_thread; ++c) {
      Index const query = first_query + Tile::column(c);
      auto const row = KnownRow<A>::of(known_, place, query, step_.queries);
#pragma unroll
      for (int r = 0; r < Tile::rows_of_thread; ++r) {
        PairGradient<A> const gradient =
            pairs_.of_pair(place, query, first_ + Tile::row(r), known, row, products[r][c], dweights[r][c]);
        products[r][c] = gradient.kept_weight;
        dweights[r][c] = gradient.dproduct;
      }
    }
  }

  StepPairs<T> const& step_;
  KnownResults<T, A> const& known_;
  TileGradients<T, P, Tile> pairs_;
  Index first_;
  OfKeys which_;
};

/// dk and dv are summed by one block if a thread has registers for both; otherwise by blocks of their own, for which
/// blockIdx.z counts twice.
template <class T, class P, class Tile, class A = SumOfElement<T>>
__global__ void __launch_bounds__(Tile::threads)
    key_gradients_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ KnownResults<T, A> const known,
                         __grid_constant__ Strided<A, 4> const dk, __grid_constant__ Strided<A, 4> const dv,
                         __grid_constant__ P const predicate) {
  OfKeys const which = Tile::sums_both ? OfKeys::both : blockIdx.z % 2 == 0 ? OfKeys::dk : OfKeys::dv;
  Index const batch = Tile::sums_both ? blockIdx.z : blockIdx.z / 2, kv_head = blockIdx.y;
  Index const first = Index{blockIdx.x} * Tile::rows, group = step.query_heads / step.kv_heads;
  if (!BlockCursor(step.of_keys, first).valid()) return;
  Tile tile(shared_memory(), static_cast<int>(step.head_dim), static_cast<int>(step.value_dim));
  KeyGradients<T, P, Tile> rows(step, known, predicate, first, which);
  rows.place(tile, batch, kv_head);
  typename Tile::Sums first_sums = {}, second_sums = {};
  bool const first_is_dv = which == OfKeys::dv;
  Strided<A, 4> const& first_gradient = first_is_dv ? dv : dk;
  Index const first_dim = first_is_dv ? step.value_dim : step.head_dim;
  for_each_sum<Tile>(first, step.keys, first_dim, first_sums,
                     [&](Index j, int d, A& sum) { sum = first_gradient(batch, j, kv_head, d); });
  if constexpr (Tile::sums_both)
    for_each_sum<Tile>(first, step.keys, step.value_dim, second_sums,
                       [&](Index j, int d, A& sum) { sum = dv(batch, j, kv_head, d); });
  for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (BlockCursor block(step.of_keys, first); block.valid(); block.advance())
      rows.add(tile, {batch, head, kv_head}, block.first_row(), block.tests_positions(), first_sums, second_sums);
  for_each_sum<Tile>(first, step.keys, first_dim, first_sums,
                     [&](Index j, int d, A& sum) { first_gradient(batch, j, kv_head, d) = sum; });
  if constexpr (Tile::sums_both)
    for_each_sum<Tile>(first, step.keys, step.value_dim, second_sums,
                       [&](Index j, int d, A& sum) { dv(batch, j, kv_head, d) = sum; });
}

/// How the visible pairs of a block of queries and a block of keys are listed; see BlockRun.
enum class Listed { no, visible, tested };

__device__ inline Listed listed(BlockRuns const& runs, Index query, int key_block) {
  Index const block = query / pair_block;
  for (int n = runs.first[block]; n < runs.first[block + 1]; ++n)
    if (BlockRun const& run = runs.runs[n]; run.begin <= key_block && key_block < run.end)
      return run.tested ? Listed::tested : Listed::visible;
  return Listed::no;
}

/// R: elements of the gradient. Batch items and heads that share an element are added in order.
template <class T, class P, class Tile, class R, class A = SumOfElement<T>>
__global__ void __launch_bounds__(Tile::threads)
    bias_gradient_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ KnownResults<T, A> const known,
                         __grid_constant__ BiasGradient<R> const gradient, __grid_constant__ P const predicate) {
  Index const first = Index{blockIdx.x} * Tile::rows, first_key = Index{blockIdx.y} * Tile::columns;
  Listed const pairs = listed(step.of_queries, first, static_cast<int>(blockIdx.y));
  if (pairs == Listed::no) return;
  Index const own_batch = blockIdx.z / gradient.heads, own_head = blockIdx.z % gradient.heads;
  Index const batch_end = gradient.batch == 1 ? step.batch : own_batch + 1;
  Index const head_end = gradient.heads == 1 ? step.query_heads : own_head + 1;
  Tile tile(shared_memory(), static_cast<int>(step.head_dim), static_cast<int>(step.value_dim));
  typename Tile::Products sums = {};
  for (Index batch = own_batch; batch < batch_end; ++batch)
    for (Index head = own_head; head < head_end; ++head) {
      HeadPlace const place{batch, head, head / (step.query_heads / step.kv_heads)};
      QueryGradients<T, P, Tile> rows(step, known, predicate, place, first);
      rows.place(tile);
      rows.for_each_pair(tile, first_key, pairs == Listed::tested,
                         [&](int r, int c, PairGradient<A> const& pair) { sums[r][c] += pair.dlogit; });
    }
#pragma unroll
  for (int r = 0; r < Tile::rows_of_thread; ++r)
#pragma unroll
    for (int c = 0; c < Tile::columns_of_thread; ++c) {
      Index const query = first + Tile::row(r), key = first_key + Tile::column(c);
      if (query >= step.queries || key >= step.keys) continue;
      R& element = gradient.dbias(own_batch, own_head, query, step.key_positions[key]);
      element = narrowed<R>(gradient.adds ? widened<A>(element) + sums[r][c] : sums[r][c]);
    }
}

}  // namespace annulus::cuda::detail
