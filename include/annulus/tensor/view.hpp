#pragma once
// TensorView: a non-owning view of a tensor with arbitrary strides; its overflow checks and element-wise traversal.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "annulus/core/error.hpp"
#include "annulus/core/host_memory.hpp"

namespace annulus {

/// Axes of a four-dimensional attention view, whatever the order in memory.
namespace axis {
inline constexpr std::size_t batch = 0, sequence = 1, heads = 2, dim = 3;  ///< number of the axis
}

namespace detail {

/// Row-major strides, in elements, of a dense tensor of these extents; saturated at largest_index.
template <std::size_t N>
constexpr std::array<Index, N> row_major_strides(std::array<Index, N> const& extents) {
  std::array<Index, N> strides{};
  Index stride = 1;
  for (std::size_t a = N; a-- > 0;) {
    strides[a] = stride;
    stride = saturating_product(stride, extents[a]);
  }
  return strides;
}

}  // namespace detail

/// Pointer, extents and strides (in elements; negative and zero strides are allowed). Only a view in HostMemory gives
/// access to elements; a backend of another space uses data() and strides().
template <class T, std::size_t N = 4, class Space = HostMemory>
class TensorView {
 public:
  using element_type = T;  ///< element type, const for a read-only view
  using scalar = std::remove_const_t<T>;
  using memory_space = Space;
  using Extents = std::array<Index, N>;  ///< extents or strides
  static constexpr std::size_t rank = N;

  constexpr TensorView() = default;  ///< no data, no elements
  /// Strides in elements.
  constexpr TensorView(T* data, Extents const& extents, Extents const& strides)
      : data_(data), extents_(extents), strides_(strides) {}
  /// Dense, row-major.
  constexpr TensorView(T* data, Extents const& extents)
      : TensorView(data, extents, detail::row_major_strides(extents)) {}

  /// Converts a mutable view to a read-only one.
  template <class U>
  requires(std::is_const_v<T>&& std::same_as<U, scalar>) constexpr TensorView(TensorView<U, N, Space> const& other)
      : TensorView(other.data(), other.extents(), other.strides()) {}

  constexpr T* data() const { return data_; }                          ///< element of index 0
  constexpr Extents const& extents() const { return extents_; }        ///< by axis
  constexpr Extents const& strides() const { return strides_; }        ///< by axis, in elements
  constexpr Index extent(std::size_t a) const { return extents_[a]; }  ///< of one axis
  constexpr Index stride(std::size_t a) const { return strides_[a]; }  ///< of one axis, in elements

  /// Number of elements, saturated at largest_index, so that overflow cannot make a view seem empty.
  constexpr Index size() const {
    Index product = 1;
    for (Index extent : extents_) product = detail::saturating_product(product, extent);
    return product;
  }

  /// Offset of an element from data(), in elements.
  template <std::convertible_to<Index>... I>
  requires(sizeof...(I) == N) constexpr Index offset(I... index) const {
    Index sum = 0;
    std::size_t a = 0;
    ((sum += static_cast<Index>(index) * strides_[a++]), ...);
    return sum;
  }

  /// The element of an index.
  template <std::convertible_to<Index>... I>
  requires(sizeof...(I) == N && std::same_as<Space, HostMemory>) constexpr T& operator()(I... index) const {
    return data_[offset(index...)];
  }

  /// Rows [begin, begin + count) of one axis.
  constexpr TensorView slice(std::size_t a, Index begin, Index count) const {
    TensorView part = *this;
    // An empty slice may begin past the end, but the pointer must not.
    if (count > 0) part.data_ += begin * strides_[a];
    part.extents_[a] = count;
    return part;
  }

  /// Axis a of the result is axis order[a] of this view.
  constexpr TensorView permuted(std::array<std::size_t, N> const& order) const {
    TensorView result = *this;
    for (std::size_t a = 0; a < N; ++a) {
      result.extents_[a] = extents_[order[a]];
      result.strides_[a] = strides_[order[a]];
    }
    return result;
  }

  /// The same elements as memory of another space, for backends that can access them.
  template <class Other>
  constexpr TensorView<T, N, Other> in_space() const {
    return {data_, extents_, strides_};
  }

 private:
  T* data_ = nullptr;
  Extents extents_{};
  Extents strides_{};
};

namespace detail {

/// Throws ShapeError if an extent is negative, or if a dense tensor of these extents has more bytes than an Index holds.
/// Extents of 0 count as 1, because buffers of one pass combine the extents of several tensors.
template <std::size_t N>
void require_countable(std::string_view name, std::array<Index, N> const& extents, std::size_t element_bytes) {
  auto bytes = static_cast<Index>(element_bytes);
  for (Index extent : extents)
    check<ShapeError>(extent >= 0, name, " has extents ", extents, "; extents must not be negative");
  for (Index extent : extents)
    if (extent > 0) bytes = saturating_product(bytes, extent);
  check<ShapeError>(bytes < largest_index, name, " has extents ", extents, " of ", element_bytes,
                    " bytes an element; accepted: fewer than ", largest_index, " bytes in all");
}

/// Throws ShapeError if an extent is negative, if the size in bytes or the byte offset of an element overflows an
/// Index, or if the view has elements but a null data pointer.
template <class T, std::size_t N, class Space>
void require_addressable(std::string_view name, TensorView<T, N, Space> const& view) {
  require_countable(name, view.extents(), sizeof(T));
  if (view.size() == 0) return;
  check<ShapeError>(view.data() != nullptr, name, " of extents ", view.extents(), " has no data");
  Index reach = sizeof(T);
  for (std::size_t a = 0; a < N; ++a) {
    Index const step = view.stride(a) < 0 ? saturating_product(view.stride(a), -1) : view.stride(a);
    reach = saturating_sum(reach, saturating_product(saturating_product(view.extent(a) - 1, step), Index{sizeof(T)}));
  }
  check<ShapeError>(reach < largest_index, name, " of extents ", view.extents(), " has strides ", view.strides(),
                    " of ", sizeof(T), " bytes; accepted: elements within ", largest_index, " bytes");
}

/// Throws ShapeError if an axis of `view`, which a call writes, repeats its elements (stride 0), so that results would
/// overwrite each other.
template <class T, std::size_t N, class Space>
void require_own_elements(std::string_view name, TensorView<T, N, Space> const& view) {
  for (std::size_t a = 0; a < N && view.size() > 0; ++a)
    check<ShapeError>(
        view.extent(a) == 1 || view.stride(a) != 0, name, " of extents ", view.extents(), " has strides ",
        view.strides(), ", so that axis ", a,
        " repeats its elements; accepted for a result: a stride other than 0 on each axis of more than one element");
}

/// True if the bytes from the first to the last element of one view include some of the other's.
template <class T, class U, std::size_t N, class Space>
bool may_share_memory(TensorView<T, N, Space> const& a, TensorView<U, N, Space> const& b) {
  auto const bytes_of = [](auto const& view) {
    auto begin = reinterpret_cast<std::uintptr_t>(view.data()), end = begin;
    for (std::size_t axis = 0; axis < N; ++axis) {
      Index const bytes = (view.extent(axis) - 1) * view.stride(axis) * static_cast<Index>(sizeof(*view.data()));
      (bytes < 0 ? begin : end) += static_cast<std::uintptr_t>(bytes);
    }
    return std::pair(begin, end + sizeof(*view.data()));
  };
  if (a.size() == 0 || b.size() == 0) return false;
  auto const [a_begin, a_end] = bytes_of(a);
  auto const [b_begin, b_end] = bytes_of(b);
  return a_begin < b_end && b_begin < a_end;
}

template <std::size_t Axis, class T, class U, std::size_t N, class Function>
void visit_axis(TensorView<T, N> const& first, T* a, TensorView<U, N> const& second, U* b, Function& function) {
  if constexpr (Axis + 1 == N) {
    // In this branch the strides are known to be 1, so that the compiler can vectorise.
    if (first.stride(Axis) == 1 && second.stride(Axis) == 1) {
      for (Index i = 0; i < first.extent(Axis); ++i) function(a[i], b[i]);
      return;
    }
  }
  for (Index i = 0; i < first.extent(Axis); ++i) {
    T* const element = a + i * first.stride(Axis);
    U* const other = b + i * second.stride(Axis);
    if constexpr (Axis + 1 == N)
      function(*element, *other);
    else
      visit_axis<Axis + 1>(first, element, second, other, function);
  }
}

/// Calls function(element of first, element of second) for each index. `second` must have the extents of `first`.
template <class T, class U, std::size_t N, class Function>
void for_each_element(TensorView<T, N> first, TensorView<U, N> second, Function&& function) {
  if (first.size() > 0) visit_axis<0>(first, first.data(), second, second.data(), function);
}

/// Copies `from` to `to`, converting each element. The views must have equal extents.
template <class T, class U, std::size_t N>
void copy_elements(TensorView<T const, N> from, TensorView<U, N> to) {
  for_each_element(to, from, [](U& target, T const& source) { target = static_cast<U>(source); });
}

}  // namespace detail

}  // namespace annulus
