#pragma once
// Row-wise operations of CudaBackend as functions of annulus::cuda, which put their kernels on a stream: host compilers
// and nvcc share these declarations. A means float or double, T an element type of operands in device code.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <type_traits>

#include "annulus/core/host_device.hpp"
#include "annulus/core/index.hpp"

struct __half;
struct __nv_bfloat16;

namespace annulus::cuda::detail {

/// Type of sums over elements of type T in device code.
template <class T>
using SumOfElement = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Elements in device memory: pointer and strides by axis, in elements.
template <class T, int N>
struct Strided {
  T* data = nullptr;  ///< element of index 0; null: not given
  Index strides[N] = {};

  ANNULUS_HOST_DEVICE explicit operator bool() const { return data != nullptr; }
  /// The element of an index.
  template <class... I>
  ANNULUS_HOST_DEVICE T& operator()(I... index) const {
    static_assert(sizeof...(I) == N);
    Index offset = 0;
    int a = 0;
    ((offset += static_cast<Index>(index) * strides[a++]), ...);
    return data[offset];
  }
};

/// Extents of an element-wise operation: of axes 0 to 3, of which the last is the innermost in memory.
struct Extents {
  Index of[4] = {1, 1, 1, 1};
};

/// Rows of a running state [batch, rows, heads, dim], with unit stride along dim.
struct StateExtents {
  Index batch = 0, rows = 0, heads = 0, dim = 0;
};

/// Accumulator [batch, rows, heads, dim], maximum and sum [batch, heads, rows] of a running state.
template <class A>
struct State {
  Strided<A, 4> accumulator;
  Strided<A, 3> maximum, sum;
};

/// Elements of `Bytes` bytes, which copies and clears need not tell apart by type.
template <int Bytes>
struct alignas(Bytes) Cell {
  unsigned char bytes[Bytes];
};

/// to = from. Bytes: 1, 2, 4, 8 or 16.
template <int Bytes>
void copy(cudaStream_t stream, Extents const& extents, Strided<Cell<Bytes> const, 4> const& from,
          Strided<Cell<Bytes>, 4> const& to);

/// Sets each byte to 0. Bytes: 1, 2, 4, 8 or 16.
template <int Bytes>
void clear(cudaStream_t stream, Extents const& extents, Strided<Cell<Bytes>, 4> const& view);

/// to = from, rounded to nearest, ties to even.
template <class A, class T>
void convert(cudaStream_t stream, Extents const& extents, Strided<A const, 4> const& from, Strided<T, 4> const& to);

/// into += from.
template <class A>
void add(cudaStream_t stream, Extents const& extents, Strided<A, 4> const& into, Strided<A const, 4> const& from);

/// Makes every row empty.
template <class A>
void reset(cudaStream_t stream, StateExtents const& extents, State<A> const& state);

/// Merges two states of the same rows into the first, by SoftmaxRow::merge.
template <class A>
void merge(cudaStream_t stream, StateExtents const& extents, State<A> const& into, State<A> const& from);

/// HostOperations::normalise. sinks: [heads, sink_count]. output [batch, rows, heads, dim], any strides.
template <class T, class A>
void normalise(cudaStream_t stream, StateExtents const& extents, State<A> const& state,
               Strided<A const, 2> const& sinks, Index sink_count, Strided<T, 4> const& output,
               Strided<A, 3> const& lse, Strided<A, 3> const& lse_remainder);

/// HostOperations::row_delta.
template <class T, class A>
void row_delta(cudaStream_t stream, StateExtents const& extents, Strided<T const, 4> const& dout,
               Strided<T const, 4> const& output, Strided<A, 3> const& delta);

/// HostOperations::sink_gradients, in a fixed order. lse, lse_remainder and delta [batch, heads, rows]; sinks and dsinks
/// [heads, sink_count].
template <class A>
void sink_gradients(cudaStream_t stream, StateExtents const& extents, Index sink_count, Strided<A const, 3> const& lse,
                    Strided<A const, 3> const& lse_remainder, Strided<A const, 3> const& delta,
                    Strided<A const, 2> const& sinks, Strided<A, 2> const& dsinks);

/// Sets the elements of dbias at the keys of a step to 0, for all batch items, heads and queries of its extents.
template <class T>
void clear_keys(cudaStream_t stream, Extents const& extents, Strided<T, 4> const& dbias, Index const* key_positions);

/// Why the kernels of annulus::cuda cannot run on a GPU; empty if they can.
std::string refusal_of_device(int device);

}  // namespace annulus::cuda::detail
