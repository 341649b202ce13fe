#pragma once
// Views of annulus_tensor, with checks of what the C++ interface checks at compile time: element type and number of
// axes.

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "annulus/annulus.h"
#include "annulus/core/error.hpp"
#include "annulus/core/scalar.hpp"
#include "annulus/tensor/operands.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::bindings {

constexpr std::string_view name_of(annulus_dtype dtype) {
  constexpr std::array<std::string_view, 13> names{"float64", "float32", "float16", "bfloat16", "bool",
                                                   "int8",    "int16",   "int32",   "int64",    "uint8",
                                                   "uint16",  "uint32",  "uint64"};
  auto const place = static_cast<std::size_t>(dtype);
  return place < names.size() ? names[place] : "a value that is no annulus_dtype";
}

template <class T>
constexpr annulus_dtype dtype_of = [] {
  if constexpr (std::same_as<T, bool>)
    return ANNULUS_BOOL;
  else if constexpr (Scalar<T>)
    return static_cast<annulus_dtype>(data_type<T>);
}();
static_assert(dtype_of<double> == ANNULUS_FLOAT64 && dtype_of<float> == ANNULUS_FLOAT32 &&
              dtype_of<Eigen::half> == ANNULUS_FLOAT16 && dtype_of<Eigen::bfloat16> == ANNULUS_BFLOAT16);

/// Calls function(std::type_identity<T>{}) with the floating-point type of a tensor. Throws UnsupportedError for
/// others.
template <class Function>
decltype(auto) with_scalar(annulus_dtype dtype, std::string_view name, Function&& function) {
  switch (dtype) {
    case ANNULUS_FLOAT64:
      return function(std::type_identity<double>{});
    case ANNULUS_FLOAT32:
      return function(std::type_identity<float>{});
    case ANNULUS_FLOAT16:
      return function(std::type_identity<Eigen::half>{});
    case ANNULUS_BFLOAT16:
      return function(std::type_identity<Eigen::bfloat16>{});
    default:
      throw UnsupportedError(detail::message_of(name, " has elements of ", name_of(dtype),
                                                "; accepted: float64, float32, float16 and bfloat16"));
  }
}

/// The same with the integer type of a tensor; bool counts.
template <class Function>
decltype(auto) with_integer(annulus_dtype dtype, std::string_view name, Function&& function) {
  switch (dtype) {
    case ANNULUS_BOOL:
      return function(std::type_identity<bool>{});
    case ANNULUS_INT8:
      return function(std::type_identity<std::int8_t>{});
    case ANNULUS_INT16:
      return function(std::type_identity<std::int16_t>{});
    case ANNULUS_INT32:
      return function(std::type_identity<std::int32_t>{});
    case ANNULUS_INT64:
      return function(std::type_identity<std::int64_t>{});
    case ANNULUS_UINT8:
      return function(std::type_identity<std::uint8_t>{});
    case ANNULUS_UINT16:
      return function(std::type_identity<std::uint16_t>{});
    case ANNULUS_UINT32:
      return function(std::type_identity<std::uint32_t>{});
    case ANNULUS_UINT64:
      return function(std::type_identity<std::uint64_t>{});
    default:
      throw UnsupportedError(
          detail::message_of(name, " has elements of ", name_of(dtype), "; accepted: bool and the integer types"));
  }
}

inline bool is_given(annulus_tensor const& tensor) { return tensor.num_axes != 0; }

/// View of a tensor whose element type is known to be T. Throws ShapeError for another number of axes.
template <class T, std::size_t N>
TensorView<T, N> view_as(annulus_tensor const& tensor, std::string_view name) {
  detail::check<ShapeError>(tensor.num_axes == static_cast<int>(N), name, " has ", tensor.num_axes, " axes; expected ",
                            N);
  std::array<Index, N> extents, strides;
  for (std::size_t a = 0; a < N; ++a) {
    extents[a] = static_cast<Index>(tensor.extents[a]);
    strides[a] = static_cast<Index>(tensor.strides[a]);
  }
  return {static_cast<T*>(tensor.data), extents, strides};
}

/// View of a tensor of N axes with elements of type T, which is the type of `like`. Throws ShapeError for another
/// number of axes, such as that of a tensor that is not given, and UnsupportedError for another type.
template <class T, std::size_t N>
TensorView<T, N> view_of_type(annulus_tensor const& tensor, std::string_view name, std::string_view like) {
  constexpr annulus_dtype expected = dtype_of<std::remove_const_t<T>>;
  auto const view = view_as<T, N>(tensor, name);
  detail::check<UnsupportedError>(tensor.dtype == expected, name, " has elements of ", name_of(tensor.dtype),
                                  "; accepted: ", name_of(expected), ", the type of ", like);
  return view;
}

/// A view without data if the tensor is not given.
template <class T, std::size_t N>
TensorView<T, N> view_if_given(annulus_tensor const* tensor, std::string_view name, std::string_view like) {
  return tensor && is_given(*tensor) ? view_of_type<T, N>(*tensor, name, like) : TensorView<T, N>();
}

/// Sink logits or their gradients, given as [query_heads] or [query_heads, n].
template <class T>
TensorView<T, 2> sinks_view(annulus_tensor const& tensor, std::string_view name) {
  constexpr std::string_view like = "lse";
  if (tensor.num_axes != 1) return view_of_type<T, 2>(tensor, name, like);
  auto const sinks = view_of_type<T, 1>(tensor, name, like);
  return {sinks.data(), {sinks.extent(0), 1}, {sinks.stride(0), 0}};
}

/// Sets an operand of any integer type to a tensor with `Axes` axes, if it is given.
template <std::size_t Axes, class Operand>
void set_integers(Operand& operand, annulus_tensor const& tensor, std::string_view name) {
  if (!is_given(tensor)) return;
  with_integer(tensor.dtype, name,
               [&]<class U>(std::type_identity<U>) { operand = view_as<U const, Axes>(tensor, name); });
}

/// The optional operands of a call on elements of type T; NULL: none.
template <class T>
Operands<T> operands_of(annulus_operands const* given) {
  Operands<T> operands;
  if (!given) return operands;
  if (is_given(given->bias)) operands.bias = view_of_type<T const, 4>(given->bias, "bias", "q");
  set_integers<4>(operands.mask, given->mask, "mask");
  set_integers<2>(operands.query_documents, given->query_documents, "query_documents");
  set_integers<2>(operands.key_documents, given->key_documents, "key_documents");
  if (is_given(given->sinks)) operands.sinks = sinks_view<Accumulator<T> const>(given->sinks, "sinks");
  auto const set_joint = [](auto& operand, annulus_tensor const& tensor, std::string_view name) {
    if (is_given(tensor)) operand = view_of_type<T const, 4>(tensor, name, "q");
  };
  set_joint(operands.joint_keys, given->joint_keys, "joint_keys");
  set_joint(operands.joint_values, given->joint_values, "joint_values");
  if (given->has_call) operands.call = static_cast<Index>(given->call);
  return operands;
}

}  // namespace annulus::bindings
