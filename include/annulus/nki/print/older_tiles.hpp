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
  explicit OlderTiles(Program const& program)
      : program_(program), counts_(program.variables.size(), 1), oldest_asked_(program.buffers.size(), nothing) {
    ask(program.body, oldest_asked_);
    std::vector<Made> made(static_cast<std::size_t>(program.cores), Made(program.buffers.size()));
    std::vector<int> cores;
    for (int core = 0; core < program.cores; ++core) cores.push_back(core);
    count(program.body, cores, made);
  }

  /// Renamings before an Allocate, in printing order: oldest tile first.
  std::vector<TileShift> const& before(Allocate const& allocate) const { return shifts_.at(&allocate); }

 private:
  static constexpr int nothing = -1;
  using Ages = std::vector<int>;     ///< per buffer: the greatest age, as of this point, that later accesses use
  using Made = std::vector<Affine>;  ///< per buffer: the number of tiles made so far

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

  /// Forward pass: `made` holds the tiles made by each core so far; `cores` are those that execute this body.
  void count(Body const& body, std::vector<int> const& cores, std::vector<Made>& made) {
    for (Node const& node : body) {
      if (auto const* allocate = node.as<Allocate>()) {
        shifts_[allocate] = shifts(*allocate, cores, made);
        for (int core : cores) made[place(core)][place(allocate->buffer)] += 1;
      } else if (auto const* branch = node.as<OnCore>()) {
        if (std::ranges::find(cores, branch->core) != cores.end()) count(branch->body, {branch->core}, made);
      } else if (auto const* loop = node.as<Loop>()) {
        count_loop(*loop, cores, made);
      }
    }
  }

  void count_loop(Loop const& loop, std::vector<int> const& cores, std::vector<Made>& made) {
    counts_[place(loop.variable)] = loop.count;
    std::vector<Made> pass = made;
    for (int core : cores) {
      Made per_pass(program_.buffers.size());
      add_allocates(loop.body, core, 1, per_pass);
      for (std::size_t i = 0; i < per_pass.size(); ++i) {
        pass[place(core)][i] += Affine::of(loop.variable, per_pass[i].constant());
        made[place(core)][i] += per_pass[i].constant() * loop.count;
      }
    }
    count(loop.body, cores, pass);
  }

  static void add_allocates(Body const& body, int core, Index times, Made& made) {
    for (Node const& node : body) {
      if (auto const* allocate = node.as<Allocate>()) {
        made[place(allocate->buffer)] += times;
      } else if (auto const* loop = node.as<Loop>()) {
        add_allocates(loop->body, core, times * loop->count, made);
      } else if (auto const* branch = node.as<OnCore>()) {
        if (branch->core == core) add_allocates(branch->body, core, times, made);
      }
    }
  }

  std::vector<TileShift> shifts(Allocate const& allocate, std::vector<int> const& cores,
                                std::vector<Made> const& made) const {
    std::vector<TileShift> found;
    for (int age = oldest_after_.at(&allocate); age >= 1; --age) {
      std::vector<TileShift> of_cores;
      for (int core : cores) {
        Affine const& tiles = made[place(core)][place(allocate.buffer)];
        // Coefficients are counts, so the first iterations have the fewest tiles and the last ones the most.
        Index most = tiles.constant();
        for (Affine::Term const& term : tiles.terms()) most += term.coefficient * (counts_[place(term.variable)] - 1);
        if (most < age) continue;
        TileShift shift{age, core, std::nullopt};
        if (tiles.constant() < age) shift.where = {tiles - tiles.constant(), age - tiles.constant()};
        of_cores.push_back(std::move(shift));
      }
      bool alike = of_cores.size() == cores.size();
      for (TileShift const& shift : of_cores) alike = alike && shift.where == of_cores.front().where;
      if (alike && !of_cores.empty()) {
        of_cores.resize(1);
        of_cores.front().only_core.reset();
      }
      found.insert(found.end(), of_cores.begin(), of_cores.end());
    }
    return found;
  }

  Program const& program_;
  std::vector<Index> counts_;  ///< trip count of the loop of each variable
  Ages oldest_asked_;
  std::unordered_map<Allocate const*, int> oldest_after_;
  std::unordered_map<Allocate const*, std::vector<TileShift>> shifts_;
};

}  // namespace annulus::nki::print_detail
