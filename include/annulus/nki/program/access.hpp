#pragma once
// Buffers of a tile program, and the access patterns with which instructions read and write them.

#include <algorithm>
#include <array>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/nki/program/affine.hpp"
#include "annulus/nki/program/text.hpp"

namespace annulus::nki {

/// Memory of a buffer. Private HBM belongs to one core; shared HBM to both cores of a pair.
enum class Memory {
  sbuf,         ///< on chip, operands of all engines
  psum,         ///< on chip, results of matmuls
  private_hbm,  ///< of one core
  shared_hbm,   ///< of both cores of a pair
};
/// True for SBUF and PSUM.
constexpr bool on_chip(Memory memory) { return memory == Memory::sbuf || memory == Memory::psum; }
constexpr std::string_view name_of(Memory memory) {
  return name_in({"sbuf", "psum", "private_hbm", "shared_hbm"}, memory);
}

/// Element type of a buffer.
enum class ElementType {
  float32,   ///< 4 bytes
  bfloat16,  ///< 2 bytes, 8 bits of exponent
  float16,   ///< 2 bytes, 5 bits of exponent
  int32,     ///< 4 bytes; of a tile that a register is loaded from
};
/// Bytes of an element.
constexpr Index bytes_of(ElementType type) {
  return type == ElementType::float32 || type == ElementType::int32 ? 4 : 2;
}
constexpr std::string_view name_of(ElementType type) {
  return name_in({"float32", "bfloat16", "float16", "int32"}, type);
}

/// Role of a buffer in the kernel: argument, result or neither.
enum class Role {
  internal,  ///< neither
  input,     ///< argument
  output,    ///< result
};

/// A buffer in HBM exists from the first instruction on; `shape` is the caller's, elements are in row-major order.
/// A buffer on chip has shape {partitions, elements per partition}; every Allocate makes a new tile, and the newest
/// `rotation` tiles are kept, each in its own place.
struct Buffer {
  std::string name;                         ///< unique in its program
  Memory memory = Memory::sbuf;             ///< where it lies
  ElementType type = ElementType::float32;  ///< of all elements
  std::vector<Index> shape;                 ///< see above
  Role role = Role::internal;               ///< argument, result or neither
  int rotation = 1;                         ///< tiles that are kept

  bool operator==(Buffer const&) const = default;
  Index partitions() const { return on_chip(memory) ? shape[0] : 1; }  ///< on chip; in HBM 1
  /// Number of elements, saturated at the largest Index.
  Index size() const { return stride(-1); }
  /// Elements between consecutive indices of a dimension, saturated likewise.
  Index stride(int dimension) const {
    return std::accumulate(shape.begin() + dimension + 1, shape.end(), Index{1}, detail::saturating_product);
  }
  Index elements_per_partition() const { return size() / partitions(); }  ///< on chip; in HBM all
  /// Of one tile, or of the tensor.
  Index bytes() const { return detail::saturating_product(size(), bytes_of(type)); }
};

/// One axis of an access pattern: [stride, count], in elements.
struct Axis {
  Index stride = 1;  ///< distance of consecutive elements
  Index count = 1;   ///< number of elements
  bool operator==(Axis const&) const = default;
};

/// Adds register * (elements of one index of `dimension` of the buffer) to an offset in HBM.
struct RegisterOffset {
  int register_number = 0;  ///< register of the program
  int dimension = 0;        ///< of the buffer
  bool operator==(RegisterOffset const&) const = default;
};

/// The elements of a buffer that an operand names, in row-major order of the axes. On chip the first axis runs over
/// partitions; its stride is ignored there, because partitions are contiguous.
struct Access {
  static constexpr std::size_t most_axes = 5;  ///< of an operand

  int buffer = -1;            ///< number of the buffer
  int age = 0;                ///< number of Allocates since the tile was made
  Index start_partition = 0;  ///< on chip
  Affine offset;              ///< on chip: elements inside a partition; HBM: elements from the start of the tensor
  std::optional<RegisterOffset> register_offset;  ///< in HBM

  Access() = default;  ///< no operand
  /// Elements of buffer `of`, from offset 0. Throws ShapeError for more than most_axes axes.
  Access(int of, std::initializer_list<Axis> axes) : buffer(of) { append({axes.begin(), axes.size()}); }
  /// The same with the axis over partitions apart.
  Access(int of, Axis rows, std::span<Axis const> free) : buffer(of) {
    append({&rows, 1});
    append(free);
  }

  bool operator==(Access const&) const = default;

  std::span<Axis const> axes() const { return {axes_.data(), axis_count_}; }  ///< all
  Axis const& axis(std::size_t i) const { return axes_[i]; }                  ///< one of them
  Index partitions() const { return axes_[0].count; }                         ///< count of the first axis
  std::span<Axis const> free_axes() const { return axes().subspan(1); }       ///< all but the first
  /// Elements per partition.
  Index elements() const {
    Index product = 1;
    for (Axis const& axis : free_axes()) product = detail::saturating_product(product, axis.count);
    return product;
  }
  /// Number of elements.
  Index size() const { return detail::saturating_product(partitions(), elements()); }
  /// True if the elements that axes `from` and later name are adjacent, in order.
  bool contiguous_from(std::size_t from) const {
    Index expected = 1;
    for (std::size_t i = axis_count_; i-- > from;) {
      if (axes_[i].count != 1 && axes_[i].stride != expected) return false;
      expected = detail::saturating_product(expected, axes_[i].count);
    }
    return true;
  }
  /// True if the elements of each partition are adjacent.
  bool contiguous() const { return contiguous_from(1); }
  /// Lowest and highest offset that axes `from` and later add.
  std::pair<Index, Index> extremes(std::size_t from) const {
    std::pair<Index, Index> range{0, 0};
    for (std::size_t i = from; i < axis_count_; ++i) {
      Index const reach = detail::saturating_product(axes_[i].stride, axes_[i].count - 1);
      Index& end = reach < 0 ? range.first : range.second;
      end = detail::saturating_sum(end, reach);
    }
    return range;
  }

 private:
  void append(std::span<Axis const> axes) {
    detail::check<ShapeError>(axes.size() <= most_axes - axis_count_, "nki: an access pattern of ",
                              axis_count_ + axes.size(), " axes; accepted: at most ", most_axes);
    for (Axis const& axis : axes) axes_[axis_count_++] = axis;
  }

  std::array<Axis, most_axes> axes_{};
  std::size_t axis_count_ = 0;
};

/// The elements that axes name, as runs of equally spaced elements.
class Runs {
 public:
  /// Runs in row-major order of the axes.
  static Runs in_order(std::span<Axis const> axes) {
    Runs runs;
    for (std::size_t i = axes.size(); i-- > 0;) runs.add(axes[i]);
    return runs;
  }
  /// Runs of adjacent elements, in no particular order: for strides of at least 0, where only the set of elements
  /// matters. Axes that repeat elements are dropped.
  static Runs adjacent(std::span<Axis const> axes) {
    std::array<Axis, Access::most_axes> by_stride{};
    auto const end = std::ranges::copy_if(
                         axes, by_stride.begin(), [](Index stride) { return stride != 0; }, &Axis::stride)
                         .out;
    std::ranges::sort(by_stride.begin(), end, {}, &Axis::stride);
    Runs runs;
    runs.adjacent_ = true;
    for (Axis const& axis : std::span(by_stride.begin(), end)) runs.add(axis);
    return runs;
  }

  /// Calls visit_run(begin, count, step) for each run of the pattern at offset `begin`, until it returns false.
  template <class Visit>
  void visit(Index begin, Visit&& visit_run) const {
    std::array<Index, Access::most_axes> at{};
    for (;;) {
      if (!visit_run(begin, length_, step_)) return;
      std::size_t axis = 0;
      for (; axis < outer_count_; ++axis) {
        begin += outer_[axis].stride;
        if (++at[axis] < outer_[axis].count) break;
        begin -= at[axis] * outer_[axis].stride;
        at[axis] = 0;
      }
      if (axis == outer_count_) return;
    }
  }

 private:
  /// Adds an axis around those so far. It prolongs the run if it continues it.
  void add(Axis const& axis) {
    if (axis.count <= 1) return;
    bool const first = !adjacent_ && length_ == 1 && outer_count_ == 0;
    if (first) step_ = axis.stride;
    if (first || (outer_count_ == 0 && axis.stride == length_ * step_))
      length_ *= axis.count;
    else
      outer_[outer_count_++] = axis;
  }

  std::array<Axis, Access::most_axes> outer_{};  ///< innermost first
  std::size_t outer_count_ = 0;
  Index length_ = 1, step_ = 1;
  bool adjacent_ = false;  ///< the step stays 1
};

}  // namespace annulus::nki
