#pragma once
// Copies of two axes that run in different orders in source and destination.

#include <algorithm>

#include "annulus/core/index.hpp"

namespace annulus::nki::simulator {

/// Element (i, j) is at base[i * i_stride + j * j_stride].
template <class T>
struct Plane {
  T* base;
  Index i_stride, j_stride;
};

/// to(i, j) = from(i, j), in blocks that stay in the cache in both orders.
inline void swap_axes(Plane<float const> from, Plane<float> to, Index i_count, Index j_count) {
  constexpr Index block = 8;
  for (Index i0 = 0; i0 < i_count; i0 += block)
    for (Index j0 = 0; j0 < j_count; j0 += block) {
      Index const i_end = std::min(i_count, i0 + block), j_end = std::min(j_count, j0 + block);
      for (Index j = j0; j < j_end; ++j)
        for (Index i = i0; i < i_end; ++i)
          to.base[i * to.i_stride + j * to.j_stride] = from.base[i * from.i_stride + j * from.j_stride];
    }
}

}  // namespace annulus::nki::simulator
