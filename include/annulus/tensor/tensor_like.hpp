#pragma once
// Requirements on a tensor type, the two operations on it, view_of(x) and make_like(x), and the axis orders of a
// caller's four-axis tensor. Inside the library every view is [batch, sequence, heads, dim].

#include <array>
#include <concepts>
#include <string_view>
#include <type_traits>
#include <utility>

#include "annulus/tensor/view.hpp"

namespace annulus {

/// Customisation point. Specialise it for a tensor type X with these members:
///   scalar, rank, memory_space          element type without const, number of axes, memory space
///   static view(X&), view(X const&)     TensorView<scalar [const], rank, memory_space>
///   static make<U, N>(extents)          a new tensor of the same family: element type U, N axes; elements unspecified
///
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

/// Element type of a tensor, without const.
template <TensorLike X>
using ScalarOf = typename TensorTraits<std::remove_cvref_t<X>>::scalar;

/// Memory space of a tensor.
template <TensorLike X>
using SpaceOf = typename TensorTraits<std::remove_cvref_t<X>>::memory_space;

/// Number of axes of a tensor.
template <TensorLike X>
inline constexpr std::size_t rank_of = TensorTraits<std::remove_cvref_t<X>>::rank;

/// A view of the elements of x with the axes of x (in attention order for axis-order wrappers).
template <TensorLike X>
constexpr auto view_of(X&& x) {
  return TensorTraits<std::remove_cvref_t<X>>::view(x);
}

/// A new tensor of x's tensor library with these extents, not permuted by axis-order wrappers; see make_in_order_of.
template <class U, std::size_t N, TensorLike X>
auto make_like(X const&, std::array<Index, N> const& extents) {
  return TensorTraits<X>::template make<U, N>(extents);
}

/// Type of make_like: of X's tensor library, with elements of type U and N axes.
template <TensorLike X, class U, std::size_t N>
using MadeLike = decltype(TensorTraits<std::remove_cvref_t<X>>::template make<U, N>(std::array<Index, N>{}));

/// Order of the indices of a caller's tensor.
enum class AxisOrder {
  bshd,  ///< [batch, sequence, heads, dim], the default
  bhsd,  ///< [batch, heads, sequence, dim]
  bhds,  ///< [batch, heads, dim, sequence], the pre-transposed layout that Trainium kernels take
};

constexpr std::string_view name_of(AxisOrder order) {
  return order == AxisOrder::bshd ? "bshd" : order == AxisOrder::bhsd ? "bhsd" : "bhds";
}

/// Attention axis a (batch, sequence, heads, dim) is axis places[a] of a tensor of this order.
constexpr std::array<std::size_t, 4> places_of(AxisOrder order) {
  switch (order) {
    case AxisOrder::bshd:
      return {0, 1, 2, 3};
    case AxisOrder::bhsd:
      return {0, 2, 1, 3};
    case AxisOrder::bhds:
      return {0, 3, 1, 2};
  }
  return {0, 1, 2, 3};
}

/// Converts extents in attention order to the extents of a tensor stored in `order`.
constexpr std::array<Index, 4> stored_extents(AxisOrder order, std::array<Index, 4> const& extents) {
  std::array<Index, 4> stored{};
  auto const places = places_of(order);
  for (std::size_t a = 0; a < 4; ++a) stored[places[a]] = extents[a];
  return stored;
}

/// A tensor with the order of its axes. X is a reference for named tensors, a value for temporaries.
template <class X>
struct InAxisOrder {
  X tensor;         ///< the caller's tensor
  AxisOrder order;  ///< of its axes
};

/// Wraps a four-axis tensor whose axes are in `order`.
template <TensorLike X>
InAxisOrder<X> with_axes(X&& tensor, AxisOrder order) {
  static_assert(rank_of<X> == 4, "annulus: an axis order needs a tensor with four axes");
  return {std::forward<X>(tensor), order};
}

/// Wraps a tensor x with axes [batch, heads, sequence, dim].
template <TensorLike X>
InAxisOrder<X> bhsd(X&& x) {
  return with_axes(std::forward<X>(x), AxisOrder::bhsd);
}

/// Wraps a tensor x with axes [batch, heads, dim, sequence].
template <TensorLike X>
InAxisOrder<X> bhds(X&& x) {
  return with_axes(std::forward<X>(x), AxisOrder::bhds);
}

/// Axis order of a tensor: bshd unless it is wrapped.
template <TensorLike X>
constexpr AxisOrder axis_order_of(X const&) {
  return AxisOrder::bshd;
}
/// Axis order of a wrapped tensor.
template <class X>
constexpr AxisOrder axis_order_of(InAxisOrder<X> const& wrapped) {
  return wrapped.order;
}

/// Traits of tensors in another axis order.
template <class X>
struct TensorTraits<InAxisOrder<X>> {
  using Inner = TensorTraits<std::remove_cvref_t<X>>;  ///< traits of the caller's tensor
  using scalar = typename Inner::scalar;
  using memory_space = typename Inner::memory_space;
  static constexpr std::size_t rank = 4;

  /// A view of all elements, [batch, sequence, heads, dim].
  static auto view(InAxisOrder<X> const& wrapped) {
    return Inner::view(wrapped.tensor).permuted(places_of(wrapped.order));
  }
  /// A new tensor of the same library, not permuted.
  template <class U, std::size_t N>
  static auto make(std::array<Index, N> const& extents) {
    return Inner::template make<U, N>(extents);
  }
};

namespace detail {

/// A new four-axis tensor of x's tensor library, stored in the axis order of x; `extents` are in attention order.
template <class U, class X>
auto make_in_order_of(X const& x, std::array<Index, 4> const& extents) {
  return make_like<U, 4>(x, stored_extents(axis_order_of(x), extents));
}

}  // namespace detail

}  // namespace annulus
