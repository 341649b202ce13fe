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

/// Which side the rows of a tile are; the columns are the other one.
enum class Rows { queries, keys };
/// Which gradient a pair's products become: that of the product of query and key, or that of the logit.
enum class Gradient { of_product, of_logit };

/// A tile of pairs of one head.
struct TilePlace {
  HeadPlace head;
  Index first_row, first_column;
  bool tests_positions;
};

/// Gradients of the pairs of tiles.
template <class T, class P, class Tile, Rows rows>
class TileGradients {
 public:
  using A = SumOfElement<T>;
  using Products = typename Tile::Products;

  __device__ TileGradients(StepPairs<T> const& step, KnownResults<T, A> const& known, P const& predicate)
      : step_(step), known_(known), rules_(step, predicate), plain_(PairRules<T, P>::is_plain(step)) {}

  /// True if no pair of the tile is hidden and logits are products times the scale.
  __device__ bool is_plain(TilePlace const& tile) const {
    Index const row_count = rows == Rows::queries ? step_.queries : step_.keys,
                column_count = rows == Rows::queries ? step_.keys : step_.queries;
    return plain_ && !tile.tests_positions && tile.first_row + Tile::rows <= row_count &&
           tile.first_column + Tile::columns <= column_count;
  }

  /// Turns products of queries and keys into weights of dout in dv, and those of dout and values into gradients.
  template <Gradient which>
  __device__ void find(TilePlace const& tile, Products& products, Products& dweights) const {
    if (is_plain(tile) && find_plain<which>(tile, products, dweights)) return;
    for_each_rolled<Tile>(products, dweights, [&](int r, int c, A& product, A& dweight) {
      PairGradient<A> const gradient = of_pair(tile, r, c, product, dweight);
      product = gradient.kept_weight;
      dweight = which == Gradient::of_logit ? gradient.dlogit : gradient.dproduct;
    });
  }

 private:
  __device__ static Index query_of(TilePlace const& tile, int r, int c) {
    return rows == Rows::queries ? tile.first_row + Tile::row(r) : tile.first_column + Tile::column(c);
  }
  __device__ static Index key_of(TilePlace const& tile, int r, int c) {
    return rows == Rows::queries ? tile.first_column + Tile::column(c) : tile.first_row + Tile::row(r);
  }
  __device__ KnownRow<A> known_row(TilePlace const& tile, int r, int c) const {
    return KnownRow<A>::of(known_, tile.head, query_of(tile, r, c), step_.queries);
  }

  __device__ PairGradient<A> of_pair(TilePlace const& tile, int r, int c, A product, A dweight) const {
    Index const query = query_of(tile, r, c), key = key_of(tile, r, c);
    KnownRow<A> const row = known_row(tile, r, c);
    // A row that has seen no key has gradient 0; its lse of -inf must not be combined with a finite logit.
    if (row.lse == empty_row<A> || !rules_.visible(tile.head, query, key, tile.tests_positions)) return {};
    return pair_gradient<T, P>(rules_, tile.head, query, key, row, product, dweight);
  }

  /// False, with nothing done, if a product of the warp overflows or a row has seen no key.
  template <Gradient which>
  __device__ bool find_plain(TilePlace const& tile, Products& products, Products& dweights) const {
    constexpr int row_count = Tile::rows_of_thread, column_count = Tile::columns_of_thread;
    constexpr bool by_row = rows == Rows::queries;
    constexpr int queries = by_row ? row_count : column_count, keys = by_row ? column_count : row_count;
    A invalid = A(0);  // NaN for an infinite product, or lse
#pragma unroll
    for (int n = 0; n < row_count * column_count; ++n) invalid += products[n / column_count][n % column_count] * A(0);
#pragma unroll
    for (int query = 0; query < queries; ++query)
      invalid += (by_row ? known_row(tile, query, 0) : known_row(tile, 0, query)).lse * A(0);
    if (!__all_sync(0xffffffffu, invalid == A(0))) return false;
    A const scale = rules_.rule().scale;
#pragma unroll
    for (int query = 0; query < queries; ++query) {
      KnownRow<A> const row = by_row ? known_row(tile, query, 0) : known_row(tile, 0, query);
#pragma unroll
      for (int key = 0; key < keys; ++key) {
        A& product = products[by_row ? query : key][by_row ? key : query];
        A& dweight = dweights[by_row ? query : key][by_row ? key : query];
        A const weight = Tile::exponential((rounded(product * scale) - row.lse) - row.remainder);
        A const dlogit = weight * (dweight - row.delta);
        product = weight;
        dweight = which == Gradient::of_logit ? dlogit : dlogit * scale;
      }
    }
    return true;
  }

  StepPairs<T> const& step_;
  KnownResults<T, A> const& known_;
  PairRules<T, P> rules_;
  bool plain_;
};

/// Places the rows of a tile, queries or keys.
template <Rows rows, class T, class Tile>
__device__ void place_rows(Tile& tile, HeadOperands<T> const& operands, Index first) {
  tile.template place_left<0>(rows == Rows::queries ? operands.q : operands.k, first);
  tile.template place_left<1>(rows == Rows::queries ? operands.dout : operands.v, first);
}

/// Places the columns, and multiplies queries and keys, dout and values.
template <Rows rows, class T, class Tile>
__device__ void multiply_pairs(Tile& tile, HeadOperands<T> const& operands, Index first_column,
                               typename Tile::Products& products, typename Tile::Products& dweights) {
  tile.template place_right<0>(rows == Rows::queries ? operands.k : operands.q, first_column);
  tile.template place_right<1>(rows == Rows::queries ? operands.v : operands.dout, first_column);
  tile.place_nothing();
  tile.template multiply<0>(products);
  tile.template multiply<1>(dweights);
}

template <class T, class P, class Tile, class A = SumOfElement<T>>
__global__ void __launch_bounds__(Tile::threads)
    query_gradients_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ KnownResults<T, A> const known,
                           __grid_constant__ Strided<A, 4> const dq, __grid_constant__ P const predicate) {
  if (is_done(step)) return;
  HeadPlace const place{blockIdx.z, blockIdx.y, blockIdx.y / (step.query_heads / step.kv_heads)};
  Index const first = Index{blockIdx.x} * Tile::rows;
  BlockCursor block(step.of_queries, first);
  if (!block.valid()) return;
  Tile tile(shared_memory(), static_cast<int>(step.head_dim), static_cast<int>(step.value_dim));
  TileGradients<T, P, Tile, Rows::queries> const gradients(step, known, predicate);
  HeadOperands<T> const operands(step, known.dout, place);
  SumRows<A> const sum_rows(dq, place.batch, place.head, step.queries, step.head_dim);
  typename Tile::Sums sums = {};
  sum_rows.template load<Tile>(first, sums);
  place_rows<Rows::queries>(tile, operands, first);
  for (; block.valid(); block.advance()) {
    TilePlace const pairs{place, first, block.first_row(), block.tests_positions()};
    typename Tile::Products products, weights;
    multiply_pairs<Rows::queries>(tile, operands, pairs.first_column, products, weights);
    gradients.template find<Gradient::of_product>(pairs, products, weights);
    tile.template accumulate<0>(weights, !gradients.is_plain(pairs), sums);
  }
  sum_rows.template store<Tile>(first, sums);
}

/// dk and dv are summed by one block if a thread has registers for both; otherwise by blocks of their own, for which
/// blockIdx.z counts twice.
template <class T, class P, class Tile, class A = SumOfElement<T>>
__global__ void __launch_bounds__(Tile::threads)
    key_gradients_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ KnownResults<T, A> const known,
                         __grid_constant__ Strided<A, 4> const dk, __grid_constant__ Strided<A, 4> const dv,
                         __grid_constant__ P const predicate) {
  if (is_done(step)) return;
  constexpr bool both = Tile::sums_both;
  bool const of_values = !both && blockIdx.z % 2 == 1;
  Index const batch = both ? blockIdx.z : blockIdx.z / 2, kv_head = blockIdx.y;
  Index const first = Index{blockIdx.x} * Tile::rows, group = step.query_heads / step.kv_heads;
  if (!BlockCursor(step.of_keys, first).valid()) return;
  Tile tile(shared_memory(), static_cast<int>(step.head_dim), static_cast<int>(step.value_dim));
  TileGradients<T, P, Tile, Rows::keys> const gradients(step, known, predicate);
  SumRows<A> const dk_rows(dk, batch, kv_head, step.keys, step.head_dim),
      dv_rows(dv, batch, kv_head, step.keys, step.value_dim);
  // Of dk, or of dv where it has a block of its own; and of dv where it has not.
  typename Tile::Sums sums = {}, value_sums = {};
  (of_values ? dv_rows : dk_rows).template load<Tile>(first, sums);
  if constexpr (both) dv_rows.template load<Tile>(first, value_sums);
  place_rows<Rows::keys>(tile, HeadOperands<T>(step, known.dout, {batch, kv_head * group, kv_head}), first);
  for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    HeadOperands<T> const operands(step, known.dout, {batch, head, kv_head});
    for (BlockCursor block(step.of_keys, first); block.valid(); block.advance()) {
      TilePlace const pairs{{batch, head, kv_head}, first, block.first_row(), block.tests_positions()};
      typename Tile::Products products, weights;
      multiply_pairs<Rows::keys>(tile, operands, pairs.first_column, products, weights);
      gradients.template find<Gradient::of_product>(pairs, products, weights);
      bool const guards = !gradients.is_plain(pairs);
      if (of_values)
        tile.template accumulate<1>(products, guards, sums);
      else
        tile.template accumulate<0>(weights, guards, sums);
      if constexpr (both) tile.template accumulate<1>(products, guards, value_sums);
    }
  }
  (of_values ? dv_rows : dk_rows).template store<Tile>(first, sums);
  if constexpr (both) dv_rows.template store<Tile>(first, value_sums);
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
  TileGradients<T, P, Tile, Rows::queries> const gradients(step, known, predicate);
  typename Tile::Products sums = {};
  for (Index batch = own_batch; batch < batch_end; ++batch)
    for (Index head = own_head; head < head_end; ++head) {
      HeadPlace const place{batch, head, head / (step.query_heads / step.kv_heads)};
      HeadOperands<T> const operands(step, known.dout, place);
      typename Tile::Products products, dlogits;
      place_rows<Rows::queries>(tile, operands, first);
      multiply_pairs<Rows::queries>(tile, operands, first_key, products, dlogits);
      gradients.template find<Gradient::of_logit>({place, first, first_key, pairs == Listed::tested}, products,
                                                  dlogits);
#pragma unroll
      for (int n = 0; n < Tile::rows_of_thread * Tile::columns_of_thread; ++n)
        sums[n / Tile::columns_of_thread][n % Tile::columns_of_thread] +=
            dlogits[n / Tile::columns_of_thread][n % Tile::columns_of_thread];
    }
  for_each_rolled<Tile>(sums, sums, [&](int r, int c, A& sum, A&) {
    Index const query = first + Tile::row(r), key = first_key + Tile::column(c);
    if (query >= step.queries || key >= step.keys) return;
    R& element = gradient.dbias(own_batch, own_head, query, step.key_positions[key]);
    element = narrowed<R>(gradient.adds ? widened<A>(element) + sum : sum);
  });
}

}  // namespace annulus::cuda::detail
