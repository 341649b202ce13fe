// Kernels of the row-wise operations, compiled once for annulus::cuda.

#include "annulus/backend/cuda/row_operations.hpp"

#include <algorithm>

#include "annulus/backend/cuda/elements.cuh"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cuda::detail {
namespace {

constexpr int warp = 32;
constexpr int rows_of_block = 8;  // one warp a row

/// A row of the outer three axes, by number.
struct OuterRow {
  Index index[3];

  __device__ OuterRow(Index number, Index middle, Index inner) {
    index[2] = number % inner;
    number /= inner;
    index[1] = number % middle;
    index[0] = number / middle;
  }
};

/// The number of this warp among those of all blocks, and of all warps.
__device__ Index warp_number() { return static_cast<Index>(blockIdx.x) * rows_of_block + threadIdx.y; }
__device__ Index warp_count() { return static_cast<Index>(gridDim.x) * rows_of_block; }

dim3 threads_of_block() { return dim3(warp, rows_of_block); }
/// Enough blocks to fill every GPU; each takes several rows where there are more.
dim3 blocks_for(Index rows) {
  return dim3(static_cast<unsigned>(std::clamp<Index>((rows + rows_of_block - 1) / rows_of_block, 1, 16384)));
}

/// Calls function(i, j, k, l) for the elements of rows that warps share.
template <class Function>
__device__ void for_each_element(Extents const& extents, Function&& function) {
  Index const rows = extents.of[0] * extents.of[1] * extents.of[2];
  for (Index number = warp_number(); number < rows; number += warp_count()) {
    OuterRow const row(number, extents.of[1], extents.of[2]);
    for (Index l = threadIdx.x; l < extents.of[3]; l += warp) function(row.index[0], row.index[1], row.index[2], l);
  }
}

/// Calls function(b, h, i) for the rows of a state, each with one warp. Neighbouring warps have neighbouring heads.
template <class Function>
__device__ void for_each_row(StateExtents const& extents, Function&& function) {
  Index const rows = extents.batch * extents.rows * extents.heads;
  for (Index number = warp_number(); number < rows; number += warp_count()) {
    OuterRow const row(number, extents.rows, extents.heads);
    function(row.index[0], row.index[2], row.index[1]);
  }
}

template <class Cell>
__global__ void copy_kernel(Extents extents, Strided<Cell const, 4> from, Strided<Cell, 4> to) {
  for_each_element(extents, [&](Index i, Index j, Index k, Index l) { to(i, j, k, l) = from(i, j, k, l); });
}

template <class Cell>
__global__ void clear_kernel(Extents extents, Strided<Cell, 4> view) {
  for_each_element(extents, [&](Index i, Index j, Index k, Index l) { view(i, j, k, l) = Cell{}; });
}

template <class A, class T>
__global__ void convert_kernel(Extents extents, Strided<A const, 4> from, Strided<T, 4> to) {
  for_each_element(extents,
                   [&](Index i, Index j, Index k, Index l) { to(i, j, k, l) = narrowed<T>(from(i, j, k, l)); });
}

template <class A>
__global__ void add_kernel(Extents extents, Strided<A, 4> into, Strided<A const, 4> from) {
  for_each_element(extents, [&](Index i, Index j, Index k, Index l) { into(i, j, k, l) += from(i, j, k, l); });
}

template <class A>
__global__ void reset_kernel(StateExtents extents, State<A> state) {
  for_each_row(extents, [&](Index b, Index h, Index i) {
    for (Index d = threadIdx.x; d < extents.dim; d += warp) state.accumulator(b, i, h, d) = A(0);
    if (threadIdx.x != 0) return;
    state.maximum(b, h, i) = empty_row<A>;
    state.sum(b, h, i) = A(0);
  });
}

template <class A>
__global__ void merge_kernel(StateExtents extents, State<A> into, State<A> from) {
  for_each_row(extents, [&](Index b, Index h, Index i) {
    SoftmaxRow<A> row{into.maximum(b, h, i), into.sum(b, h, i)};
    auto const factors = row.merge({from.maximum(b, h, i), from.sum(b, h, i)});
    __syncwarp();  // all threads have read the row that one of them replaces
    for (Index d = threadIdx.x; d < extents.dim; d += warp)
      into.accumulator(b, i, h, d) =
          factors.own * into.accumulator(b, i, h, d) + factors.other * from.accumulator(b, i, h, d);
    if (threadIdx.x != 0) return;
    into.maximum(b, h, i) = row.maximum;
    into.sum(b, h, i) = row.sum;
  });
}

template <class A>
__device__ void write_lse(SoftmaxRow<A> const& row, A& lse, A* lse_remainder) {
  lse = row.lse();
  if (lse_remainder) *lse_remainder = row.lse_remainder();
}

template <class T, class A>
__global__ void normalise_kernel(StateExtents extents, State<A> state, Strided<A const, 2> sinks, Index sink_count,
                                 Strided<T, 4> output, Strided<A, 3> lse, Strided<A, 3> lse_remainder) {
  for_each_row(extents, [&](Index b, Index h, Index i) {
    SoftmaxRow<A> row{state.maximum(b, h, i), state.sum(b, h, i)};
    A scale = A(1);
    for (Index s = 0; s < sink_count; ++s) {
      A const sink = sinks(h, s);
      scale *= row.raise(sink);
      row.sum += row.weight(sink);
    }
    scale *= row.normaliser();
    for (Index d = threadIdx.x; d < extents.dim; d += warp)
      output(b, i, h, d) = narrowed<T>(scale * state.accumulator(b, i, h, d));
    if (threadIdx.x == 0) write_lse(row, lse(b, h, i), lse_remainder ? &lse_remainder(b, h, i) : nullptr);
  });
}

template <class T, class A>
__global__ void row_delta_kernel(StateExtents extents, Strided<T const, 4> dout, Strided<T const, 4> output,
                                 Strided<A, 3> delta) {
  for_each_row(extents, [&](Index b, Index h, Index i) {
    A sum = A(0);
    for (Index d = threadIdx.x; d < extents.dim; d += warp) {
      // A row that sees no key has the constant output 0: its dout, even if NaN, must not count.
      A const factor = widened<A>(output(b, i, h, d));
      if (factor != A(0)) sum += factor * widened<A>(dout(b, i, h, d));
    }
    sum = warp_sum<warp>(sum);
    if (threadIdx.x == 0) delta(b, h, i) = sum;
  });
}

constexpr int sink_threads = 256;

/// One block for each head and sink logit: threads add rows in strides, then a tree over the threads.
template <class A>
__global__ void sink_gradients_kernel(StateExtents extents, Strided<A const, 3> lse, Strided<A const, 3> lse_remainder,
                                      Strided<A const, 3> delta, Strided<A const, 2> sinks, Strided<A, 2> dsinks) {
  __shared__ A sums[sink_threads];
  Index const h = blockIdx.x, s = blockIdx.y;
  A sum = A(0);
  for (Index row = threadIdx.x; row < extents.batch * extents.rows; row += sink_threads) {
    Index const b = row / extents.rows, i = row % extents.rows;
    A const remainder = lse_remainder ? lse_remainder(b, h, i) : A(0);
    sum -= probability(sinks(h, s), lse(b, h, i), remainder) * delta(b, h, i);
  }
  sums[threadIdx.x] = sum;
  for (int half = sink_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < static_cast<unsigned>(half)) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) dsinks(h, s) = sums[0];
}

template <class T>
__global__ void clear_keys_kernel(Extents extents, Strided<T, 4> dbias, Index const* key_positions) {
  for_each_element(
      extents, [&](Index b, Index h, Index i, Index key) { dbias(b, h, i, key_positions[key]) = narrowed<T>(0.0f); });
}

/// False if there are no elements, so that no kernel is launched.
bool has_elements(Extents const& e) { return e.of[0] * e.of[1] * e.of[2] * e.of[3] > 0; }
bool has_rows(StateExtents const& e) { return e.batch * e.rows * e.heads > 0; }

template <class... Parameters, class... Arguments>
void launch_elements(cudaStream_t stream, Extents const& extents, void (*kernel)(Extents, Parameters...),
                     Arguments const&... arguments) {
  if (!has_elements(extents)) return;
  launch(kernel, blocks_for(extents.of[0] * extents.of[1] * extents.of[2]), threads_of_block(), 0, stream, extents,
         arguments...);
}
template <class... Parameters, class... Arguments>
void launch_rows(cudaStream_t stream, StateExtents const& extents, void (*kernel)(StateExtents, Parameters...),
                 Arguments const&... arguments) {
  if (!has_rows(extents)) return;
  launch(kernel, blocks_for(extents.batch * extents.rows * extents.heads), threads_of_block(), 0, stream, extents,
         arguments...);
}

}  // namespace

template <int Bytes>
void copy(cudaStream_t stream, Extents const& extents, Strided<Cell<Bytes> const, 4> const& from,
          Strided<Cell<Bytes>, 4> const& to) {
  launch_elements(stream, extents, copy_kernel<Cell<Bytes>>, from, to);
}
template <int Bytes>
void clear(cudaStream_t stream, Extents const& extents, Strided<Cell<Bytes>, 4> const& view) {
  launch_elements(stream, extents, clear_kernel<Cell<Bytes>>, view);
}
template <class A, class T>
void convert(cudaStream_t stream, Extents const& extents, Strided<A const, 4> const& from, Strided<T, 4> const& to) {
  launch_elements(stream, extents, convert_kernel<A, T>, from, to);
}
template <class A>
void add(cudaStream_t stream, Extents const& extents, Strided<A, 4> const& into, Strided<A const, 4> const& from) {
  launch_elements(stream, extents, add_kernel<A>, into, from);
}
template <class A>
void reset(cudaStream_t stream, StateExtents const& extents, State<A> const& state) {
  launch_rows(stream, extents, reset_kernel<A>, state);
}
template <class A>
void merge(cudaStream_t stream, StateExtents const& extents, State<A> const& into, State<A> const& from) {
  launch_rows(stream, extents, merge_kernel<A>, into, from);
}
template <class T, class A>
void normalise(cudaStream_t stream, StateExtents const& extents, State<A> const& state,
               Strided<A const, 2> const& sinks, Index sink_count, Strided<T, 4> const& output,
               Strided<A, 3> const& lse, Strided<A, 3> const& lse_remainder) {
  launch_rows(stream, extents, normalise_kernel<T, A>, state, sinks, sink_count, output, lse, lse_remainder);
}
template <class T, class A>
void row_delta(cudaStream_t stream, StateExtents const& extents, Strided<T const, 4> const& dout,
               Strided<T const, 4> const& output, Strided<A, 3> const& delta) {
  launch_rows(stream, extents, row_delta_kernel<T, A>, dout, output, delta);
}
template <class A>
void sink_gradients(cudaStream_t stream, StateExtents const& extents, Index sink_count, Strided<A const, 3> const& lse,
                    Strided<A const, 3> const& lse_remainder, Strided<A const, 3> const& delta,
                    Strided<A const, 2> const& sinks, Strided<A, 2> const& dsinks) {
  if (extents.heads * sink_count == 0) return;
  launch(sink_gradients_kernel<A>, dim3(static_cast<unsigned>(extents.heads), static_cast<unsigned>(sink_count)),
         dim3(sink_threads), 0, stream, extents, lse, lse_remainder, delta, sinks, dsinks);
}
template <class T>
void clear_keys(cudaStream_t stream, Extents const& extents, Strided<T, 4> const& dbias, Index const* key_positions) {
  launch_elements(stream, extents, clear_keys_kernel<T>, dbias, key_positions);
}

std::string refusal_of_device(int device) {
  int major = 0, minor = 0;
  for (auto [attribute, value] :
       {std::pair{cudaDevAttrComputeCapabilityMajor, &major}, std::pair{cudaDevAttrComputeCapabilityMinor, &minor}})
    check(cudaDeviceGetAttribute(value, attribute, device), "cudaDeviceGetAttribute");
  std::string const gpu = "GPU " + std::to_string(device) + " has compute capability " + std::to_string(major) + "." +
                          std::to_string(minor);
  if (major < 8) return gpu + "; accepted: 8.0 or later";
  CurrentDevice const current(device);
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, reinterpret_cast<void const*>(&add_kernel<float>)) == cudaSuccess) return {};
  cudaGetLastError();  // must not be met by the next call
  return gpu + ", for which annulus::cuda was not compiled (CMAKE_CUDA_ARCHITECTURES)";
}

#define ANNULUS_FOR_CELLS(bytes)                                                                \
  template void copy<bytes>(cudaStream_t, Extents const&, Strided<Cell<bytes> const, 4> const&, \
                            Strided<Cell<bytes>, 4> const&);                                    \
  template void clear<bytes>(cudaStream_t, Extents const&, Strided<Cell<bytes>, 4> const&);
ANNULUS_FOR_CELLS(1)
ANNULUS_FOR_CELLS(2)
ANNULUS_FOR_CELLS(4)
ANNULUS_FOR_CELLS(8)
ANNULUS_FOR_CELLS(16)
#undef ANNULUS_FOR_CELLS

#define ANNULUS_CONVERT(A, T) \
  template void convert<A, T>(cudaStream_t, Extents const&, Strided<A const, 4> const&, Strided<T, 4> const&);
ANNULUS_CONVERT(float, float)
ANNULUS_CONVERT(float, double)
ANNULUS_CONVERT(float, __half)
ANNULUS_CONVERT(float, __nv_bfloat16)
ANNULUS_CONVERT(double, float)
ANNULUS_CONVERT(double, double)
#undef ANNULUS_CONVERT

#define ANNULUS_FOR_SUMS(A)                                                                                           \
  template void add<A>(cudaStream_t, Extents const&, Strided<A, 4> const&, Strided<A const, 4> const&);               \
  template void reset<A>(cudaStream_t, StateExtents const&, State<A> const&);                                         \
  template void merge<A>(cudaStream_t, StateExtents const&, State<A> const&, State<A> const&);                        \
  template void sink_gradients<A>(cudaStream_t, StateExtents const&, Index, Strided<A const, 3> const&,               \
                                  Strided<A const, 3> const&, Strided<A const, 3> const&, Strided<A const, 2> const&, \
                                  Strided<A, 2> const&);
ANNULUS_FOR_SUMS(float)
ANNULUS_FOR_SUMS(double)
#undef ANNULUS_FOR_SUMS

#define ANNULUS_FOR_ELEMENTS(T)                                                                                        \
  template void normalise<T, SumOfElement<T>>(cudaStream_t, StateExtents const&, State<SumOfElement<T>> const&,        \
                                              Strided<SumOfElement<T> const, 2> const&, Index, Strided<T, 4> const&,   \
                                              Strided<SumOfElement<T>, 3> const&, Strided<SumOfElement<T>, 3> const&); \
  template void row_delta<T, SumOfElement<T>>(cudaStream_t, StateExtents const&, Strided<T const, 4> const&,           \
                                              Strided<T const, 4> const&, Strided<SumOfElement<T>, 3> const&);         \
  template void clear_keys<T>(cudaStream_t, Extents const&, Strided<T, 4> const&, Index const*);
ANNULUS_FOR_ELEMENTS(float)
ANNULUS_FOR_ELEMENTS(double)
ANNULUS_FOR_ELEMENTS(__half)
ANNULUS_FOR_ELEMENTS(__nv_bfloat16)
#undef ANNULUS_FOR_ELEMENTS

}  // namespace annulus::cuda::detail
