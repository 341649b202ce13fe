#pragma once
// Buffers of a tile program and the patterns in which instructions read and write them.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/backend/nki/program/affine.hpp"
#include "annulus/backend/nki/program/saturating.hpp"
#include "annulus/core/index.hpp"

namespace annulus::nki {

enum class Memory { sbuf, psum, private_hbm, shared_hbm };
constexpr bool on_chip(Memory memory) { return memory == Memory::sbuf || memory == Memory::psum; }
constexpr std::string_view name_of(Memory memory) {
  constexpr std::string_view names[] = {"sbuf", "psum", "private_hbm", "shared_hbm"};
  return names[static_cast<std::size_t>(memory)];
}

enum class ElementType { float32, bfloat16, float16, int32, uint8 };
constexpr Index bytes_of(ElementType type) {
  return type == ElementType::float32 || type == ElementType::int32 ? 4 : type == ElementType::uint8 ? 1 : 2;
}
constexpr bool is_floating(ElementType type) { return type != ElementType::int32 && type != ElementType::uint8; }
constexpr std::string_view name_of(ElementType type) {
  constexpr std::string_view names[] = {"float32", "bfloat16", "float16", "int32", "uint8"};
  return names[static_cast<std::size_t>(type)];
}

enum class Role { internal, input, output };

/// HBM: shape as the caller sees it, elements in row-major order; there from the first instruction on.
/// On chip: shape {partitions, elements per partition}; every Allocate makes a new one and forgets the one before,
/// but for the last `rotation` of them, which keep their own place on the chip.
struct Buffer {
  std::string name;
  Memory memory = Memory::sbuf;
  ElementType type = ElementType::float32;
  std::vector<Index> shape;
  Role role = Role::internal;
  int rotation = 1;

  bool operator==(Buffer const&) const = default;
  Index partitions() const { return on_chip(memory) ? shape[0] : 1; }
  /// The largest Index where there are more.
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

/// Which elements of a buffer an operand names, in row-major order of its axes. The first axis runs over partitions:
/// on chip its stride has no meaning, as partitions are contiguous.
struct Access {
  static constexpr std::size_t most_axes = 5;

  int buffer = -1;
  int age = 0;                ///< how many Allocates ago the tile was made
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
  /// Are the elements of a partition next to each other?
  bool contiguous() const {
    Index expected = 1;
    for (std::size_t i = axis_count_; i-- > 1; expected *= axes_[i].count)
      if (axes_[i].count != 1 && axes_[i].stride != expected) return false;
    return true;
  }
  /// Lowest and highest offset that the axes `from`.. add.
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
