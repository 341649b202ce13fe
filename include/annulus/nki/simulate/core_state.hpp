#pragma once
// State of one simulated core: memories, position in the program, registers and accumulator registers.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/program/walk.hpp"
#include "annulus/nki/simulate/memory.hpp"

namespace annulus::nki::simulator {

inline constexpr std::size_t most_partitions = 128;

/// One float per partition.
using Column = std::array<float, most_partitions>;

/// Refers to the program, the hardware and the tensors shared by both cores, which outlive it.
struct CoreState {
  CoreState(Program const& of, Hardware const& on, int core, std::vector<Place>& shared_tensors)
      : program(of),
        hardware(on),
        walk(of, core),
        shared(shared_tensors),
        places(of.buffers.size()),
        registers(static_cast<std::size_t>(of.registers), -1) {
    scalar_sums.fill(poison);
    vector_results.fill(poison);
    for (std::size_t i = 0; i < places.size(); ++i) {
      Buffer const& buffer = of.buffers[i];
      if (on_chip(buffer.memory)) places[i].resize(static_cast<std::size_t>(buffer.rotation));
      if (buffer.memory == Memory::private_hbm) places[i].resize(1), places[i][0].forget(buffer);
    }
  }

  /// Resolves an operand that is read. Throws Error if it is out of bounds or has an element that was never written.
  Operand read(Access const& access, std::string_view keyword) {
    Operand const operand = resolve(access, keyword);
    check_defined(operand, program.buffer(access), keyword);
    return operand;
  }
  /// Resolves an operand that is written; `all` is false if parts stay unchanged. Call after an instruction's reads.
  Operand write(Access const& access, std::string_view keyword, bool all = true) {
    Operand const operand = resolve(access, keyword);
    prepare_write(operand, all);
    return operand;
  }

  /// Call when the walk has reached an Allocate: all elements of the new tile are undefined.
  void allocate(Allocate const& made) {
    int const place = walk.place_of(Access(made.buffer, {}));
    places[static_cast<std::size_t>(made.buffer)][static_cast<std::size_t>(place)].forget(program.buffer(made.buffer));
  }

  Place& place_in_hbm(int buffer) {
    auto const i = static_cast<std::size_t>(buffer);
    return program.buffer(buffer).memory == Memory::shared_hbm ? shared[i] : places[i][0];
  }

  Program const& program;
  Hardware const& hardware;
  Walk walk;
  std::vector<Place>& shared;              ///< by buffer: tensors in shared HBM
  std::vector<std::vector<Place>> places;  ///< by buffer: the other tensors and tiles
  std::vector<Index> registers;            ///< -1 until set
  Column scalar_sums;                      ///< accumulator registers of ScalarE; poison until reset
  Column vector_results;                   ///< accumulator registers of VectorE; poison until reset
  std::array<Scratch, 4> scratch;
  Scratch packed;  ///< packed factors of a matrix product
  Section const* section = nullptr;
  Index section_number = 0;
  Index executed = 0;

 private:
  Operand resolve(Access const& access, std::string_view keyword) {
    Buffer const& buffer = program.buffer(access);
    int const number = walk.place_of(access);
    check<Error>(number >= 0, "operand ", keyword, " names a tile of ", buffer.name,
                 " that is not allocated yet, or was replaced by a newer one");
    check<Error>(!access.axes().empty(), "operand ", keyword, " of ", buffer.name, " has no axes");
    bool const chip = on_chip(buffer.memory);
    Operand operand;
    operand.place = chip ? &places[static_cast<std::size_t>(access.buffer)][static_cast<std::size_t>(number)]
                         : &place_in_hbm(access.buffer);
    operand.rows = access.partitions();
    operand.elements = access.elements();
    operand.free = access.free_axes();
    operand.contiguous = access.contiguous();
    operand.type = buffer.type;
    Index const width = buffer.elements_per_partition();
    Index offset = walk.at(access.offset);
    if (access.register_offset) offset += register_distance(*access.register_offset, buffer, keyword);
    auto const [lowest, highest] = access.extremes(chip ? 1 : 0);
    operand.row_stride = chip ? width : access.axis(0).stride;
    operand.first_row = chip ? access.start_partition : 0;
    operand.last_row = chip ? access.start_partition + operand.rows - 1 : 0;
    operand.first_column = offset + lowest;
    operand.last_column = offset + highest;
    check<Error>(operand.first_row >= 0 && operand.last_row < buffer.partitions() && operand.first_column >= 0 &&
                     operand.last_column < width && operand.size() > 0,
                 "operand ", keyword, " covers partitions ", operand.first_row, " to ", operand.last_row, ", elements ",
                 operand.first_column, " to ", operand.last_column, " of ", buffer.name, ", which has ",
                 buffer.partitions(), " x ", width);
    operand.base = operand.place->elements.data() + operand.first_row * width + offset;
    return operand;
  }

  Index register_distance(RegisterOffset const& by, Buffer const& buffer, std::string_view keyword) const {
    check<Error>(!on_chip(buffer.memory), "operand ", keyword, " of ", buffer.name,
                 " has a register offset; only tensors in HBM take one");
    auto const dimension = static_cast<std::size_t>(by.dimension);
    check<Error>(dimension < buffer.shape.size(), "operand ", keyword, ": ", buffer.name, " has no dimension ",
                 by.dimension);
    Index stride = 1;
    for (std::size_t i = dimension + 1; i < buffer.shape.size(); ++i) stride *= buffer.shape[i];
    auto const number = static_cast<std::size_t>(by.register_number);
    check<Error>(number < registers.size() && registers[number] >= 0, "operand ", keyword, " of ", buffer.name,
                 " is offset by register ", by.register_number, ", which was never set");
    return registers[number] * stride;
  }
};

}  // namespace annulus::nki::simulator
