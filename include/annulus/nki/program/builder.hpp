#pragma once
// Builder, which writes a program node by node, and the handles with which lowerings name its operands.

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// An on-chip buffer of a program under construction.
struct TileHandle {
  int buffer = -1;                     ///< number of the buffer
  Index partitions = 0, elements = 0;  ///< extents of a tile
  int age = 0;                         ///< Allocates since the tile was made

  /// The tile made `by` Allocates earlier.
  TileHandle before(int by = 1) const {
    TileHandle older = *this;
    older.age += by;
    return older;
  }
  Access whole() const { return part(0, partitions, 0, elements); }  ///< all elements
  /// All partitions, elements [begin, begin + count).
  Access columns(Affine begin, Index count) const { return part(0, partitions, std::move(begin), count); }
  /// All partitions, one element.
  Access column(Affine at) const { return columns(std::move(at), 1); }
  /// Some partitions, elements [begin, begin + count).
  Access part(Index first_partition, Index partition_count, Affine begin, Index count) const {
    return pattern(first_partition, partition_count, std::move(begin), {{1, count}});
  }
  /// Elements begin + sum of stride * index of up to four free axes, in partitions [first, first + partition_count).
  Access pattern(Index first_partition, Index partition_count, Affine begin, std::initializer_list<Axis> free) const {
    Access access(buffer, {elements, partition_count}, {free.begin(), free.size()});
    access.age = age;
    access.start_partition = first_partition;
    access.offset = std::move(begin);
    return access;
  }
};

/// A tensor in HBM of a program under construction.
struct TensorHandle {
  int buffer = -1;           ///< number of the buffer
  std::vector<Index> shape;  ///< extents

  /// Number of elements.
  Index size() const { return std::accumulate(shape.begin(), shape.end(), Index{1}, detail::saturating_product); }
  Access whole() const { return Access(buffer, {{size(), 1}, {1, size()}}); }  ///< all elements
  /// The elements that axes name, from an offset.
  Access pattern(Affine offset, std::initializer_list<Axis> axes) const {
    Access access(buffer, axes);
    access.offset = std::move(offset);
    return access;
  }
};

/// Appends buffers, instructions and loops to a program.
class Builder {
 public:
  /// An empty program.
  Builder(std::string name, Target target, int cores, int ranks) {
    program_.name = std::move(name);
    program_.target = target;
    program_.cores = cores;
    program_.ranks = ranks;
  }

  /// Declares a tensor in HBM.
  TensorHandle tensor(std::string name, std::vector<Index> shape, ElementType type, Role role = Role::internal,
                      Memory memory = Memory::shared_hbm) {
    program_.buffers.push_back({std::move(name), memory, type, shape, role, 1});
    return {last_buffer(), std::move(shape)};
  }

  void note(std::string text) { program_.notes.push_back(std::move(text)); }                      ///< of the program
  void set_mask_fingerprint(std::string value) { program_.mask_fingerprint = std::move(value); }  ///< of the mask

  /// Declares an on-chip buffer; allocate() makes its tiles.
  TileHandle declare(std::string name, Memory memory, Index partitions, Index elements, ElementType type,
                     int rotation = 1) {
    program_.buffers.push_back({std::move(name), memory, type, {partitions, elements}, Role::internal, rotation});
    return {last_buffer(), partitions, elements, 0};
  }
  /// Raises the rotation of the buffer to at least `tiles`.
  void keep(TileHandle tile, int tiles) {
    int& rotation = nth(program_.buffers, tile.buffer).rotation;
    rotation = std::max(rotation, tiles);
  }
  /// Makes a new tile of the buffer.
  TileHandle allocate(TileHandle tile) {
    add(Allocate{tile.buffer});
    return tile;
  }
  /// Declares a buffer and allocates its only tile here.
  TileHandle tile(std::string name, Memory memory, Index partitions, Index elements, ElementType type) {
    return allocate(declare(std::move(name), memory, partitions, elements, type));
  }

  /// Number of a new register for ids of ranks.
  int make_register() { return make_register({.count = program_.ranks}); }
  /// Number of a new register for other values.
  int make_register(RegisterValues values) {
    program_.registers.push_back(values);
    return static_cast<int>(program_.registers.size()) - 1;
  }

  void emit(Instruction instruction) { add(std::move(instruction)); }  ///< appends an instruction
  /// Appends nodes that collect() returned.
  void append(Body nodes) {
    body().insert(body().end(), std::move_iterator(nodes.begin()), std::move_iterator(nodes.end()));
  }
  /// Begins a named part of the program.
  void section(std::string name, Affine number = 0) { add(Section{std::move(name), std::move(number)}); }

  /// Returns the nodes that write() emits instead of adding them to the program.
  template <class Write>
  Body collect(Write&& write) {
    open_.emplace_back().reserve(16);  // most bodies are larger, and nodes are slow to move
    write();
    Body collected = std::move(open_.back());
    open_.pop_back();
    return collected;
  }

  /// Emits a loop; write(index) emits its body, with index the Affine of the loop variable.
  template <class Write>
  void loop(std::string name, Index count, Write&& write) {
    auto const variable = static_cast<Variable>(program_.variables.size());
    program_.variables.push_back(std::move(name) + "_" + std::to_string(variable));
    add(Loop{variable, count, collect([&] { write(Affine::of(variable)); })});
  }

  /// Emits nodes that only one core of a pair executes.
  template <class Write>
  void on_core(int core, Write&& write) {
    add(OnCore{core, collect(std::forward<Write>(write))});
  }

  Program const& program() const { return program_; }  ///< as written so far
  Program finish() && { return std::move(program_); }  ///< the program

 private:
  template <class Content>
  void add(Content content) {
    body().emplace_back().content = std::move(content);
  }
  Body& body() { return open_.empty() ? program_.body : open_.back(); }
  int last_buffer() const { return static_cast<int>(program_.buffers.size()) - 1; }

  Program program_;
  std::vector<Body> open_;
};

}  // namespace annulus::nki
