#pragma once
// Launches of the complete path's kernels. annulus::cuda has them for all element types and EveryPair. A file that nvcc
// compiles adds another predicate by
//   #include <annulus/backend/cuda/complete/complete_path.cuh>
//   ANNULUS_CUDA_PREDICATE(MyPredicate, float)
// for each element type that it is used with: float, double, __half or __nv_bfloat16.

#include "annulus/backend/cuda/complete/fold.cuh"
#include "annulus/backend/cuda/complete/gradients.cuh"

namespace annulus::cuda::detail {

/// Blocks of `rows` rows that cover `count`.
inline unsigned blocks_of(Index count, Index rows) { return static_cast<unsigned>((count + rows - 1) / rows); }

/// Launches a kernel on tiles of sums of type A.
template <class A, class... Parameters, class... Arguments>
void launch_on_tiles(cudaStream_t stream, dim3 blocks, void (*kernel)(Parameters...), Arguments const&... arguments) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  constexpr std::size_t bytes = RowTile<A>::shared_bytes, without_asking = 48 * 1024;
  if constexpr (bytes > without_asking) allow_shared(kernel, bytes);
  launch(kernel, blocks, dim3(RowTile<A>::threads), bytes, stream, arguments...);
}

template <class T, class P>
void CompletePath<T, P>::fold(cudaStream_t stream, StepPairs<T> const& step, State<A> const& state,
                              P const& predicate) {
  dim3 const blocks(blocks_of(step.queries, RowTile<A>::rows), static_cast<unsigned>(step.query_heads),
                    static_cast<unsigned>(step.batch));
  launch_on_tiles<A>(stream, blocks, fold_kernel<T, P>, step, state, predicate);
}

template <class T, class P>
void CompletePath<T, P>::add_gradients(cudaStream_t stream, StepPairs<T> const& step, KnownResults<T, A> const& known,
                                       GradientSums<A> const& sums, P const& predicate) {
  dim3 const of_queries(blocks_of(step.queries, RowTile<A>::rows), static_cast<unsigned>(step.query_heads),
                        static_cast<unsigned>(step.batch));
  dim3 const of_keys(blocks_of(step.keys, RowTile<A>::rows), static_cast<unsigned>(step.kv_heads),
                     static_cast<unsigned>(2 * step.batch));
  launch_on_tiles<A>(stream, of_queries, query_gradients_kernel<T, P, A>, step, known, sums.dq, predicate);
  launch_on_tiles<A>(stream, of_keys, key_gradients_kernel<T, P, A>, step, known, sums.dk, sums.dv, predicate);
}

/// Blocks of the kernel of the gradient of the bias.
template <class T, class R>
dim3 blocks_of_bias(StepPairs<T> const& step, BiasGradient<R> const& gradient) {
  using Tile = RowTile<SumOfElement<T>>;
  return dim3(blocks_of(step.queries, Tile::rows), blocks_of(step.keys, Tile::columns),
              static_cast<unsigned>(gradient.batch * gradient.heads));
}

template <class T, class P>
void CompletePath<T, P>::add_bias_gradient(cudaStream_t stream, StepPairs<T> const& step,
                                           KnownResults<T, A> const& known, BiasGradient<A> const& gradient,
                                           P const& predicate) {
  launch_on_tiles<A>(stream, blocks_of_bias(step, gradient), bias_gradient_kernel<T, P, A, A>, step, known, gradient,
                     predicate);
}

template <class T, class P>
void CompletePath<T, P>::write_bias_gradient(cudaStream_t stream, StepPairs<T> const& step,
                                             KnownResults<T, A> const& known, BiasGradient<T> const& gradient,
                                             P const& predicate) {
  launch_on_tiles<A>(stream, blocks_of_bias(step, gradient), bias_gradient_kernel<T, P, A, T>, step, known, gradient,
                     predicate);
}

}  // namespace annulus::cuda::detail

/// Compiles the kernels for a predicate and an element type, in the global namespace of a file that nvcc compiles.
#define ANNULUS_CUDA_PREDICATE(predicate, element) \
  template struct annulus::cuda::detail::CompletePath<element, predicate>;
