#pragma once
// Per-element partition sets of an SBUF or PSUM tile: the partitions in which an element has a property, such as being
// defined. Most tiles are written and read whole, or filled from left to right, so a few stretches cover all elements.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "annulus/nki/validate/element_runs.hpp"

namespace annulus::nki::validate_detail {

/// A subset of the 128 partitions, as bits: `low` for partitions 0 to 63, `high` for 64 to 127.
struct PartitionSet {
  std::uint64_t low = 0, high = 0;

  static constexpr PartitionSet of(Index start, Index count) {
    return {bits(start, start + count), bits(start - 64, start + count - 64)};
  }
  constexpr bool operator==(PartitionSet const&) const = default;
  constexpr bool holds(PartitionSet const& other) const { return ((other.low & ~low) | (other.high & ~high)) == 0; }
  constexpr PartitionSet with(PartitionSet const& other) const { return {low | other.low, high | other.high}; }
  constexpr PartitionSet without(PartitionSet const& other) const { return {low & ~other.low, high & ~other.high}; }

 private:
  static constexpr std::uint64_t below(Index end) {
    return end <= 0 ? 0 : end >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << end) - 1;
  }
  static constexpr std::uint64_t bits(Index begin, Index end) { return below(end) & ~below(begin); }
};

/// A set of partitions for every element of a tile, stored as stretches of consecutive elements with equal sets.
class PartitionMap {
 public:
  explicit PartitionMap(Index elements) : elements_(elements), stretches_{{0, {}}} {}

  void clear() { stretches_.assign(1, {0, {}}); }

  /// First element of the pattern that lacks the property in a partition of `wanted`; -1 if none does. `begin` is the
  /// offset of the access, in elements of a partition.
  Index first_lacking(Access const& access, Index begin, PartitionSet const& wanted) const {
    if (stretches_.size() == 1) return stretches_[0].set.holds(wanted) ? -1 : begin;
    Index lacking = -1;
    for_each_run(access, begin, [&](Index first, Index count) {
      for (std::size_t i = stretch_of(first); i < stretches_.size() && stretches_[i].begin < first + count; ++i) {
        if (stretches_[i].set.holds(wanted)) continue;
        lacking = std::max(first, stretches_[i].begin);
        return false;
      }
      return true;
    });
    return lacking;
  }

  void add(Access const& access, Index begin, PartitionSet const& added) {
    for_each_run(access, begin, [&](Index first, Index count) {
      change(first, first + count, [&added](PartitionSet const& set) { return set.with(added); });
      return true;
    });
  }
  void remove(Access const& access, Index begin, PartitionSet const& removed) {
    for_each_run(access, begin, [&](Index first, Index count) {
      change(first, first + count, [&removed](PartitionSet const& set) { return set.without(removed); });
      return true;
    });
  }

 private:
  /// Extends to the beginning of the next stretch, or to the end of the tile.
  struct Stretch {
    Index begin;
    PartitionSet set;
  };

  template <class Visit>
  static void for_each_run(Access const& access, Index begin, Visit&& visit) {
    if (access.contiguous())
      visit(begin, access.elements());
    else
      Runs(access.free_axes()).visit(begin, visit);
  }

  std::size_t stretch_of(Index element) const {
    if (stretches_.size() == 1) return 0;
    auto const after = std::ranges::upper_bound(stretches_, element, {}, &Stretch::begin);
    return static_cast<std::size_t>(after - stretches_.begin()) - 1;
  }
  auto at(std::size_t stretch) { return stretches_.begin() + static_cast<std::ptrdiff_t>(stretch); }

  /// set = changed(set) for the elements [begin, end).
  template <class Changed>
  void change(Index begin, Index end, Changed&& changed) {
    std::size_t i = stretch_of(begin);
    Index const end_of_first = i + 1 < stretches_.size() ? stretches_[i + 1].begin : elements_;
    if (end <= end_of_first && changed(stretches_[i].set) == stretches_[i].set) return;
    if (stretches_[i].begin < begin) {
      stretches_.insert(at(i + 1), {begin, stretches_[i].set});
      ++i;
    }
    std::size_t const first = i;
    for (; i < stretches_.size() && stretches_[i].begin < end; ++i) {
      Index const end_of_this = i + 1 < stretches_.size() ? stretches_[i + 1].begin : elements_;
      if (end < end_of_this) stretches_.insert(at(i + 1), {end, stretches_[i].set});
      stretches_[i].set = changed(stretches_[i].set);
    }
    auto const equal = [](Stretch const& a, Stretch const& b) { return a.set == b.set; };
    auto const last = at(std::min(i + 1, stretches_.size()));
    stretches_.erase(std::unique(at(first == 0 ? 0 : first - 1), last, equal), last);
  }

  Index elements_;
  std::vector<Stretch> stretches_;
};

}  // namespace annulus::nki::validate_detail
