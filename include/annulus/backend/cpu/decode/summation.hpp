#pragma once
// Orders of summation of the products that few query rows need: those of packed panels, to the bit.

#include <type_traits>

#include "annulus/backend/cpu/panel/packing.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Sums of packed elements E, one after the other, as vectors add them up.
template <class E>
struct SumsInOrder {
  using O = Operand<E>;
  using A = typename O::Sum;
  using V = Vector<A>;
  using Packed = E;                ///< element of a weight
  using Query = E;                 ///< element of a query
  using Factor = typename O::Row;  ///< of a product
  using Sum = V;
  /// A sum over values goes on from the one before, within a key block, not only after chunks of keys.
  static constexpr bool in_chunks = false;

  /// Packed elements of a part of a logit that is summed from 0.
  static Index part(Index depth) { return part_of_sum<E>(depth); }
  [[gnu::always_inline]] static Query query(E element) { return element; }
  [[gnu::always_inline]] static Factor repeat(E element) { return O::repeat(element); }
  /// The bits of a vector of packed elements, see load_packed().
  [[gnu::always_inline]] static Factor of_bits(V bits) {
    if constexpr (is_pair<E>)
      return reinterpret_cast<Factor>(bits.native);
    else
      return bits;
  }
  /// Width vectors, from column d on, of a row of values, or of two rows as pairs.
  template <int Width, class T>
  [[gnu::always_inline]] static void load(T const* row, [[maybe_unused]] Index stride, Factor (&values)[Width]) {
    constexpr Index lanes = V::lanes;
    if constexpr (!is_pair<E>) {
#pragma GCC unroll 8
      for (int v = 0; v < Width; ++v) values[v] = load_widened<A>(row + v * lanes);
    } else if constexpr (Width == 1) {
      values[0] = reinterpret_cast<Factor>(load_widened<A>(row).native) >> 16 |
                  reinterpret_cast<Factor>(load_widened<A>(row + stride).native);
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < Width; v += 2) O::interleave(row + v * lanes, row + stride + v * lanes, values + v);
    }
  }
  [[gnu::always_inline]] static Sum multiply_add(Factor a, Factor b, Sum sum) { return O::multiply_add(a, b, sum); }
  [[gnu::always_inline]] static V total(Sum sum) { return sum; }
};

#if defined(ANNULUS_CPU_HAS_AMX)
/// Sums of pairs as AMX tiles add them up: in chunks of 16 pairs, the products of low and of high halves apart (Intel 64
/// and IA-32 Architectures Software Developer's Manual, TDPBF16PS). Vectors do it, as a tile would be nearly empty.
struct SumsInTiles {
  using V = Vector<float>;
  using Packed = BfloatPair;
  struct Query {
    float low, high;
  };
  struct Factor {
    V low, high;
  };
  using Sum = Factor;
  static constexpr bool in_chunks = true;

  static Index part(Index) { return amx_tile_side; }
  static Query query(BfloatPair pair) {
    return {Eigen::numext::bit_cast<float>(pair.bits << 16), Eigen::numext::bit_cast<float>(pair.bits & high_half)};
  }
  [[gnu::always_inline]] static Factor repeat(Query query) { return {V::of(query.low), V::of(query.high)}; }
  [[gnu::always_inline]] static Factor repeat(BfloatPair pair) { return repeat(query(pair)); }
  [[gnu::always_inline]] static Factor of_bits(V bits) {
    auto const pairs = reinterpret_cast<V::UnsignedBits>(bits.native);
    return {{reinterpret_cast<V::Native>(pairs << 16)}, {reinterpret_cast<V::Native>(pairs & high_half)}};
  }
  template <int Width, class T>
  [[gnu::always_inline]] static void load(T const* row, Index stride, Factor (&values)[Width]) {
#pragma GCC unroll 8
    for (int v = 0; v < Width; ++v)
      values[v] = {load_widened<float>(row + v * V::lanes), load_widened<float>(row + stride + v * V::lanes)};
  }
  [[gnu::always_inline]] static Sum multiply_add(Factor a, Factor b, Sum sum) {
    return {fused_multiply_add(a.low, b.low, sum.low), fused_multiply_add(a.high, b.high, sum.high)};
  }
  [[gnu::always_inline]] static V total(Sum sum) { return sum.low + sum.high; }

 private:
  static constexpr std::uint32_t high_half = 0xffff0000;
};
#endif

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
