#pragma once
// Notes of a printed kernel: the query rows and keys that each tile of its pipeline is computed from.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/round.hpp"

namespace annulus::nki {

/// What a tile is computed from: query rows of heads of an item (those of both cores, if they share it), and keys.
struct TileWork {
  RowRange heads, rows, keys;
  bool chosen = false;  ///< partly of late rows with late keys that RingMask::with_chosen_halves() describes

  /// Includes further work.
  void add(TileWork const& other) {
    for (RowRange TileWork::*range : {&TileWork::heads, &TileWork::rows, &TileWork::keys})
      this->*range = detail::hull(this->*range, other.*range);
    chosen = chosen || other.chosen;
  }
  bool operator==(TileWork const&) const = default;
};

/// Collects the work of the tiles of a buffer in a round, in the order in which they are made.
class WorkNotes {
 public:
  /// made: tiles of the buffers in earlier rounds; heads: of an item.
  WorkNotes(Round const& round, std::string_view buffers, Index made, Index heads)
      : title_(concat("Work of the tiles of ", buffers, " by [number] (in schedules ..._tile), in each ring step",
                      round.shared     ? ", item of both cores"
                      : round.repeated ? ", first items"
                                       : "",
                      ":")),
        first_(round.shared ? made * (round.items / round.builder->program().cores) : made),
        heads_(heads) {}

  void begin_step() { steps_.emplace_back(); }
  void add(TileWork const& work) { steps_.back().push_back(work); }

  /// Adds the notes to the program. Steps that repeat the one before the last, as all do where the order of rows
  /// alternates, are left out.
  void write(Builder& builder) const {
    builder.note(title_);
    bool const chosen =
        std::ranges::any_of(steps_, [](auto const& step) { return std::ranges::any_of(step, &TileWork::chosen); });
    if (chosen) builder.note("  *: late rows with late keys, or those in their place in the early halves.");
    Index number = first_;
    bool alternates = steps_.size() > 3 && steps_[1].size() == steps_[2].size();
    for (std::size_t step = 3; alternates && step < steps_.size(); ++step)
      alternates = steps_[step] == steps_[step - 2];
    for (std::size_t step = 0; step < (alternates ? 3 : steps_.size()); ++step) {
      builder.note(concat("  step ", step, ": ", text_of(steps_[step], number)));
      number += std::ssize(steps_[step]);
    }
    if (alternates)
      builder.note(concat("  step 3 and later, from [", number,
                          "] on: as steps 1 and 2 by turns; tiles of each: ", steps_[2].size()));
  }

 private:
  static std::string text_of(RowRange range) {
    return range.size() == 1 ? concat(range.begin) : concat(range.begin, "-", range.end - 1);
  }
  /// "[12 to 19] rows 0-127 to 896-1023, keys 0-4095; ...": a run of tiles whose ranges advance by equal steps is one entry.
  std::string text_of(std::vector<TileWork> const& tiles, Index number) const {
    std::string text;
    for (std::size_t begin = 0, end = 0; begin < tiles.size(); begin = end) {
      for (end = begin + 1; end < tiles.size() && continues(tiles, begin, end);) ++end;
      if (end - begin == 2) --end;
      TileWork const &first = tiles[begin], &last = tiles[end - 1];
      auto const part = [&](char const* name, RowRange TileWork::*range) {
        return concat(name, text_of(first.*range), first.*range == last.*range ? "" : " to " + text_of(last.*range));
      };
      Index const from = number + static_cast<Index>(begin), to = number + static_cast<Index>(end) - 1;
      text += concat(begin == 0 ? "[" : "; [", from, from == to ? "" : concat(" to ", to), "] ",
                     heads_ == 1 ? "" : part("head ", &TileWork::heads) + ", ", part("rows ", &TileWork::rows),
                     part(", keys ", &TileWork::keys), first.chosen ? " *" : "");
    }
    return text.empty() ? "none" : text;
  }
  static bool continues(std::vector<TileWork> const& tiles, std::size_t begin, std::size_t end) {
    if (tiles[end].chosen != tiles[begin].chosen) return false;
    for (RowRange TileWork::*range : {&TileWork::heads, &TileWork::rows, &TileWork::keys})
      for (Index RowRange::*bound : {&RowRange::begin, &RowRange::end}) {
        auto const at = [&](std::size_t i) { return tiles[i].*range.*bound; };
        if (at(end) - at(end - 1) != at(begin + 1) - at(begin)) return false;
      }
    return true;
  }

  std::string title_;
  Index first_, heads_;
  std::vector<std::vector<TileWork>> steps_;
};

}  // namespace annulus::nki
