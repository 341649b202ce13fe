#pragma once
// Requirements on a tensor type, and the two operations on it: view_of(x) and make_like(x).

#include <array>
#include <concepts>
#include <type_traits>

#include "annulus/tensor/view.hpp"

namespace annulus {

/// Customisation point. Specialise it for a tensor type X with these members:
///   scalar, rank, memory_space          element type without const, number of axes, memory space
///   static view(X&), view(X const&)     TensorView<scalar [const], rank, memory_space>
///   static make<U, N>(extents)          a new tensor of the same family: element type U, N axes; elements unspecified
/// The specialisations for Eigen tensors and host views are in tensor/eigen.hpp.
template <class X>
struct TensorTraits;

/// Satisfied by types with TensorTraits: Eigen::Tensor, Eigen::TensorMap, TensorView, axis-order wrappers, user types.
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

/// A view of the elements of x with the axes of x (in attention order for axis-order wrappers).
template <TensorLike X>
constexpr auto view_of(X&& x) {
  return TensorTraits<std::remove_cvref_t<X>>::view(x);
}

/// A new tensor of x's family with these extents. Axis-order wrappers do not permute them; see make_in_order_of.
template <class U, std::size_t N, TensorLike X>
auto make_like(X const&, std::array<Index, N> const& extents) {
  return TensorTraits<X>::template make<U, N>(extents);
}

template <TensorLike X, class U, std::size_t N>
using MadeLike = decltype(TensorTraits<std::remove_cvref_t<X>>::template make<U, N>(std::array<Index, N>{}));

}  // namespace annulus
