#pragma once
// Launches of the complete path's kernels. annulus::cuda has them for all element types and EveryPair. A file that nvcc
// compiles adds another predicate by
//   #include <annulus/backend/cuda/complete/complete_path.cuh>
//   ANNULUS_CUDA_PREDICATE(MyPredicate, float)
// for each element type that it is used with: float, double, __half or __nv_bfloat16.

#include <algorithm>

#include "annulus/backend/cuda/complete/fold.cuh"
#include "annulus/backend/cuda/complete/gradients.cuh"

namespace annulus::cuda::detail {

/// Blocks of `rows` rows that cover `count`.
inline unsigned blocks_of(Index count, Index rows) { return static_cast<unsigned>((count + rows - 1) / rows); }

/// Shared memory that a block may use on the current GPU.
inline std::size_t largest_shared_bytes() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return static_cast<std::size_t>(bytes);
}

/// Launches of kernels on tiles of one kind.
template <class T, class P, class Tile>
class TileLaunches {
  using A = SumOfElement<T>;
  using Known = KnownResults<T, A>;

 public:
  /// True if the tiles serve a step, with so many left operands.
  static bool serves(StepPairs<T> const& step, int left_operands) {
    return std::max(step.head_dim, step.value_dim) <= Tile::largest_dim &&
           Tile::shared_bytes(step.head_dim, step.value_dim, left_operands) <= largest_shared_bytes();
  }

  static void fold(cudaStream_t stream, StepPairs<T> const& step, State<A> const& state, P const& predicate) {
    launch(stream, step, 1, of_queries(step), fold_kernel<T, P, Tile>, step, state, predicate);
  }
  static void add_gradients(cudaStream_t stream, StepPairs<T> const& step, Known const& known,
                            GradientSums<A> const& sums, P const& predicate) {
    dim3 const of_keys(blocks_of(step.keys, Tile::rows), static_cast<unsigned>(step.kv_heads),
                       static_cast<unsigned>((Tile::sums_both ? 1 : 2) * step.batch));
    launch(stream, step, 2, of_queries(step), query_gradients_kernel<T, P, Tile>, step, known, sums.dq, predicate);
    launch(stream, step, 2, of_keys, key_gradients_kernel<T, P, Tile>, step, known, sums.dk, sums.dv, predicate);
  }
  template <class R>
  static void find_bias_gradient(cudaStream_t stream, StepPairs<T> const& step, Known const& known,
                                 BiasGradient<R> const& gradient, P const& predicate) {
    dim3 const blocks(blocks_of(step.queries, Tile::rows), blocks_of(step.keys, Tile::columns),
                      static_cast<unsigned>(gradient.batch * gradient.heads));
    launch(stream, step, 2, blocks, bias_gradient_kernel<T, P, Tile, R>, step, known, gradient, predicate);
  }

 private:
  static dim3 of_queries(StepPairs<T> const& step) {
    return dim3(blocks_of(step.queries, Tile::rows), static_cast<unsigned>(step.query_heads),
                static_cast<unsigned>(step.batch));
  }
  template <class... Parameters, class... Arguments>
  static void launch(cudaStream_t stream, StepPairs<T> const& step, int left_operands, dim3 blocks,
                     void (*kernel)(Parameters...), Arguments const&... arguments) {
    if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
    std::size_t const bytes = Tile::shared_bytes(step.head_dim, step.value_dim, left_operands);
    if (bytes > 48 * 1024) allow_shared(kernel, bytes);
    detail::launch(kernel, blocks, dim3(Tile::threads), bytes, stream, arguments...);
  }
};

/// Calls function(launches) with the tiles that serve a step: of tensor cores for 16-bit elements where they can.
template <class T, class P, class Function>
void with_tiles(StepPairs<T> const& step, int left_operands, Function&& function) {
  if constexpr (sizeof(T) == 2) {
    TileLaunches<T, P, FragmentTile<T, 128>> const small;
    TileLaunches<T, P, FragmentTile<T, 256>> const large;
    if (small.serves(step, left_operands)) return function(small);
    if (large.serves(step, left_operands)) return function(large);
  }
  function(TileLaunches<T, P, RowTile<T>>());
}

template <class T, class P>
void CompletePath<T, P>::fold(cudaStream_t stream, StepPairs<T> const& step, State<A> const& state,
                              P const& predicate) {
  with_tiles<T, P>(step, 1, [&](auto tiles) { tiles.fold(stream, step, state, predicate); });
}

template <class T, class P>
void CompletePath<T, P>::add_gradients(cudaStream_t stream, StepPairs<T> const& step, KnownResults<T, A> const& known,
                                       GradientSums<A> const& sums, P const& predicate) {
  with_tiles<T, P>(step, 2, [&](auto tiles) { tiles.add_gradients(stream, step, known, sums, predicate); });
}

template <class T, class P>
void CompletePath<T, P>::add_bias_gradient(cudaStream_t stream, StepPairs<T> const& step,
                                           KnownResults<T, A> const& known, BiasGradient<A> const& gradient,
                                           P const& predicate) {
  with_tiles<T, P>(step, 2, [&](auto tiles) { tiles.find_bias_gradient(stream, step, known, gradient, predicate); });
}

template <class T, class P>
void CompletePath<T, P>::write_bias_gradient(cudaStream_t stream, StepPairs<T> const& step,
                                             KnownResults<T, A> const& known, BiasGradient<T> const& gradient,
                                             P const& predicate) {
  with_tiles<T, P>(step, 2, [&](auto tiles) { tiles.find_bias_gradient(stream, step, known, gradient, predicate); });
}

}  // namespace annulus::cuda::detail

/// Compiles the kernels for a predicate and an element type, in the global namespace of a file that nvcc compiles.
#define ANNULUS_CUDA_PREDICATE(predicate, element) \
  template struct annulus::cuda::detail::CompletePath<element, predicate>;
