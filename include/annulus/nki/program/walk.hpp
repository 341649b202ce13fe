#pragma once
// Iteration over the nodes that one core executes, in order, with loops and core branches resolved.

#include <vector>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// Yields the Instructions, Allocates and Sections that one core executes, one at a time, so that the caller can pause
/// where cores synchronize. The program must outlive the walk.
class Walk {
 public:
  Walk(Program const& program, int core)
      : values_(program.variables.size(), 0), tiles_made_(program.buffers.size(), 0), program_(&program) {
    values_[core_variable] = core;
    enter(program.body, nullptr);
  }

  /// The next node, or null at the end. An Allocate is counted before it is returned.
  Node const* next() {
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      if (frame.position == frame.body->size()) {
        if (frame.loop && ++value_of(*frame.loop) < frame.loop->count)
          frame.position = 0;
        else
          frames_.pop_back();
        continue;
      }
      Node const& node = (*frame.body)[frame.position++];
      if (auto const* loop = node.as<Loop>()) {
        if (loop->count > 0) {
          value_of(*loop) = 0;
          enter(loop->body, loop);
        }
      } else if (auto const* branch = node.as<OnCore>()) {
        if (branch->core == core()) enter(branch->body, nullptr);
      } else {
        if (auto const* made = node.as<Allocate>()) ++tiles_made_[static_cast<std::size_t>(made->buffer)];
        return &node;
      }
    }
    return nullptr;
  }

  int core() const { return static_cast<int>(values_[core_variable]); }
  Index at(Affine const& affine) const { return affine.at(values_); }
  std::span<Index const> values() const { return values_; }

  /// Place of the named tile among the `rotation` places of an on-chip buffer; -1 if that tile has not been made yet or
  /// a newer one reuses its place. 0 in HBM.
  int place_of(Access const& access) const {
    Buffer const& buffer = program_->buffer(access);
    if (!on_chip(buffer.memory)) return 0;
    Index const made = tiles_made_[static_cast<std::size_t>(access.buffer)];
    if (access.age >= made || access.age >= buffer.rotation) return -1;
    return static_cast<int>((made - 1 - access.age) % buffer.rotation);
  }

 private:
  struct Frame {
    Body const* body;
    Loop const* loop;
    std::size_t position;
  };

  void enter(Body const& body, Loop const* loop) { frames_.push_back({&body, loop, 0}); }
  Index& value_of(Loop const& loop) { return values_[static_cast<std::size_t>(loop.variable)]; }

  std::vector<Index> values_;
  std::vector<Index> tiles_made_;
  std::vector<Frame> frames_;
  Program const* program_;
};

/// True if the cores of a pair wait for each other at this node.
inline bool is_core_barrier(Node const& node) {
  auto const* instruction = node.as<Instruction>();
  return instruction && (std::holds_alternative<CoreBarrier>(*instruction) ||
                         std::holds_alternative<CollectivePermute>(*instruction) ||
                         std::holds_alternative<CollectivePermuteReduce>(*instruction));
}

}  // namespace annulus::nki
