#pragma once
// Memory layouts of an operand. Each layout copies a shard into an owner; owner.operand() is the tensor that a
// caller would pass to the library.

#include <algorithm>
#include <annulus/tensor/eigen.hpp>
#include <array>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

namespace annulus_test {

/// An Eigen::Tensor of any axis order, row- or column-major.
template <annulus::AxisOrder order, int major>
struct EigenLayout {
  template <class T>
  struct Owner {
    Eigen::Tensor<T, 4, major> tensor;
    auto operand() const { return annulus::with_axes(tensor, order); }
  };

  template <class T>
  static Owner<T> place(annulus::TensorView<T const, 4> shard) {
    Eigen::array<Eigen::Index, 4> dimensions{};
    auto const stored = annulus::stored_extents(order, shard.extents());
    std::copy(stored.begin(), stored.end(), dimensions.begin());
    Owner<T> owner{Eigen::Tensor<T, 4, major>(dimensions)};
    annulus::detail::copy_elements(shard, annulus::view_of(annulus::with_axes(owner.tensor, order)));
    return owner;
  }
};

/// A read-only Eigen::TensorMap of external memory.
template <int major>
struct ConstMapLayout {
  template <class T>
  struct Owner {
    typename EigenLayout<annulus::AxisOrder::bshd, major>::template Owner<T> memory;
    auto operand() const {
      return Eigen::TensorMap<Eigen::Tensor<T const, 4, major>>(memory.tensor.data(), memory.tensor.dimensions());
    }
  };

  template <class T>
  static Owner<T> place(annulus::TensorView<T const, 4> shard) {
    return {EigenLayout<annulus::AxisOrder::bshd, major>::place(shard)};
  }
};

/// A user-defined tensor type: axes in an unusual order in memory, gaps of different widths on every axis, the
/// sequence backwards. The gaps hold NaN (or a number that no test uses); intact() returns true if they still do.
template <class T, std::size_t N>
class GappedTensor {
 public:
  explicit GappedTensor(std::array<annulus::Index, N> const& extents) {
    std::array<annulus::Index, N> strides{};
    annulus::Index stride = 2;
    for (std::size_t i = 0; i < N; ++i) {
      std::size_t const a = order()[i];
      strides[a] = stride;
      stride = stride * std::max<annulus::Index>(extents[a], 1) + 1 + static_cast<annulus::Index>(i);
    }
    count_ = stride;
    memory_ = std::shared_ptr<T[]>(new T[static_cast<std::size_t>(count_)]);
    std::fill_n(memory_.get(), count_, poison());
    T* begin = memory_.get();
    std::size_t const sequence = N == 4 ? 1 : N - 1;
    if (extents[sequence] > 0) begin += (extents[sequence] - 1) * strides[sequence];
    strides[sequence] = -strides[sequence];
    view_ = {begin, extents, strides};
  }

  annulus::TensorView<T, N> view() const { return view_; }

  bool intact() const {
    std::vector<bool> element(static_cast<std::size_t>(count_), false);
    annulus::detail::for_each_element(view_, view_,
                                      [&](T& x, T&) { element[static_cast<std::size_t>(&x - memory_.get())] = true; });
    for (annulus::Index i = 0; i < count_; ++i) {
      T const value = memory_[i];
      if (!element[static_cast<std::size_t>(i)] && value == value && value != poison()) return false;
    }
    return true;
  }

 private:
  static constexpr std::array<std::size_t, N> order() {
    if constexpr (N == 4)
      return {2, 3, 0, 1};
    else if constexpr (N == 3)
      return {1, 2, 0};
    else
      return {0, 1};
  }
  static T poison() {
    if constexpr (std::is_same_v<T, bool>)
      return true;
    else if constexpr (std::is_integral_v<T>)
      return 1'234'567;
    else
      return std::numeric_limits<T>::quiet_NaN();
  }

  annulus::Index count_ = 0;
  std::shared_ptr<T[]> memory_;
  annulus::TensorView<T, N> view_;
};

struct GappedLayout {
  template <class T>
  struct Owner {
    GappedTensor<T, 4> tensor;
    GappedTensor<T, 4> const& operand() const { return tensor; }
  };

  template <class T, std::size_t N>
  static GappedTensor<T, N> tensor_of(annulus::TensorView<T const, N> shard) {
    GappedTensor<T, N> tensor(shard.extents());
    annulus::detail::copy_elements(shard, tensor.view());
    return tensor;
  }
  template <class T>
  static Owner<T> place(annulus::TensorView<T const, 4> shard) {
    return {tensor_of(shard)};
  }
};

/// A plain annulus::TensorView with the strides of a GappedTensor.
struct ViewLayout {
  template <class T>
  struct Owner {
    GappedTensor<T, 4> memory;
    annulus::TensorView<T const, 4> operand() const { return memory.view(); }
  };

  template <class T>
  static Owner<T> place(annulus::TensorView<T const, 4> shard) {
    return {GappedLayout::tensor_of(shard)};
  }
};

}  // namespace annulus_test

template <class T, std::size_t N>
struct annulus::TensorTraits<annulus_test::GappedTensor<T, N>> {
  using scalar = T;
  using memory_space = annulus::HostMemory;
  static constexpr std::size_t rank = N;

  static annulus::TensorView<T, N> view(annulus_test::GappedTensor<T, N>& tensor) { return tensor.view(); }
  static annulus::TensorView<T const, N> view(annulus_test::GappedTensor<T, N> const& tensor) { return tensor.view(); }
  template <class U, std::size_t M>
  static annulus_test::GappedTensor<U, M> make(std::array<annulus::Index, M> const& extents) {
    return annulus_test::GappedTensor<U, M>(extents);
  }
};
