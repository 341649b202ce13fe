#pragma once
// The backward pass of the complete path. Probabilities are recomputed from the log-sum-exp. Each sum has one owner,
// which adds its terms in a fixed order: dq a block for each 32 queries of a head, dk and dv a block for each 32 keys of
// a kv head, the gradient of the bias a block for each 32 queries x 64 keys.

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

/// Gradients of the pairs of a tile whose rows are queries.
template <class T, class P>
class QueryGradients {
 public:
  using A = SumOfElement<T>;
  using Tile = RowTile<A>;

  __device__ QueryGradients(StepPairs<T> const& step, KnownResults<T, A> const& known, P const& predicate,
                            HeadPlace const& place, Index first_query)
      : step_(step), rules_(step, predicate), place_(place), first_(first_query), operands_(step, known.dout, place) {
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r)
      known_[r] = KnownRow<A>::of(known, place, first_ + Tile::row(r), step.queries);
  }

  /// Calls function(r, c, gradient) for each visible pair of the thread with 64 keys, and found(r, c, gradient 0) for
  /// the others.
  template <class Function>
  __device__ void for_each_pair(Tile const& tile, Index first_key, bool tests_positions, Function&& function) {
    typename Tile::Products products, dweights;
    tile.multiply(operands_.q, first_, operands_.k, first_key, products);
    tile.multiply(operands_.dout, first_, operands_.v, first_key, dweights);
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r)
#pragma unroll
      for (int c = 0; c < Tile::columns_of_thread; ++c) {
        Index const query = first_ + Tile::row(r), key = first_key + Tile::column(c);
        PairGradient<A> gradient;
        // A row that has seen no key has gradient 0; its lse of -inf must not be combined with a finite logit.
        if (known_[r].lse != empty_row<A> && rules_.visible(place_, query, key, tests_positions))
          gradient = pair_gradient<T, P>(rules_, place_, query, key, known_[r], products[r][c], dweights[r][c]);
        function(r, c, gradient);
      }
  }

  __device__ HeadOperands<T> const& operands() const { return operands_; }

 private:
  StepPairs<T> const& step_;
  PairRules<T, P> rules_;
  HeadPlace place_;
  Index first_;
  HeadOperands<T> operands_;
  KnownRow<A> known_[Tile::rows_of_thread];
};

template <class T, class P, class A>
__global__ void __launch_bounds__(RowTile<A>::threads)
    query_gradients_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ KnownResults<T, A> const known,
                           __grid_constant__ Strided<A, 4> const dq, __grid_constant__ P const predicate) {
  using Tile = RowTile<A>;
  HeadPlace const place{blockIdx.z, blockIdx.y, blockIdx.y / (step.query_heads / step.kv_heads)};
  Index const first = Index{blockIdx.x} * Tile::rows;
  Tile const tile(shared_memory());
  QueryGradients<T, P> rows(step, known, predicate, place, first);
  typename Tile::Sums sums = {};
  Tile::for_each_sum(first, step.queries, step.head_dim, sums,
                     [&](Index i, int d, A& sum) { sum = dq(place.batch, i, place.head, d); });
  for_each_block(step.of_queries, first, [&](Index key, bool tests) {
    rows.for_each_pair(tile, key, tests, [&](int r, int c, PairGradient<A> const& gradient) {
      tile.set_weight(r, c, gradient.dproduct);
    });
    tile.accumulate(rows.operands().k, key, sums);
  });
  Tile::for_each_sum(first, step.queries, step.head_dim, sums,
                     [&](Index i, int d, A& sum) { dq(place.batch, i, place.head, d) = sum; });
}

/// Gradients of the pairs of a tile whose rows are keys, for one query head.
template <class T, class P>
class KeyGradients {
 public:
  using A = SumOfElement<T>;
  using Tile = RowTile<A>;

  __device__ KeyGradients(StepPairs<T> const& step, KnownResults<T, A> const& known, P const& predicate,
                          HeadPlace const& place, Index first_key)
      : known_(known),
        queries_(step.queries),
        rules_(step, predicate),
        place_(place),
        first_(first_key),
        operands_(step, known.dout, place) {}

  /// Adds the share of 64 queries to dk (of_keys) or dv.
  __device__ void add(Tile const& tile, Index first_query, bool tests_positions, bool of_keys,
                      typename Tile::Sums& sums) const {
    typename Tile::Products products, dweights = {};
    tile.multiply(operands_.k, first_, operands_.q, first_query, products);
    if (of_keys) tile.multiply(operands_.v, first_, operands_.dout, first_query, dweights);
#pragma unroll
    for (int c = 0; c < Tile::columns_of_thread; ++c) {
      Index const query = first_query + Tile::column(c);
      auto const row = KnownRow<A>::of(known_, place_, query, queries_);
#pragma unroll
      for (int r = 0; r < Tile::rows_of_thread; ++r) {
        Index const key = first_ + Tile::row(r);
        PairGradient<A> gradient;
        if (row.lse != empty_row<A> && rules_.visible(place_, query, key, tests_positions))
          gradient = pair_gradient<T, P>(rules_, place_, query, key, row, products[r][c], dweights[r][c]);
        tile.set_weight(r, c, of_keys ? gradient.dproduct : gradient.kept_weight);
      }
    }
    tile.accumulate(of_keys ? operands_.q : operands_.dout, first_query, sums);
  }

 private:
  KnownResults<T, A> const& known_;
  Index queries_;
  PairRules<T, P> rules_;
  HeadPlace place_;
  Index first_;
  HeadOperands<T> operands_;
};

/// dk and dv are summed by blocks of their own, because a thread has registers for one of the sums.
template <class T, class P, class A>
__global__ void __launch_bounds__(RowTile<A>::threads)
    key_gradients_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ KnownResults<T, A> const known,
                         __grid_constant__ Strided<A, 4> const dk, __grid_constant__ Strided<A, 4> const dv,
                         __grid_constant__ P const predicate) {
  using Tile = RowTile<A>;
  bool const of_keys = blockIdx.z % 2 == 0;
  Index const batch = blockIdx.z / 2, kv_head = blockIdx.y, group = step.query_heads / step.kv_heads;
  Index const first = Index{blockIdx.x} * Tile::rows, dim = of_keys ? step.head_dim : step.value_dim;
  Strided<A, 4> const& gradient = of_keys ? dk : dv;
  Tile const tile(shared_memory());
  typename Tile::Sums sums = {};
  Tile::for_each_sum(first, step.keys, dim, sums,
                     [&](Index j, int d, A& sum) { sum = gradient(batch, j, kv_head, d); });
  for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    KeyGradients<T, P> const rows(step, known, predicate, {batch, head, kv_head}, first);
    for_each_block(step.of_keys, first, [&](Index query, bool tests) { rows.add(tile, query, tests, of_keys, sums); });
  }
  Tile::for_each_sum(first, step.keys, dim, sums,
                     [&](Index j, int d, A& sum) { gradient(batch, j, kv_head, d) = sum; });
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
template <class T, class P, class A, class R>
__global__ void __launch_bounds__(RowTile<A>::threads)
    bias_gradient_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ KnownResults<T, A> const known,
                         __grid_constant__ BiasGradient<R> const gradient, __grid_constant__ P const predicate) {
  using Tile = RowTile<A>;
  Index const first = Index{blockIdx.x} * Tile::rows, first_key = Index{blockIdx.y} * Tile::columns;
  Listed const pairs = listed(step.of_queries, first, static_cast<int>(blockIdx.y));
  if (pairs == Listed::no) return;
  Index const own_batch = blockIdx.z / gradient.heads, own_head = blockIdx.z % gradient.heads;
  Index const batch_end = gradient.batch == 1 ? step.batch : own_batch + 1;
  Index const head_end = gradient.heads == 1 ? step.query_heads : own_head + 1;
  Tile const tile(shared_memory());
  typename Tile::Products sums = {};
  for (Index batch = own_batch; batch < batch_end; ++batch)
    for (Index head = own_head; head < head_end; ++head) {
      HeadPlace const place{batch, head, head / (step.query_heads / step.kv_heads)};
      QueryGradients<T, P> rows(step, known, predicate, place, first);
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
