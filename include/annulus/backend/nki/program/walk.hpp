#pragma once
// The one way through a program: what a core executes, in order, loops counted out.

#include <vector>

#include "annulus/backend/nki/program/program.hpp"

namespace annulus::nki {

/// Gives the Instructions, Allocates and Sections that one core executes, one at a time, so that whoever walks may stop
/// where cores meet. The program outlives the walk.
class Walk {
 public:
  Walk(Program const& program, int core)
      : values_(program.variables.size(), 0), tiles_made_(program.buffers.size(), 0), program_(&program) {
    values_[core_variable] = core;
    enter(program.body, nullptr);
  }

  /// The next one, null at the end. An Allocate has then been counted.
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

  /// Which of the `rotation` places of an on-chip buffer an access of this age names; -1 if that tile was not made yet
  /// or its place has been taken by a newer one. 0 in HBM.
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

/// Do cores of a pair wait for each other here?
inline bool is_meeting(Node const& node) {
  auto const* instruction = node.as<Instruction>();
  return instruction && (std::holds_alternative<CoreBarrier>(*instruction) ||
                         std::holds_alternative<CollectivePermute>(*instruction) ||
                         std::holds_alternative<CollectivePermuteReduce>(*instruction));
}

}  // namespace annulus::nki
