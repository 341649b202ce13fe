#pragma once
// Blocked copy of a two-dimensional array whose axes have different orders in source and destination.

#include <algorithm>

#include "annulus/core/index.hpp"

namespace annulus::nki::simulator {

/// A two-dimensional array whose element (i, j) is at base[i * i_stride + j * j_stride].
template <class T>
struct Plane {
  T* base;
  Index i_stride, j_stride;
};

/// to(i, j) = from(i, j) for i < i_count, j < j_count, in blocks that stay in the cache in both orders.
inline void swap_axes(Plane<float const> from, Plane<float> to, Index i_count, Index j_count) {
  constexpr Index block = 8;
  auto const copy = [&](Index i_begin, Index j_begin, Index i_size, Index j_size) {
    float const* const source = from.base + i_begin * from.i_stride + j_begin * from.j_stride;
    float* const target = to.base + i_begin * to.i_stride + j_begin * to.j_stride;
    for (Index j = 0; j < j_size; ++j)
      for (Index i = 0; i < i_size; ++i)
        target[i * to.i_stride + j * to.j_stride] = source[i * from.i_stride + j * from.j_stride];
  };
  for (Index i = 0; i < i_count; i += block)
    for (Index j = 0; j < j_count; j += block)
      if (i + block <= i_count && j + block <= j_count)
        copy(i, j, block, block);  // constant size: unrolled
      else
        copy(i, j, std::min(block, i_count - i), std::min(block, j_count - j));
}

}  // namespace annulus::nki::simulator
