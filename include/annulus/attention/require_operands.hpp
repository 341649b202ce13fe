#pragma once
// Compile-time checks of the tensors of a call, which report one sentence instead of a page of template errors.

#include <concepts>
#include <optional>
#include <type_traits>

#include "annulus/core/scalar.hpp"
#include "annulus/tensor/eigen.hpp"
#include "annulus/tensor/tensor_like.hpp"

namespace annulus {

namespace detail {

template <class Space, class X>
constexpr bool lives_in = true;
template <class Space, TensorLike X>
constexpr bool lives_in<Space, X> = std::same_as<SpaceOf<X>, Space>;
template <class X>
constexpr bool has_scalar = true;
template <TensorLike X>
constexpr bool has_scalar<X> = Scalar<ScalarOf<X>>;
/// View of an optional tensor; without data for std::nullopt.
template <class View, class X>
View view_if_given(X& tensor) {
  if constexpr (std::same_as<std::remove_cvref_t<X>, std::nullopt_t>) {
    return {};
  } else {
    static_assert(RequireTensor<X>::value);
    return view_of(tensor);
  }
}

template <class Q, class X>
constexpr bool same_kind = true;
template <TensorLike Q, TensorLike X>
constexpr bool same_kind<Q, X> = std::same_as<ScalarOf<Q>, ScalarOf<X>> && rank_of<X> == 4;

}  // namespace detail

/// Fails to compile, with a readable message, unless q, k, v, output and dout are tensors of four axes, of one
/// supported element type, in memory `Space`.
template <class Space, class Q, class... X>
struct RequireOperands {
  static_assert((RequireTensor<Q>::value && ... && RequireTensor<X>::value));
  static_assert((detail::has_scalar<Q> && ... && detail::has_scalar<X>),
                "annulus: operands have elements of float, double, Eigen::half or Eigen::bfloat16");
  static_assert((detail::same_kind<Q, Q> && ... && detail::same_kind<Q, X>),
                "annulus: q, k, v, output and dout have four axes and the same element type");
  static_assert((detail::lives_in<Space, Q> && ... && detail::lives_in<Space, X>),
                "annulus: an operand lives in another memory space than the communicator and the backend");
  static constexpr bool value = true;
};

}  // namespace annulus
