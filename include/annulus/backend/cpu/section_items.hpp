#pragma once
// Numbers of the work items that the sections of a step are divided into: groups of panels, or runs of key blocks.

#include <algorithm>
#include <optional>

#include "annulus/backend/cpu/sections.hpp"
#include "annulus/backend/cpu/workspace.hpp"

namespace annulus::cpu::detail {

/// The work items of one head of each batch item: those of its first section, then those of the second, and so on.
class SectionItems {
 public:
  /// A work item of a section.
  struct Item {
    Index section;  ///< its place among all sections of the step
    Index number;   ///< of the item among those of its section
    Index count;    ///< work items of the section
    Index before;   ///< see SectionItems::before
  };

  /// items_of(section): the number of its work items. `sections` must outlive the object.
  template <class ItemsOf>
  SectionItems(Arena& arena, StepSections const& sections, Index batches, ItemsOf&& items_of)
      : sections_(sections),
        begins_(arena.take<Index>(sections.first(batches))),
        ends_(arena.take<Index>(sections.first(batches))) {
    for (Index batch = 0; batch < batches; ++batch) {
      Index end = 0;
      for (Index s = sections.first(batch); s < sections.first(batch + 1); ++s) {
        if (begins_) begins_[s] = end;
        end += items_of(sections[s]);
        if (ends_) ends_[s] = end;
      }
      most_ = std::max(most_, end);
    }
  }

  /// The largest number of work items of a head.
  Index most() const { return most_; }

  /// Work item `number` of a head of a batch item; empty if it has fewer.
  std::optional<Item> find(Index batch, Index number) const {
    Index const first = sections_.first(batch), end = sections_.first(batch + 1);
    Index const section = std::upper_bound(ends_ + first, ends_ + end, number) - ends_;
    if (section == end) return {};
    Index const before = this->before(section);
    return Item{section, number - before, ends_[section] - before, before};
  }

  /// Work items of the batch item's sections before this one.
  Index before(Index section) const { return begins_[section]; }

 private:
  StepSections const& sections_;
  Index *begins_, *ends_;  ///< for each section, the work items of its batch item before it, and up to its end
  Index most_ = 0;
};

}  // namespace annulus::cpu::detail
