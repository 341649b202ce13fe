#pragma once
// Repetitions in a sequence: its items recur with a period, and each of their numbers advances by a constant step. By
// these, bodies of a program (roll.hpp) and statements of its text (print/repeats.hpp) become loops.

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/core/index.hpp"

namespace annulus::nki {

/// The beginning of a sequence, as far as it repeats with a period. An Item has `numbers`, and item.repeats(earlier) if
/// the two differ in these alone.
struct Repetition {
  static constexpr std::size_t fewest = 3;  ///< iterations of the shortest loop

  std::size_t period = 1;                   ///< items of an iteration
  std::size_t length = 0;                   ///< in items
  std::vector<std::vector<Index>> steps{};  ///< of the numbers of the first `period` items

  /// Adds an item, unless it does not continue the repetition; `earlier`: the item a period before it, if there is one.
  template <class Item>
  bool add(Item const* earlier, Item& item) {
    if (length >= period) {
      if (!item.repeats(*earlier)) return false;
      std::vector<Index> step(item.numbers.size());
      std::ranges::transform(item.numbers, earlier->numbers, step.begin(), std::minus());
      if (length >= 2 * period && steps[length % period] != step) return false;
      if (length < 2 * period) steps.push_back(std::move(step));
    }
    ++length;
    return true;
  }

  std::size_t iterations() const { return length / period; }   ///< complete ones
  std::size_t items() const { return iterations() * period; }  ///< of complete iterations
  bool is_loop() const { return iterations() >= fewest; }      ///< worth a loop

  /// Of the loops of up to `longest_period` items at the beginning of the sequence, the one that saves most; size_of(item)
  /// is what an item takes. Without a loop the first item alone.
  template <class Item, class Size>
  static Repetition best(std::span<Item> sequence, std::size_t longest_period, Size&& size_of) {
    Repetition best{.length = 1};
    std::size_t most = 0, size = 0;
    for (std::size_t period = 1; period <= longest_period && fewest * period <= sequence.size(); ++period) {
      Repetition found{.period = period};
      for (std::size_t& at = found.length; at < sequence.size();)
        if (!found.add(at < period ? nullptr : &sequence[at - period], sequence[at])) break;
      size += std::invoke(size_of, sequence[period - 1]);
      std::size_t const saved = (found.iterations() - 1) * size;
      if (found.is_loop() && saved > most) best = std::move(found), most = saved;
    }
    return best;
  }
};

}  // namespace annulus::nki
