#pragma once
// The forward pass of the complete path: online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv
// 2205.14135) of a step, one block for each tile of queries of a head.

#include "annulus/backend/cuda/complete/fragment_tile.cuh"
#include "annulus/backend/cuda/complete/pair_rules.cuh"
#include "annulus/backend/cuda/shared_memory.cuh"

namespace annulus::cuda::detail {

/// The blocks of the other side that the block of a row is paired with, one after another.
class BlockCursor {
 public:
  __device__ BlockCursor(BlockRuns const& runs, Index row)
      : runs_(runs.runs), run_(runs.first[row / pair_block]), end_(runs.first[row / pair_block + 1]) {
    enter();
  }
  __device__ bool valid() const { return run_ < end_; }
  __device__ Index first_row() const { return Index{block_} * pair_block; }
  __device__ bool tests_positions() const { return current_.tested != 0; }
  __device__ void advance() {
    if (++block_ < current_.end) return;
    ++run_;
    enter();
  }

 private:
  __device__ void enter() {
    if (!valid()) return;
    current_ = runs_[run_];
    block_ = current_.begin;
  }

  BlockRun const* runs_;
  int run_, end_, block_ = 0;
  BlockRun current_{};
};

/// The running state of the rows of a thread; all threads that share a row hold it.
template <class T, class P, class Tile>
class RowFold {
 public:
  using A = SumOfElement<T>;
  using Products = typename Tile::Products;

  __device__ RowFold(StepPairs<T> const& step, State<A> const& state, P const& predicate, HeadPlace const& place,
                     Index first_query)
      : step_(step),
        state_(state),
        rules_(step, predicate),
        place_(place),
        first_(first_query),
        plain_(PairRules<T, P>::is_plain(step)) {
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r)
      if (query(r) < step.queries)
        row_[r] = {state.maximum(place.batch, place.head, query(r)), state.sum(place.batch, place.head, query(r))};
    accumulator().template load<Tile>(first_, sums_);
  }

  /// Adds the keys of all blocks. While the logits of one block are weighed, the keys of the next one are copied.
  __device__ void fold(Tile& tile, BlockCursor block) {
    HeadRows<T> const q(step_.q, place_.batch, place_.head, step_.queries, step_.head_dim);
    HeadRows<T> const k(step_.k, place_.batch, place_.kv_head, step_.keys, step_.head_dim);
    HeadRows<T> const v(step_.v, place_.batch, place_.kv_head, step_.keys, step_.value_dim);
    if (!block.valid()) return;
    tile.template place_left<0>(q, first_);
    tile.template place_right<0>(k, block.first_row());
    while (block.valid()) {
      Index const first_key = block.first_row();
      bool const tests = block.tests_positions();
      tile.template place_right<1>(v, first_key);
      Products products;
      tile.template multiply<0>(products);
      block.advance();
      if (block.valid())
        tile.template place_right<0>(k, block.first_row());
      else
        tile.place_nothing();
      bool const plain =
          plain_ && !tests && first_ + Tile::rows <= step_.queries && first_key + Tile::columns <= step_.keys;
      if (!(plain && weigh_plain(products))) weigh(products, first_key, tests);
      tile.template accumulate<1>(products, !plain, sums_);
    }
  }

  __device__ void store() {
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r) {
      if (query(r) >= step_.queries || !Tile::leads_row()) continue;
      state_.maximum(place_.batch, place_.head, query(r)) = row_[r].maximum;
      state_.sum(place_.batch, place_.head, query(r)) = row_[r].sum;
    }
    accumulator().template store<Tile>(first_, sums_);
  }

 private:
  __device__ Index query(int r) const { return first_ + Tile::row(r); }
  __device__ SumRows<A> accumulator() const {
    return {state_.accumulator, place_.batch, place_.head, step_.queries, step_.value_dim};
  }

  /// Turns products into weights.
  __device__ void weigh(Products& products, Index first_key, bool tests_positions) {
    for_each_rolled<Tile>(products, products, [&](int r, int c, A& product, A& result) {
      Index const key = first_key + Tile::column(c);
      bool const visible = rules_.visible(place_, query(r), key, tests_positions);
      result = visible ? rules_.logit(place_, query(r), key, product).logit : empty_row<A>;
    });
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r)
      add_row(r, products[r], [](A logit, A maximum) { return rescale(logit, maximum); });
    if (!step_.dropout.active()) return;
    for_each_rolled<Tile>(products, products, [&](int r, int c, A& weight, A& result) {
      result = weight != A(0) ? weight * rules_.kept(place_, query(r), first_key + Tile::column(c)) : weight;
    });
  }

  /// The same where all keys are visible and logits are products times the scale. False, with nothing done, if a product
  /// of the warp overflows.
  __device__ bool weigh_plain(Products& products) {
    A overflow = A(0);
#pragma unroll
    for (auto const& of_row : products)
#pragma unroll
      for (A const product : of_row) overflow += product * A(0);  // NaN for an infinite product
    if (!__all_sync(0xffffffffu, overflow == A(0))) return false;
    A const scale = rules_.rule().scale;
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r) {
#pragma unroll
      for (A& product : products[r]) product = rounded(product * scale);
      add_row(r, products[r], [](A logit, A maximum) { return Tile::exponential(logit - maximum); });
    }
    return true;
  }

  /// Adds the logits of a row: raises its maximum, rescales what has been summed, and turns logits into weights.
  template <class Weight>
  __device__ void add_row(int r, A (&logits)[Tile::columns_of_thread], Weight&& weight) {
    A largest = empty_row<A>, sum = A(0);
#pragma unroll
    for (A const logit : logits) largest = fmax(largest, logit);
    A const factor = row_[r].raise(Tile::maximum_of_row(largest));
#pragma unroll
    for (A& of_dim : sums_[r]) of_dim *= factor;
    A const maximum = row_[r].maximum;
#pragma unroll
    for (A& logit : logits) {
      logit = weight(logit, maximum);
      sum += logit;
    }
    row_[r].sum += Tile::sum_of_row(sum);
  }

  StepPairs<T> const& step_;
  State<A> const& state_;
  PairRules<T, P> rules_;
  HeadPlace place_;
  Index first_;
  bool plain_;
  SoftmaxRow<A> row_[Tile::rows_of_thread];
  typename Tile::Sums sums_ = {};
};

template <class T, class P, class Tile>
__global__ void __launch_bounds__(Tile::threads)
    fold_kernel(__grid_constant__ StepPairs<T> const step, __grid_constant__ State<SumOfElement<T>> const state,
                __grid_constant__ P const predicate) {
  if (is_done(step)) return;
  HeadPlace const place{blockIdx.z, blockIdx.y, blockIdx.y / (step.query_heads / step.kv_heads)};
  Index const first = Index{blockIdx.x} * Tile::rows;
  Tile tile(shared_memory(), static_cast<int>(step.head_dim), static_cast<int>(step.value_dim));
  RowFold<T, P, Tile> rows(step, state, predicate, place, first);
  rows.fold(tile, BlockCursor(step.of_queries, first));
  rows.store();
}

}  // namespace annulus::cuda::detail
