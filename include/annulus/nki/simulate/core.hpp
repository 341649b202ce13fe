#pragma once
// State of one simulated core (memories, position in the program, registers), and the rows of an instruction's operands
// as contiguous floats. Every element is a float that its buffer's type can represent.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/program/walk.hpp"
#include "annulus/nki/simulate/arithmetic.hpp"

namespace annulus::nki::simulator {

/// The content of elements that were never written: a NaN that arithmetic never produces, because input NaNs lose their
/// payload, and arithmetic only propagates payloads.
inline constexpr std::uint32_t poison_bits = 0x7fedfaceu;
inline constexpr float poison = std::bit_cast<float>(poison_bits);
inline bool is_poison(float value) { return std::bit_cast<std::uint32_t>(value) == poison_bits; }

/// The elements of one tile or tensor, not yet written. Throws Error if memory is not sufficient.
inline Floats unwritten(Buffer const& buffer) {
  try {
    return Floats(static_cast<std::size_t>(buffer.size()), poison);
  } catch (std::bad_alloc const&) {
    throw Error(
        detail::message_of("buffer ", buffer.name, " has ", buffer.shape,
                           " elements of 4 bytes in the simulator; more memory than this machine has available"));
  }
}

/// An access resolved to memory: element i of row p is base[p * row_stride + offset of i along the free axes].
struct Operand {
  float* base = nullptr;
  Index rows = 0, row_stride = 0, elements = 0;
  std::span<Axis const> free;
  bool contiguous = false;  ///< the elements of a row are consecutive
  ElementType type = ElementType::float32;
  Floats* storage = nullptr;                                             ///< all elements of its tile or tensor
  Index first_row = 0, last_row = 0, first_column = 0, last_column = 0;  ///< bounding box; in HBM of one row

  float* row(Index p) const { return base + p * row_stride; }
  Index size() const { return rows * elements; }
  /// True if both name the same elements in the same order.
  bool same_as(Operand const& other) const {
    return base == other.base && rows == other.rows && elements == other.elements &&
           (rows == 1 || row_stride == other.row_stride) &&
           ((contiguous && other.contiguous) || std::ranges::equal(free, other.free));
  }
  bool may_overlap(Operand const& other) const {
    return storage == other.storage && first_row <= other.last_row && other.first_row <= last_row &&
           first_column <= other.last_column && other.first_column <= last_column;
  }
};

/// Calls visit(pointer, count, step) for the runs of row p, in order.
template <class Visit>
void for_each_run(Operand const& operand, Index p, Visit&& visit) {
  Runs::in_order(operand.free).visit(0, [&](Index begin, Index count, Index step) {
    visit(operand.row(p) + begin, count, step);
    return true;
  });
}

/// Copies the elements of row p, in order, to out.
inline void gather(Operand const& operand, Index p, float* out) {
  for_each_run(operand, p, [&](float const* from, Index count, Index step) {
    if (step == 1)
      std::copy(from, from + count, out);
    else
      for (Index i = 0; i < count; ++i) out[i] = from[i * step];
    out += count;
  });
}

/// Copies operand.elements values to row p.
inline void scatter(Operand const& operand, Index p, float const* values) {
  for_each_run(operand, p, [&](float* to, Index count, Index step) {
    if (step == 1)
      std::copy(values, values + count, to);
    else
      for (Index i = 0; i < count; ++i) to[i * step] = values[i];
    values += count;
  });
}

/// All rows, gathered in scratch memory.
inline float* gather_all(Operand const& operand, Scratch& scratch) {
  float* const all = scratch.of(operand.size());
  for (Index p = 0; p < operand.rows; ++p) gather(operand, p, all + p * operand.elements);
  return all;
}
inline void scatter_all(Operand const& operand, float const* values) {
  for (Index p = 0; p < operand.rows; ++p) scatter(operand, p, values + p * operand.elements);
}

/// One float per partition.
using Column = Eigen::Array<float, 128, 1>;

/// Refers to the program and to the tensors shared by both cores, which outlive it.
struct CoreState {
  CoreState(Program const& of, int core, std::vector<Floats>& shared_tensors)
      : program(of),
        walk(of, core),
        shared(shared_tensors),
        places(of.buffers.size()),
        registers(of.registers.size(), 0) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      Buffer const& buffer = of.buffers[i];
      if (buffer.memory == Memory::shared_hbm) continue;
      for (int place = 0; place < buffer.rotation; ++place) places[i].push_back(unwritten(buffer));
    }
  }

  Operand operand(Access const& access) {
    Buffer const& buffer = program.buffer(access);
    bool const chip = on_chip(buffer.memory), is_shared = buffer.memory == Memory::shared_hbm;
    Index const columns = buffer.elements_per_partition();
    Operand operand;
    operand.storage = is_shared ? &nth(shared, access.buffer) : &nth(nth(places, access.buffer), walk.place_of(access));
    operand.rows = access.partitions();
    operand.elements = access.elements();
    operand.free = access.free_axes();
    operand.contiguous = access.contiguous();
    operand.type = buffer.type;
    Index offset = walk.at(access.offset);
    if (auto const& moved = access.register_offset)
      offset += nth(registers, moved->register_number) * buffer.stride(moved->dimension);
    auto const [lowest, highest] = access.extremes(chip ? 1 : 0);
    operand.row_stride = chip ? columns : access.axis(0).stride;
    operand.first_row = chip ? access.start_partition : 0;
    operand.last_row = chip ? access.start_partition + operand.rows - 1 : 0;
    operand.first_column = offset + lowest;
    operand.last_column = offset + highest;
    operand.base = operand.storage->data() + operand.first_row * columns + offset;
    return operand;
  }

  /// Checks the elements that a register selects, in an operand of dma_copy. Validation assumes that a register holds
  /// one of its declared values; the id of a rank may be a global one. Throws Error if the elements are out of bounds,
  /// or are read and were never written.
  void check_register(Access const& access, std::string_view keyword, Use use) {
    if (!access.register_offset) return;
    Buffer const& buffer = program.buffer(access);
    Operand const found = operand(access);
    detail::check<Error>(found.first_column >= 0 && found.last_column < buffer.size(), "operand ", keyword,
                         " covers partitions 0 to 0, elements ", found.first_column, " to ", found.last_column, " of ",
                         buffer.name, ", which has 1 x ", buffer.size());
    for (Index p = 0; use == Use::read && p < found.rows; ++p)
      for_each_run(found, p, [&](float const* from, Index count, Index step) {
        for (Index i = 0; i < count; ++i)
          detail::check<Error>(!is_poison(from[i * step]), "operand ", keyword, " reads element ",
                               from + i * step - found.storage->data(), " of ", buffer.name,
                               ", which was never written");
      });
  }

  Program const& program;
  Walk walk;
  std::vector<Floats>& shared;              ///< by buffer: tensors in shared HBM
  std::vector<std::vector<Floats>> places;  ///< by buffer: private tensors, and tiles by place of their rotation
  std::vector<Index> registers;
  Column scalar_sums;     ///< accumulator registers of ScalarE
  Column vector_results;  ///< accumulator registers of VectorE
  std::array<Scratch, 4> scratch;
  Scratch packed;  ///< packed factors of a matrix product
  Index executed = 0;
};

/// The elements of row p: in place if they are consecutive, else gathered in scratch memory.
inline float const* contiguous_row(Operand const& operand, Index p, Scratch& scratch) {
  if (operand.contiguous) return operand.row(p);
  float* const gathered = scratch.of(operand.elements);
  gather(operand, p, gathered);
  return gathered;
}

/// Calls compute(p, out, {in...}, n) for every row p: out and in are the n elements of the destination and of the
/// sources, which have its extents; out may be one of the in. `exact`: the results need no rounding.
template <std::size_t N, class Compute>
void transform_rows(CoreState& core, Access const& to, std::array<Access const*, N> const& from, Compute&& compute,
                    bool exact = false) {
  static_assert(N < std::tuple_size_v<decltype(core.scratch)>);
  Operand const dst = core.operand(to);
  std::array<Operand, N> sources;
  std::ranges::transform(from, sources.begin(), [&](Access const* access) { return core.operand(*access); });
  // Rows are kept until the end where later rows still read elements of dst.
  bool const keeps = std::ranges::any_of(
      sources, [&](Operand const& source) { return dst.may_overlap(source) && !dst.same_as(source); });
  bool const direct = dst.contiguous && !keeps;
  float* const kept = direct ? nullptr : core.scratch[N].of(keeps ? dst.size() : dst.elements);
  for (Index p = 0; p < dst.rows; ++p) {
    float* const out = direct ? dst.row(p) : keeps ? kept + p * dst.elements : kept;
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      compute(p, out, std::array<float const*, N>{contiguous_row(sources[i], p, core.scratch[i])...}, dst.elements);
    }
    (std::make_index_sequence<N>{});
    if (!exact) round_to(dst.type, out, dst.elements);
    if (!direct && !keeps) scatter(dst, p, out);
  }
  if (keeps) scatter_all(dst, kept);
}

/// Copies src to dst, row by row. They have the same extents.
inline void copy_rows(CoreState& core, Access const& dst, Access const& src) {
  auto const copy = [](Index, float* out, auto const& in, Index n) {
    if (in[0] != out) std::copy(in[0], in[0] + n, out);
  };
  transform_rows<1>(core, dst, {&src}, copy, core.program.buffer(src).type == core.program.buffer(dst).type);
}

/// A scalar operand as one value per partition: the same number for all, or the elements of a [rows, 1] operand.
inline Column column_of(CoreState& core, Scalar const& scalar) {
  if (auto const* number = std::get_if<float>(&scalar)) return Column::Constant(*number);
  Operand const operand = core.operand(std::get<Access>(scalar));
  Column column;
  for (Index p = 0; p < operand.rows; ++p) column[p] = *operand.row(p);
  return column;
}

/// Writes one value per partition to a [rows, 1] operand, if there is one.
inline void write_column(CoreState& core, std::optional<Access> const& access, Column const& column) {
  if (!access) return;
  Operand const operand = core.operand(*access);
  for (Index p = 0; p < operand.rows; ++p) {
    float value = column[p];
    round_to(operand.type, &value, 1);
    *operand.row(p) = value;
  }
}

}  // namespace annulus::nki::simulator
