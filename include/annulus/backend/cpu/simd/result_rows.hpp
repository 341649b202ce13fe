#pragma once
// What is done once for each row of results, a vector of elements at a time: 16-bit results are rounded and read here.

#include "annulus/backend/cpu/simd/vector.hpp"
#include "annulus/core/index.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// See ScaleRow.
template <class T, class A = Accumulator<T>>
void scale_row(A const* from, A scale, T* to, Index count) {
  using V = Vector<A>;
  Index d = 0;
  for (V const factor = V::of(scale); d + V::lanes <= count; d += V::lanes)
    store_narrowed(V::load(from + d) * factor, to + d);
  for (; d < count; ++d) to[d] = static_cast<T>(scale * from[d]);
}

/// See RowProduct.
template <class T, class A = Accumulator<T>>
A row_product(T const* output, T const* dout, Index count) {
  using V = Vector<A>;
  constexpr Index lanes = V::lanes;
  V sums = V::zero();
  Index d = 0;
  for (; d + lanes <= count; d += lanes) {
    V const factor = load_widened<A>(output + d);
    auto const vanishes = less_or_equal(larger(factor, V::zero() - factor), V::zero());
    sums = sums + select(vanishes, V::zero(), factor * load_widened<A>(dout + d));
  }
  // GCC 12 would otherwise keep the sums in memory in the loop.
  keep_in_register(sums.native);
  A of_lanes[lanes], sum = A(0);
  sums.store(of_lanes);
  for (A const of_lane : of_lanes) sum += of_lane;
  for (; d < count; ++d)
    if (A const factor = static_cast<A>(output[d]); factor != A(0)) sum += factor * static_cast<A>(dout[d]);
  return sum;
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
