#pragma once
// TensorTraits of Eigen::Tensor and Eigen::TensorMap, row- and column-major, and of TensorView.

#include <algorithm>
#include <array>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>

#include "annulus/tensor/tensor_like.hpp"

namespace annulus {

namespace detail {

template <int Options, class T, std::size_t N, class Dimensions>
TensorView<T, N> eigen_view(T* data, Dimensions const& dimensions) {
  std::array<Index, N> extents{};
  for (std::size_t a = 0; a < N; ++a) extents[a] = static_cast<Index>(dimensions[a]);
  if constexpr (Options & Eigen::RowMajor) return {data, extents};
  auto reversed = extents;
  std::reverse(reversed.begin(), reversed.end());
  auto strides = row_major_strides(reversed);
  std::reverse(strides.begin(), strides.end());
  return {data, extents, strides};
}

template <class U, std::size_t N, int Options>
Eigen::Tensor<U, static_cast<int>(N), Options> eigen_tensor(std::array<Index, N> const& extents) {
  Eigen::array<Eigen::Index, N> dimensions{};
  for (std::size_t a = 0; a < N; ++a) dimensions[a] = extents[a];
  return Eigen::Tensor<U, static_cast<int>(N), Options>(dimensions);
}

template <class X>
concept EigenTensorExpression = requires(std::remove_cvref_t<X> const& x) {
  []<class D, int Access>(Eigen::TensorBase<D, Access> const&) {}(x);
};

}  // namespace detail

/// Traits of Eigen tensors.
template <class T, int N, int Options, class I>
struct TensorTraits<Eigen::Tensor<T, N, Options, I>> {
  using scalar = T;
  using memory_space = HostMemory;
  static constexpr std::size_t rank = static_cast<std::size_t>(N);

  /// A view of all elements.
  static TensorView<T, rank> view(Eigen::Tensor<T, N, Options, I>& x) {
    return detail::eigen_view<Options, T, rank>(x.data(), x.dimensions());
  }
  /// A read-only view of all elements.
  static TensorView<T const, rank> view(Eigen::Tensor<T, N, Options, I> const& x) {
    return detail::eigen_view<Options, T const, rank>(x.data(), x.dimensions());
  }
  /// A new tensor of the same storage order.
  template <class U, std::size_t M>
  static auto make(std::array<Index, M> const& extents) {
    return detail::eigen_tensor<U, M, Options & Eigen::RowMajor>(extents);
  }
};

/// Traits of Eigen tensors in the caller's memory.
template <class Plain, int MapOptions, template <class> class Pointer>
struct TensorTraits<Eigen::TensorMap<Plain, MapOptions, Pointer>> {
  using Map = Eigen::TensorMap<Plain, MapOptions, Pointer>;  ///< type of the map
  using scalar = std::remove_const_t<typename Map::Scalar>;
  using memory_space = HostMemory;
  static constexpr std::size_t rank = static_cast<std::size_t>(Plain::NumIndices);
  static constexpr int layout = static_cast<int>(Plain::Options) & Eigen::RowMajor;  ///< storage order

  /// A view of all elements, read-only if the map is.
  static auto view(Map const& x) {
    using Element = std::remove_pointer_t<decltype(x.data())>;
    return detail::eigen_view<layout, Element, rank>(x.data(), x.dimensions());
  }
  /// A new tensor of the same storage order.
  template <class U, std::size_t M>
  static auto make(std::array<Index, M> const& extents) {
    return detail::eigen_tensor<U, M, layout>(extents);
  }
};

/// Results of calls whose operands are plain views are row-major Eigen tensors.
template <class T, std::size_t N>
struct TensorTraits<TensorView<T, N, HostMemory>> {
  using scalar = std::remove_const_t<T>;
  using memory_space = HostMemory;
  static constexpr std::size_t rank = N;

  /// The view itself.
  static constexpr TensorView<T, N> view(TensorView<T, N> const& x) { return x; }
  /// A new row-major tensor.
  template <class U, std::size_t M>
  static auto make(std::array<Index, M> const& extents) {
    return detail::eigen_tensor<U, M, Eigen::RowMajor>(extents);
  }
};

/// Static assertion with a readable message for types that are not tensors, above all Eigen's lazy expressions such as
/// 2 * x. A class, because its assertions are reported before the errors of the function that uses it.
template <class X>
struct RequireTensor {
  static_assert(TensorLike<X> || !detail::EigenTensorExpression<X>,
                "annulus: this operand is a lazy Eigen expression; evaluate it into an Eigen::Tensor first");
  static_assert(TensorLike<X> || detail::EigenTensorExpression<X>,
                "annulus: this operand is no tensor; pass Eigen::Tensor, Eigen::TensorMap or annulus::TensorView, or "
                "specialise annulus::TensorTraits");
  /// True: evaluate it to make the assertions.
  static constexpr bool value = true;
};

}  // namespace annulus
