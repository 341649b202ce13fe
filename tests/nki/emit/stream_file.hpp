#pragma once
// Instructions that each core executes, as text in which a Python test writes those of a printed kernel.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "annulus/nki/program/walk.hpp"

namespace annulus_test {

/// One line for each instruction of each core: its name, then operands and indices in the order of their keywords.
/// A tile is named by its number among those of all buffers, t0, t1, ..; a pattern by its first element and its axes,
/// joined where one continues the other.
inline void write_stream(std::filesystem::path const& file, annulus::nki::Program const& program) {
  using namespace annulus::nki;
  std::vector<int> first_tile(program.buffers.size(), -1);
  for_each_node(program.body, [&](Node const& node) {
    if (auto const* made = node.as<Allocate>()) first_tile[static_cast<std::size_t>(made->buffer)] = 0;
  });
  int tiles = 0;
  for (std::size_t i = 0; i < first_tile.size(); ++i)
    if (first_tile[i] == 0) first_tile[i] = tiles, tiles += program.buffers[i].rotation;
  std::ofstream out(file);
  for (int core = 0; core < program.cores; ++core) {
    out << "core " << core << '\n';
    Walk walk(program, core);
    while (Node const* node = walk.next()) {
      auto const* instruction = node->as<Instruction>();
      if (!instruction) continue;
      out << name_of(*instruction);
      for_each_field(*instruction, [&]<class Value>(std::string_view keyword, Value const& value, Use) {
        if constexpr (std::same_as<Value, Affine>) {
          out << ' ' << keyword << '=' << walk.at(value);
        } else if constexpr (std::same_as<Value, Access>) {
          Buffer const& buffer = program.buffer(value);
          bool const chip = on_chip(buffer.memory);
          out << ' ' << keyword << '=';
          if (chip)
            out << 't' << first_tile[static_cast<std::size_t>(value.buffer)] + walk.place_of(value);
          else
            out << buffer.name;
          annulus::Index const row = chip ? buffer.elements_per_partition() : 0;
          out << '@' << value.start_partition * row + walk.at(value.offset);
          std::vector<Axis> axes;
          for (std::size_t i = 0; i < value.axes().size(); ++i) {
            Axis axis = value.axes()[i];
            if (i == 0 && chip) axis.stride = row;
            if (axis.count == 1) continue;
            if (!axes.empty() && axes.back().stride == axis.stride * axis.count)
              axes.back() = {axis.stride, axes.back().count * axis.count};
            else
              axes.push_back(axis);
          }
          for (Axis const& axis : axes) out << ':' << axis.stride << 'x' << axis.count;
        }
      });
      out << '\n';
    }
  }
}

}  // namespace annulus_test
