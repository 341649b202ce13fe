#pragma once
// Forward pass of a step with few query rows, split over its keys so that all multiprocessors read them (Flash-Decoding,
// Dao et al. 2023): blocks compute the results of parts of the keys, and a second kernel merges them.

#include <algorithm>

#include "annulus/backend/cuda/decode/fragment_rows.cuh"
#include "annulus/backend/cuda/decode/lane_rows.cuh"

namespace annulus::cuda::detail {

/// Blocks: kv heads, which are neighbours in memory, for each group of rows; splits; batch items.
template <class T, class Rows>
__global__ void __launch_bounds__(decode_threads, Rows::blocks)
    split_keys_kernel(__grid_constant__ DecodeStep<T> const step,
                      __grid_constant__ PartialResults<SumOfElement<T>> const partial) {
  int const kv_heads = step.extents.kv_heads, split = static_cast<int>(blockIdx.y);
  int const head = static_cast<int>(blockIdx.x) % kv_heads,
            first = static_cast<int>(blockIdx.x) / kv_heads * Rows::rows;
  DecodePlace const place{static_cast<int>(blockIdx.z), head, first};
  auto const end_of = [&](int splits) { return static_cast<int>(Index{step.visible.units} * splits / partial.splits); };
  Rows rows(step, place);
  int const warp = static_cast<int>(threadIdx.x) / 32;
  rows.fold(KeyUnits(step.visible, end_of(split) + warp, end_of(split + 1), decode_warps));
  rows.store(partial, (Index{place.batch} * kv_heads + head) * step.rows() + first, split);
}

/// One block for each query of a query head. Shared memory: a factor for each split.
template <class A>
__global__ void __launch_bounds__(decode_threads)
    merge_splits_kernel(StepExtents extents, PartialResults<A> partial, State<A> state) {
  Index const head = blockIdx.x, query = blockIdx.y, batch = blockIdx.z;
  int const group = extents.query_heads / extents.kv_heads;
  Index const row = (batch * extents.kv_heads + head / group) * extents.queries * group + query * group + head % group;
  A const *const maxima = partial.maximum + row * partial.splits, *const sums = partial.sum + row * partial.splits;
  A* const factors = static_cast<A*>(shared_memory());
  SoftmaxRow<A> merged{state.maximum(batch, head, query), state.sum(batch, head, query)};
  A largest = empty_row<A>;
  for (int s = 0; s < partial.splits; ++s) largest = fmax(largest, maxima[s]);
  A const own = merged.raise(largest);
  for (int s = static_cast<int>(threadIdx.x); s < partial.splits; s += decode_threads)
    factors[s] = rescale(maxima[s], merged.maximum);
  __syncthreads();
  for (int s = 0; s < partial.splits; ++s) merged.sum += factors[s] * sums[s];
  for (int d = static_cast<int>(threadIdx.x); d < extents.value_dim; d += decode_threads) {
    A& element = state.accumulator(batch, query, head, d);
    A sum = own == A(0) ? A(0) : own * element;  // what has the factor 0 may be infinite
    for (int s = 0; s < partial.splits; ++s)
      if (factors[s] != A(0)) sum += factors[s] * partial.outputs[(row * partial.splits + s) * extents.value_dim + d];
    element = sum;
  }
  if (threadIdx.x != 0) return;
  state.maximum(batch, head, query) = merged.maximum;
  state.sum(batch, head, query) = merged.sum;
}

/// Calls function(rows) with a null pointer to the class of rows that serves a step.
template <class T, class Function>
auto with_rows(DecodeStep<T> const& step, Function&& function) {
  if constexpr (sizeof(T) == 2) {
    if (FragmentRows<T, 64>::serves(step)) return function(static_cast<FragmentRows<T, 64>*>(nullptr));
    if (FragmentRows<T, 128>::serves(step)) return function(static_cast<FragmentRows<T, 128>*>(nullptr));
    if (FragmentRows<T, 256>::serves(step)) return function(static_cast<FragmentRows<T, 256>*>(nullptr));
  }
  if (LaneRows<T, 4>::serves(step)) return function(static_cast<LaneRows<T, 4>*>(nullptr));
  return function(static_cast<LaneRows<T, 16>*>(nullptr));
}

template <class T>
DecodeShape decode_shape(DecodeStep<T> const& step) {
  return with_rows(step, []<class Rows>(Rows*) { return DecodeShape{Rows::rows, Rows::blocks}; });
}

template <class T>
void split_keys(cudaStream_t stream, DecodeStep<T> const& step, PartialResults<SumOfElement<T>> const& partial) {
  with_rows(step, [&]<class Rows>(Rows*) {
    StepExtents const& e = step.extents;
    dim3 const blocks(static_cast<unsigned>(e.kv_heads * ((step.rows() + Rows::rows - 1) / Rows::rows)),
                      static_cast<unsigned>(partial.splits), static_cast<unsigned>(e.batch));
    std::size_t const bytes = Rows::shared_bytes(e);
    if (bytes > 48 * 1024) allow_shared(split_keys_kernel<T, Rows>, bytes);
    launch(split_keys_kernel<T, Rows>, blocks, dim3(decode_threads), bytes, stream, step, partial);
  });
}

template <class A>
void merge_splits(cudaStream_t stream, StepExtents const& extents, PartialResults<A> const& partial,
                  State<A> const& state) {
  dim3 const blocks(static_cast<unsigned>(extents.query_heads), static_cast<unsigned>(extents.queries),
                    static_cast<unsigned>(extents.batch));
  launch(merge_splits_kernel<A>, blocks, dim3(decode_threads), sizeof(A) * static_cast<std::size_t>(partial.splits),
         stream, extents, partial, state);
}

}  // namespace annulus::cuda::detail
