#pragma once
// Places of tiles in a printed kernel.
//
// A buffer that keeps several tiles is a list in Python, with one tile for each place; the tile that an Allocate makes
// takes the places in turn. An access says how many Allocates ago its tile was made. A loop makes equally many tiles in
// every iteration, so the number of a tile is affine in the enclosing loop variables, for each core.

#include <vector>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki::print_detail {

/// Counts tiles while a program is read in order.
class TilePlaces {
 public:
  explicit TilePlaces(Program const& program)
      : made_(static_cast<std::size_t>(program.cores), std::vector<Affine>(program.buffers.size())) {}

  void allocate(int buffer) {
    for (std::size_t core = 0; core < made_.size(); ++core)
      if (runs_on(core)) nth(made_[core], buffer) += 1;
  }
  /// Begins the body of a loop: tiles of all earlier iterations have been made.
  void enter(Loop const& loop) { add(loop.body, Affine::of(loop.variable)); }
  /// Ends it; the body has counted the tiles of one iteration.
  void leave(Loop const& loop) { add(loop.body, Affine(loop.count - 1) - Affine::of(loop.variable)); }
  /// Counts the tiles of a body that is executed so many times and not read.
  void skip(Body const& body, Index times) { add(body, times); }
  /// The nodes that follow are for one core alone; -1: for all.
  void only_on(int core) { only_ = core; }

  /// Number of the tile of an access, for each core that executes it.
  std::vector<Affine> numbers(Access const& access) const {
    std::vector<Affine> numbers;
    for (std::size_t core = 0; core < made_.size(); ++core)
      if (runs_on(core)) numbers.push_back(nth(made_[core], access.buffer) - Index{access.age + 1});
    return numbers;
  }

 private:
  bool runs_on(std::size_t core) const { return only_ < 0 || core == static_cast<std::size_t>(only_); }

  /// Adds the tiles that a body makes in `iterations` iterations.
  void add(Body const& body, Affine const& iterations) {
    for (std::size_t core = 0; core < made_.size(); ++core)
      if (runs_on(core))
        for_each_executed(body, static_cast<int>(core), [&](Node const& node, Index times) {
          if (auto const* made = node.as<Allocate>()) nth(made_[core], made->buffer) += iterations * times;
        });
  }

  std::vector<std::vector<Affine>> made_;  ///< [core][buffer], in the variables of the enclosing loops
  int only_ = -1;
};

}  // namespace annulus::nki::print_detail
