#pragma once
// Renaming of older tiles in a printed kernel.
//
// In a program an access says how many Allocates ago its tile was made; Python has only names. The tile of age 2 is
// called tile_2: an Allocate of `tile` prints tile_2 = tile_1 and tile_1 = tile before it makes the new one. Such a
// line is printed only if a later access uses a tile that old and a tile of that age exists. A loop makes equally many
// tiles in every iteration, so the number made before an Allocate is affine in the enclosing loop variables: if it is
// always or never sufficient, no test is needed; else the line is inside an `if` that Python evaluates while it builds
// the kernel. No unbound name is read.

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki::print_detail {

/// Renaming of the tile of age - 1 to `age`: on one core or all, always or only if enough tiles have been made.
struct TileShift {
  /// Condition index >= at_least under which enough tiles have been made.
  struct EnoughTiles {
    Affine index;  ///< in the loops' variables
    Index at_least = 0;
    bool operator==(EnoughTiles const&) const = default;
  };
  int age = 1;
  std::optional<int> only_core;
  std::optional<EnoughTiles> where;
};

/// Finds the renamings before each Allocate of a program.
class OlderTiles {
 public:
  explicit OlderTiles(Program const& program) {
    Ages asked(program.buffers.size(), nothing);
    ask(program.body, asked);
    for (int core = 0; core < program.cores; ++core) {
      std::vector<Made> made(program.buffers.size());
      count(program.body, core, made);
    }
  }

  /// Renamings before an Allocate, in printing order: oldest tile first.
  std::vector<TileShift> before(Allocate const& allocate) const {
    std::vector<TileShift> found;
    for (int age = oldest_after_.at(&allocate); age >= 1; --age) {
      std::vector<TileShift> of_cores;
      auto const& cores = made_before_.at(&allocate);
      for (auto const& [core, made] : cores) {
        if (made.most < age) continue;
        TileShift shift{age, core, std::nullopt};
        // Coefficients are counts, so the first iterations have the fewest tiles.
        Index const least = made.tiles.constant();
        if (least < age) shift.where = {made.tiles - least, age - least};
        of_cores.push_back(std::move(shift));
      }
      bool alike = of_cores.size() == cores.size();
      for (TileShift const& shift : of_cores) alike = alike && shift.where == of_cores.front().where;
      if (alike) {
        of_cores.resize(1);
        of_cores.front().only_core.reset();
      }
      found.insert(found.end(), of_cores.begin(), of_cores.end());
    }
    return found;
  }

 private:
  static constexpr int nothing = -1;
  using Ages = std::vector<int>;  ///< per buffer: the greatest age, as of this point, that later accesses use

  /// Number of tiles of a buffer that a core made so far.
  struct Made {
    Affine tiles;    ///< in the variables of the enclosing loops
    Index most = 0;  ///< in the last iteration of each of these
  };

  static std::size_t place(int number) { return static_cast<std::size_t>(number); }

  /// Backward pass: `asked` holds the ages needed after the body, on return those needed before it.
  void ask(Body const& body, Ages& asked) {
    for (auto node = body.rbegin(); node != body.rend(); ++node) {
      if (auto const* allocate = node->as<Allocate>()) {
        int& age = asked[place(allocate->buffer)];
        oldest_after_[allocate] = age;
        age = std::max(age - 1, nothing);
      } else if (auto const* instruction = node->as<Instruction>()) {
        for_each_access(*instruction, [&](std::string_view, Use, Access const& access) {
          int& age = asked[place(access.buffer)];
          age = std::max(age, access.age);
        });
      } else if (auto const* branch = node->as<OnCore>()) {
        Ages inside = asked;
        ask(branch->body, inside);
        raise(asked, inside);
      } else if (auto const* loop = node->as<Loop>()) {
        // An iteration is followed by the code after the loop or by another iteration. Ages only rise, so this ends.
        for (Ages start = asked;; start = asked) {
          ask(loop->body, start);
          if (!raise(asked, start)) break;
        }
      }
    }
  }

  static bool raise(Ages& ages, Ages const& by) {
    bool raised = false;
    for (std::size_t i = 0; i < ages.size(); ++i) {
      raised = raised || by[i] > ages[i];
      ages[i] = std::max(ages[i], by[i]);
    }
    return raised;
  }

  /// Forward pass over what one core executes, which has `made` tiles of each buffer.
  void count(Body const& body, int core, std::vector<Made>& made) {
    for (Node const& node : body) {
      if (auto const* allocate = node.as<Allocate>()) {
        Made& of_buffer = made[place(allocate->buffer)];
        made_before_[allocate].emplace_back(core, of_buffer);
        of_buffer.tiles += 1;
        of_buffer.most += 1;
      } else if (auto const* branch = node.as<OnCore>()) {
        if (branch->core == core) count(branch->body, core, made);
      } else if (auto const* loop = node.as<Loop>()) {
        std::vector<Made> inside = made;
        for_each_executed(loop->body, core, [&](Node const& repeated, Index times) {
          auto const* again = repeated.as<Allocate>();
          if (!again) return;
          Made &in_iteration = inside[place(again->buffer)], &after = made[place(again->buffer)];
          in_iteration.tiles += Affine::of(loop->variable, times);
          in_iteration.most += times * (loop->count - 1);
          after.tiles += times * loop->count;
          after.most += times * loop->count;
        });
        count(loop->body, core, inside);
      }
    }
  }

  std::unordered_map<Allocate const*, int> oldest_after_;
  /// For each core that executes the Allocate: the tiles of its buffer made before.
  std::unordered_map<Allocate const*, std::vector<std::pair<int, Made>>> made_before_;
};

}  // namespace annulus::nki::print_detail
