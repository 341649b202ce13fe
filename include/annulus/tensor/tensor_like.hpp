#pragma once
// What the library asks of a tensor type, and the two customisation points: view_of(x) and make_like(x).

#include <array>
#include <concepts>
#include <type_traits>

#include "annulus/tensor/view.hpp"

namespace annulus {

/// Specialise for a tensor type X:
///   scalar, rank, memory_space          element type without const, number of axes, where it lives
///   static view(X&), view(X const&)     TensorView<scalar [const], rank, memory_space>
///   static make<U, N>(extents)          a new tensor of the same family: element type U, N axes; elements unspecified
/// A family for Eigen tensors and host views is in tensor/eigen.hpp.
template <class X>
struct TensorTraits;

/// Satisfied by types with TensorTraits: Eigen::Tensor, Eigen::TensorMap, TensorView, axis-order wrappers, and yours.
template <class X>
concept TensorLike = requires(std::remove_cvref_t<X> const& x) {
  typename TensorTraits<std::remove_cvref_t<X>>::scalar;
  typename TensorTraits<std::remove_cvref_t<X>>::memory_space;
  { TensorTraits<std::remove_cvref_t<X>>::rank } -> std::convertible_to<std::size_t>;
  TensorTraits<std::remove_cvref_t<X>>::view(x);
};

template <TensorLike X>
using ScalarOf = typename TensorTraits<std::remove_cvref_t<X>>::scalar;

template <TensorLike X>
using SpaceOf = typename TensorTraits<std::remove_cvref_t<X>>::memory_space;

template <TensorLike X>
inline constexpr std::size_t rank_of = TensorTraits<std::remove_cvref_t<X>>::rank;

/// The elements of x, in the order of its own indices (attention order for axis-order wrappers).
template <TensorLike X>
constexpr auto view_of(X&& x) {
  return TensorTraits<std::remove_cvref_t<X>>::view(x);
}

/// A new tensor of x's family. Extents are in attention order; a wrapper of another axis order stores them in its own.
template <class U, std::size_t N, TensorLike X>
auto make_like(X const&, std::array<Index, N> const& extents) {
  return TensorTraits<X>::template make<U, N>(extents);
}

template <TensorLike X, class U, std::size_t N>
using MadeLike = decltype(TensorTraits<std::remove_cvref_t<X>>::template make<U, N>(std::array<Index, N>{}));

}  // namespace annulus
