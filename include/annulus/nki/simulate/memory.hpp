#pragma once
// Memory of a simulated core: every element is a float that its buffer's type can represent, or poison if it was never
// written.

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <new>
#include <span>
#include <string_view>
#include <vector>

#include "annulus/nki/program/program.hpp"
#include "annulus/core/check.hpp"

namespace annulus::nki::simulator {

/// Aligned for Eigen's vector instructions, so that results do not depend on addresses.
using Floats = std::vector<float, Eigen::aligned_allocator<float>>;

/// A NaN that arithmetic never produces: input NaNs lose their payload, and arithmetic only propagates payloads.
inline constexpr std::uint32_t poison_bits = 0x7fedfaceu;
inline constexpr float poison = std::bit_cast<float>(poison_bits);
inline bool is_poison(float value) { return std::bit_cast<std::uint32_t>(value) == poison_bits; }

inline bool has_poison(float const* values, Index n) {
  constexpr Index chunk = 1024;
  for (Index begin = 0; begin < n; begin += chunk) {
    std::uint32_t found = 0;
    for (Index i = begin; i < std::min(n, begin + chunk); ++i) found |= is_poison(values[i]) ? 1u : 0u;
    if (found) return true;
  }
  return false;
}

/// Memory for intermediate values, reused from instruction to instruction.
class Scratch {
 public:
  /// Storage for n floats with unspecified content; valid until the next call.
  float* of(Index n) {
    if (static_cast<Index>(storage_.size()) < n) storage_.resize(static_cast<std::size_t>(n));
    return storage_.data();
  }

 private:
  Floats storage_;
};

/// Elements of one tile or tensor, partitions x columns; a tensor in HBM has one partition. The first `defined_columns`
/// columns are defined in all partitions; the others are filled with poison lazily, when one is read or a gap is left.
struct Place {
  Floats elements;
  Index partitions = 1, columns = 0;
  Index defined_columns = 0;
  bool filled = false;

  /// Allocates the elements of a buffer and marks all as undefined. Throws Error if memory is not sufficient.
  void forget(Buffer const& buffer) {
    auto const refuse = [&] {
      throw Error(message_of("buffer ", buffer.name, " has ", buffer.shape,
                             " elements of 4 bytes in the simulator; more memory than this machine has available"));
    };
    constexpr Index most_elements = Index{1} << 38;  // 1 TiB: refused without trying
    if (buffer.size() > most_elements) refuse();
    try {
      elements.resize(static_cast<std::size_t>(buffer.size()));
    } catch (std::bad_alloc const&) {
      refuse();
    }
    partitions = buffer.partitions();
    columns = buffer.elements_per_partition();
    defined_columns = 0;
    filled = false;
  }
  void fill_undefined() {
    if (filled) return;
    for (Index p = 0; p < partitions; ++p)
      std::fill(elements.data() + p * columns + defined_columns, elements.data() + (p + 1) * columns, poison);
    filled = true;
  }
};

/// An access resolved to memory: element i of row p is base[p * row_stride + offset of i along the free axes].
struct Operand {
  float* base = nullptr;
  Index rows = 0, row_stride = 0, elements = 0;
  std::span<Axis const> free;
  bool contiguous = false;  ///< the elements of a row are consecutive
  ElementType type = ElementType::float32;
  Place* place = nullptr;
  Index first_row = 0, last_row = 0, first_column = 0, last_column = 0;  ///< bounding box; in HBM of one row

  float* row(Index p) const { return base + p * row_stride; }
  Index size() const { return rows * elements; }
  /// True if all elements are consecutive.
  bool flat() const { return contiguous && (rows == 1 || row_stride == elements); }
  /// True if it covers every element of its columns, in every partition.
  bool fills_columns() const { return place->partitions == 1 ? flat() : contiguous && rows == place->partitions; }
  /// True if both name the same elements in the same order.
  bool same_as(Operand const& other) const {
    return base == other.base && rows == other.rows && elements == other.elements &&
           (rows == 1 || row_stride == other.row_stride) &&
           ((contiguous && other.contiguous) || std::ranges::equal(free, other.free));
  }
  bool may_overlap(Operand const& other) const {
    return place == other.place && first_row <= other.last_row && other.first_row <= last_row &&
           first_column <= other.last_column && other.first_column <= last_column;
  }
};

/// Calls visit(offset, count, stride) for every innermost run of the axes, in row-major order.
template <class Visit>
void for_each_run(std::span<Axis const> axes, Visit&& visit, Index offset = 0) {
  if (axes.empty())
    visit(offset, Index{1}, Index{1});
  else if (axes.size() == 1)
    visit(offset, axes[0].count, axes[0].stride);
  else
    for (Index i = 0; i < axes[0].count; ++i) for_each_run(axes.subspan(1), visit, offset + i * axes[0].stride);
}

/// Copies the elements of row p, in order, to out.
inline void gather(Operand const& operand, Index p, float* out) {
  float const* const row = operand.row(p);
  for_each_run(operand.free, [&](Index offset, Index count, Index stride) {
    float const* const from = row + offset;
    if (stride == 1)
      std::copy(from, from + count, out);
    else
      for (Index i = 0; i < count; ++i) out[i] = from[i * stride];
    out += count;
  });
}

/// Copies operand.elements values to row p.
inline void scatter(Operand const& operand, Index p, float const* values) {
  float* const row = operand.row(p);
  for_each_run(operand.free, [&](Index offset, Index count, Index stride) {
    float* const to = row + offset;
    if (stride == 1)
      std::copy(values, values + count, to);
    else
      for (Index i = 0; i < count; ++i) to[i * stride] = values[i];
    values += count;
  });
}

/// Throws Error if an element of the operand was never written.
inline void check_defined(Operand const& operand, Buffer const& buffer, std::string_view keyword) {
  Place& place = *operand.place;
  if (operand.last_column < place.defined_columns) return;
  auto const refuse = [&](float const* element) {
    Index const at = element - place.elements.data();
    if (on_chip(buffer.memory))
      throw Error(message_of("operand ", keyword, " reads partition ", at / place.columns, ", element ",
                             at % place.columns, " of ", buffer.name, ", which was never written"));
    throw Error(
        message_of("operand ", keyword, " reads element ", at, " of ", buffer.name, ", which was never written"));
  };
  place.fill_undefined();
  for (Index p = 0; p < operand.rows; ++p) {
    if (operand.contiguous && !has_poison(operand.row(p), operand.elements)) continue;
    for_each_run(operand.free, [&](Index offset, Index count, Index stride) {
      for (Index i = 0; i < count; ++i)
        if (float const* const element = operand.row(p) + offset + i * stride; is_poison(*element)) refuse(element);
    });
  }
  if (operand.fills_columns() && operand.first_column <= place.defined_columns)
    place.defined_columns = operand.last_column + 1;
}

/// Call before writing the operand. `all` is false if some of its elements may stay unchanged.
inline void prepare_write(Operand const& operand, bool all) {
  Place& place = *operand.place;
  if (operand.last_column < place.defined_columns) return;
  if (all && operand.fills_columns() && operand.first_column <= place.defined_columns)
    place.defined_columns = operand.last_column + 1;
  else
    place.fill_undefined();
}

}  // namespace annulus::nki::simulator
