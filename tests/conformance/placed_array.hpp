#pragma once
// Arrays of any strides in the memory space of a backend, with a check that gaps between elements are not written.

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "annulus/tensor/view.hpp"
#include "support/ring_run.hpp"

namespace annulus_test {

/// Memory layout of an array. All except `permuted` and `gapped` have unit stride along the last axis.
enum class Layout {
  dense,     ///< row-major
  payload,   ///< rows outermost, as in the payloads of a ring
  padded,    ///< row-major with a gap after each row
  reversed,  ///< as padded, but the rows run backwards
  permuted,  ///< column-major
  gapped,    ///< every other element, and a gap after each row
};
inline constexpr std::array every_layout{Layout::dense,    Layout::payload,  Layout::padded,
                                         Layout::reversed, Layout::permuted, Layout::gapped};
inline constexpr std::array unit_stride_layouts{Layout::dense, Layout::payload, Layout::padded, Layout::reversed};

/// An array of T with N axes. Values are written and read as double, in row-major order of the indices.
template <class Placement, class T, std::size_t N>
class PlacedArray {
 public:
  using Extents = std::array<Index, N>;

  /// `rows`: which axis Layout::payload puts outermost.
  PlacedArray(Extents const& extents, Layout layout, std::vector<double> const& values, std::size_t rows = 1)
      : extents_(extents),
        strides_(strides_of(extents, layout, rows)),
        first_(first_of(extents, strides_)),
        storage_(filled(values)) {}
  /// All elements are NaN, or -77 if T has no NaN.
  PlacedArray(Extents const& extents, Layout layout, std::size_t rows = 1) : PlacedArray(extents, layout, {}, rows) {}

  auto view() {
    auto const all = annulus::view_of(storage_);
    using Space = typename std::remove_cvref_t<decltype(all)>::memory_space;
    return annulus::TensorView<T, N, Space>(all.data() + first_, extents_, strides_);
  }
  auto constant() {
    auto const writable = view();
    using Space = typename std::remove_cvref_t<decltype(writable)>::memory_space;
    return annulus::TensorView<T const, N, Space>(writable);
  }

  /// The backend must be synchronized.
  std::vector<double> values() const { return ring_run_detail::widened<N>(at_rest()); }

  /// Every byte, gaps included.
  std::vector<std::byte> bytes() const {
    auto const all = std::as_bytes(std::span(elements().data(), static_cast<std::size_t>(elements().size())));
    return {all.begin(), all.end()};
  }

  /// True if no gap between elements was written.
  bool gaps_are_intact() const {
    auto const element_places = places();
    for (Index i = 0; i < elements().size(); ++i)
      if (!element_places[static_cast<std::size_t>(i)] && !(elements()(i) == gap())) return false;
    return true;
  }

 private:
  using HostView = annulus::TensorView<T const, N>;
  using Storage = decltype(Placement::template place<T, 1>(std::declval<annulus::TensorView<T const, 1>>()));
  static constexpr std::size_t reversed_axis = N == 4 ? 1 : 0;

  static T gap() { return static_cast<T>(77); }
  static T poison() {
    if constexpr (std::numeric_limits<T>::has_quiet_NaN)
      return std::numeric_limits<T>::quiet_NaN();
    else
      return static_cast<T>(-77);
  }

  static Extents strides_of(Extents const& extents, Layout layout, std::size_t rows) {
    std::array<std::size_t, N> order{};  // axes from the innermost to the outermost
    for (std::size_t a = 0; a < N; ++a) order[a] = layout == Layout::permuted ? a : N - 1 - a;
    if (layout == Layout::payload) {
      std::copy(std::find(order.begin(), order.end(), rows) + 1, order.end(),
                std::find(order.begin(), order.end(), rows));
      order[N - 1] = rows;
    }
    Index const padding = layout == Layout::padded || layout == Layout::reversed || layout == Layout::gapped ? 3 : 0;
    Extents strides{};
    Index stride = layout == Layout::gapped ? 2 : 1;
    for (std::size_t axis : order) {
      strides[axis] = stride;
      stride = stride * std::max(extents[axis], Index{1}) + (axis == order[0] ? padding : 0);
    }
    if (layout == Layout::reversed && N > 1) strides[reversed_axis] = -strides[reversed_axis];
    return strides;
  }
  static Index first_of(Extents const& extents, Extents const& strides) {
    Index const stride = strides[reversed_axis];
    return stride < 0 ? -stride * std::max(extents[reversed_axis] - 1, Index{0}) : 0;
  }
  Index reach() const {
    Index reach = 1;
    for (std::size_t a = 0; a < N; ++a)
      reach += std::max(extents_[a] - 1, Index{0}) * (strides_[a] < 0 ? -strides_[a] : strides_[a]);
    return reach;
  }

  Storage filled(std::vector<double> const& values) const {
    auto const elements = std::make_unique<T[]>(static_cast<std::size_t>(reach()));
    std::fill_n(elements.get(), reach(), gap());
    annulus::TensorView<T, N> const target(elements.get() + first_, extents_, strides_);
    annulus::detail::for_each_element(target, target, [](T& element, T&) { element = poison(); });
    if (!values.empty())
      annulus::detail::copy_elements(annulus::TensorView<double const, N>(values.data(), extents_), target);
    return Placement::template place<T, 1>(annulus::TensorView<T const, 1>(elements.get(), {reach()}));
  }

  annulus::TensorView<T const, 1> elements() const {
    return Placement::template host<T, 1>(annulus::view_of(storage_));
  }
  HostView at_rest() const { return {elements().data() + first_, extents_, strides_}; }

  std::vector<bool> places() const {
    std::vector<bool> result(static_cast<std::size_t>(reach()), false);
    T const* const begin = elements().data();
    annulus::detail::for_each_element(at_rest(), at_rest(), [&](T const& element, T const&) {
      result[static_cast<std::size_t>(&element - begin)] = true;
    });
    return result;
  }

  Extents extents_, strides_;
  Index first_;
  Storage storage_;
};

}  // namespace annulus_test
