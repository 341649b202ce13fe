#pragma once
// Buffers of a tile program, and the access patterns with which instructions read and write them.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/nki/program/affine.hpp"
#include "annulus/nki/program/saturating.hpp"
#include "annulus/core/index.hpp"

namespace annulus::nki {

/// Memory of a buffer. Private HBM belongs to one core; shared HBM to both cores of a pair.
enum class Memory { sbuf, psum, private_hbm, shared_hbm };
constexpr bool on_chip(Memory memory) { return memory == Memory::sbuf || memory == Memory::psum; }
constexpr std::string_view name_of(Memory memory) {
  constexpr std::string_view names[] = {"sbuf", "psum", "private_hbm", "shared_hbm"};
  return names[static_cast<std::size_t>(memory)];
}

/// Element type of a buffer.
enum class ElementType { float32, bfloat16, float16, int32, uint8 };
constexpr Index bytes_of(ElementType type) {
  return type == ElementType::float32 || type == ElementType::int32 ? 4 : type == ElementType::uint8 ? 1 : 2;
}
constexpr bool is_floating(ElementType type) { return type != ElementType::int32 && type != ElementType::uint8; }
constexpr std::string_view name_of(ElementType type) {
  constexpr std::string_view names[] = {"float32", "bfloat16", "float16", "int32", "uint8"};
  return names[static_cast<std::size_t>(type)];
}

/// Role of a buffer in the kernel: argument, result or neither.
enum class Role { internal, input, output };

/// A buffer in HBM exists from the first instruction on; `shape` is the caller's, elements are in row-major order.
/// A buffer on chip has shape {partitions, elements per partition}; every Allocate makes a new tile, and the newest
/// `rotation` tiles are kept, each in its own place.
struct Buffer {
  std::string name;
  Memory memory = Memory::sbuf;
  ElementType type = ElementType::float32;
  std::vector<Index> shape;
  Role role = Role::internal;
  int rotation = 1;

  bool operator==(Buffer const&) const = default;
  Index partitions() const { return on_chip(memory) ? shape[0] : 1; }
  /// Number of elements, saturated at the largest Index.
  Index size() const {
    Index product = 1;
    for (Index extent : shape) product = saturating_multiply(product, extent);
    return product;
  }
  Index elements_per_partition() const { return size() / partitions(); }
  Index bytes() const { return saturating_multiply(size(), bytes_of(type)); }
};

/// One axis of an access pattern: [stride, count], in elements.
struct Axis {
  Index stride = 1;
  Index count = 1;
  bool operator==(Axis const&) const = default;
};

/// Adds register * (elements of one index of `dimension` of the buffer) to an offset in HBM.
struct RegisterOffset {
  int register_number = 0;
  int dimension = 0;
  bool operator==(RegisterOffset const&) const = default;
};

/// The elements of a buffer that an operand names, in row-major order of the axes. On chip the first axis runs over
/// partitions; its stride is ignored there, because partitions are contiguous.
struct Access {
  static constexpr std::size_t most_axes = 5;

  int buffer = -1;
  int age = 0;                ///< number of Allocates since the tile was made
  Index start_partition = 0;  ///< on chip
  Affine offset;              ///< on chip: elements inside a partition; HBM: elements from the start of the tensor
  std::optional<RegisterOffset> register_offset;

  Access() = default;
  Access(int of, std::initializer_list<Axis> axes) : buffer(of) {
    for (Axis const& axis : axes) axes_[axis_count_++] = axis;
  }
  Access(int of, Axis rows, std::span<Axis const> free) : buffer(of) {
    axes_[axis_count_++] = rows;
    for (Axis const& axis : free) axes_[axis_count_++] = axis;
  }

  bool operator==(Access const&) const = default;

  std::span<Axis const> axes() const { return {axes_.data(), axis_count_}; }
  Axis const& axis(std::size_t i) const { return axes_[i]; }
  Index partitions() const { return axes_[0].count; }
  std::span<Axis const> free_axes() const { return axes().subspan(1); }
  /// Elements per partition.
  Index elements() const {
    Index product = 1;
    for (Axis const& axis : free_axes()) product = saturating_multiply(product, axis.count);
    return product;
  }
  Index size() const { return saturating_multiply(partitions(), elements()); }
  /// True if the elements of each partition are adjacent.
  bool contiguous() const {
    Index expected = 1;
    for (std::size_t i = axis_count_; i-- > 1; expected *= axes_[i].count)
      if (axes_[i].count != 1 && axes_[i].stride != expected) return false;
    return true;
  }
  /// Lowest and highest offset that axes `from` and later add.
  std::pair<Index, Index> extremes(std::size_t from) const {
    std::pair<Index, Index> range{0, 0};
    for (std::size_t i = from; i < axis_count_; ++i) {
      Index const reach = saturating_multiply(axes_[i].stride, axes_[i].count - 1);
      Index& end = reach < 0 ? range.first : range.second;
      end = saturating_add(end, reach);
    }
    return range;
  }

 private:
  std::array<Axis, most_axes> axes_{};
  std::size_t axis_count_ = 0;
};

}  // namespace annulus::nki
