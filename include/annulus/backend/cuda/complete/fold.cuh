#pragma once
// The forward pass of the complete path: online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv
// 2205.14135) of a step, one block for each 32 queries of a head.

#include "annulus/backend/cuda/complete/pair_rules.cuh"
#include "annulus/backend/cuda/complete/row_tile.cuh"
#include "annulus/backend/cuda/shared_memory.cuh"

namespace annulus::cuda::detail {

/// Calls function(first row, tests_positions) for each block of the other side that the block of a row is paired with.
template <class Function>
__device__ void for_each_block(BlockRuns const& runs, Index row, Function&& function) {
  Index const block = row / pair_block;
  for (int n = runs.first[block]; n < runs.first[block + 1]; ++n)
    for (int other = runs.runs[n].begin; other < runs.runs[n].end; ++other)
      function(Index{other} * pair_block, runs.runs[n].tested != 0);
}

/// The running state of the rows of a thread; all threads of a warp hold the same rows.
template <class T, class P>
class RowFold {
 public:
  using A = SumOfElement<T>;
  using Tile = RowTile<A>;

  __device__ RowFold(StepPairs<T> const& step, State<A> const& state, P const& predicate, HeadPlace const& place,
                     Index first_query)
      : step_(step), state_(state), rules_(step, predicate), place_(place), first_(first_query) {
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r)
      if (query(r) < step.queries)
        row_[r] = {state.maximum(place.batch, place.head, query(r)), state.sum(place.batch, place.head, query(r))};
    Tile::for_each_sum(first_, step.queries, step.value_dim, sums_,
                       [&](Index i, int d, A& sum) { sum = state.accumulator(place.batch, i, place.head, d); });
  }

  /// Adds 64 keys.
  __device__ void fold(Tile const& tile, Index first_key, bool tests_positions) {
    HeadRows<T> const q(step_.q, place_.batch, place_.head, step_.queries, step_.head_dim);
    HeadRows<T> const k(step_.k, place_.batch, place_.kv_head, step_.keys, step_.head_dim);
    HeadRows<T> const v(step_.v, place_.batch, place_.kv_head, step_.keys, step_.value_dim);
    typename Tile::Products logits;
    tile.multiply(q, first_, k, first_key, logits);
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r) {
#pragma unroll
      for (int c = 0; c < Tile::columns_of_thread; ++c) {
        Index const key = first_key + Tile::column(c);
        logits[r][c] = rules_.visible(place_, query(r), key, tests_positions)
                           ? rules_.logit(place_, query(r), key, logits[r][c]).logit
                           : empty_row<A>;
      }
      weigh(tile, r, logits[r], first_key);
    }
    tile.accumulate(v, first_key, sums_);
  }

  __device__ void store() {
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r) {
      if (query(r) >= step_.queries || threadIdx.x % 32 != 0) continue;
      state_.maximum(place_.batch, place_.head, query(r)) = row_[r].maximum;
      state_.sum(place_.batch, place_.head, query(r)) = row_[r].sum;
    }
    Tile::for_each_sum(first_, step_.queries, step_.value_dim, sums_,
                       [&](Index i, int d, A& sum) { state_.accumulator(place_.batch, i, place_.head, d) = sum; });
  }

 private:
  __device__ Index query(int r) const { return first_ + Tile::row(r); }

  /// Turns the logits of a row into weights, and rescales the sums of the row to their maximum.
  __device__ void weigh(Tile const& tile, int r, A (&logits)[Tile::columns_of_thread], Index first_key) {
    A largest = empty_row<A>, sum = A(0);
    for (A const logit : logits) largest = fmax(largest, logit);
    A const factor = row_[r].raise(warp_maximum(largest));
    for (A& of_dim : sums_[r]) of_dim *= factor;
#pragma unroll
    for (int c = 0; c < Tile::columns_of_thread; ++c) {
      A weight = row_[r].weight(logits[c]);
      sum += weight;
      if (weight != A(0)) weight *= rules_.kept(place_, query(r), first_key + Tile::column(c));
      tile.set_weight(r, c, weight);
    }
    row_[r].sum += warp_sum(sum);
  }

  StepPairs<T> const& step_;
  State<A> const& state_;
  PairRules<T, P> rules_;
  HeadPlace place_;
  Index first_;
  SoftmaxRow<A> row_[Tile::rows_of_thread];
  typename Tile::Sums sums_ = {};
};

template <class T, class P>
__global__ void __launch_bounds__(RowTile<SumOfElement<T>>::threads)
    fold_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ State<SumOfElement<T>> const state,
                __grid_constant__ P const predicate) {
  using Tile = RowTile<SumOfElement<T>>;
  HeadPlace const place{blockIdx.z, blockIdx.y, blockIdx.y / (step.query_heads / step.kv_heads)};
  Index const first = Index{blockIdx.x} * Tile::rows;
  Tile const tile(shared_memory());
  RowFold<T, P> rows(step, state, predicate, place, first);
  for_each_block(step.of_queries, first, [&](Index key, bool tests) { rows.fold(tile, key, tests); });
  rows.store();
}

}  // namespace annulus::cuda::detail
