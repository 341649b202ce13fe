#pragma once
// Interleaving and transposing of vectors, and loads that widen 16-bit elements.

#include <Eigen/Core>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <utility>

#include "annulus/backend/cpu/simd/vector.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

namespace detail {

[[gnu::always_inline]] inline Vector<float> widened_bfloat16(void const* from) {
  typedef std::uint16_t Short __attribute__((vector_size(vector_bytes / 2)));
  typedef std::uint32_t Whole __attribute__((vector_size(vector_bytes)));
  Short bits;
  std::memcpy(&bits, from, sizeof bits);
  return {reinterpret_cast<Vector<float>::Native>(__builtin_convertvector(bits, Whole) << 16)};
}

}  // namespace detail

/// Loads a vector of contiguous elements, converted to A.
template <class A, class T>
[[gnu::always_inline]] inline Vector<A> load_widened(T const* from) {
  constexpr int lanes = Vector<A>::lanes;
  if constexpr (std::same_as<A, T>) {
    return Vector<A>::load(from);
  } else if constexpr (std::same_as<T, Eigen::bfloat16> && std::same_as<A, float>) {
    return detail::widened_bfloat16(from);
  } else {
    A widened[lanes];
    for (int i = 0; i < lanes; ++i) widened[i] = static_cast<A>(from[i]);
    return Vector<A>::load(widened);
  }
}

namespace detail {

template <int First, class A, std::size_t... I>
[[gnu::always_inline]] inline Vector<A> alternate(Vector<A> a, Vector<A> b, std::index_sequence<I...>) {
  constexpr int lanes = Vector<A>::lanes;
  return {__builtin_shufflevector(a.native, b.native,
                                  (First + static_cast<int>(I) / 2 + static_cast<int>(I) % 2 * lanes)...)};
}

}  // namespace detail

/// Reorders R rows of `lanes` elements to row 0 element 0, row 1 element 0, ..., row 0 element 1, ...; R is a power of
/// two. With as many rows as lanes this is a transpose.
template <int R, class A>
[[gnu::always_inline]] inline void interleave(Vector<A> (&rows)[R]) {
  constexpr int lanes = Vector<A>::lanes;
  using Sequence = std::make_index_sequence<static_cast<std::size_t>(lanes)>;
#pragma GCC unroll 6
  for (int stage = 1; stage < R; stage *= 2) {
    Vector<A> next[R];
#pragma GCC unroll 16
    for (int i = 0; i < R / 2; ++i) {
      next[2 * i] = detail::alternate<0>(rows[i], rows[i + R / 2], Sequence());
      next[2 * i + 1] = detail::alternate<lanes / 2>(rows[i], rows[i + R / 2], Sequence());
    }
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) rows[i] = next[i];
  }
}

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
