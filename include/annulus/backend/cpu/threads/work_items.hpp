#pragma once
// Numbering of work items by section: groups of panels, or runs of key blocks.

#include <algorithm>
#include <optional>

#include "annulus/backend/cpu/threads/document_sections.hpp"
#include "annulus/backend/cpu/threads/workspace.hpp"

namespace annulus::cpu::detail {

/// The work items of one head, for each batch item: those of its first section, then those of the second, and so on.
class WorkItems {
 public:
  /// A work item of a section.
  struct Item {
    Index section;  ///< index among all sections of the step
    Index index;    ///< among the work items of the section
    Index count;    ///< work items of the section
    Index before;   ///< work items of earlier sections of the batch item
  };

  /// items_of(section): the number of its work items. `sections` must outlive the object.
  template <class ItemsOf>
  WorkItems(Arena& arena, DocumentSections const& sections, Index batches, ItemsOf&& items_of)
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

  /// Work item `index` of a head of a batch item; empty if it has fewer.
  std::optional<Item> find(Index batch, Index index) const {
    Index const first = sections_.first(batch), end = sections_.first(batch + 1);
    Index const section = std::upper_bound(ends_ + first, ends_ + end, index) - ends_;
    if (section == end) return {};
    Index const before = this->before(section);
    return Item{section, index - before, ends_[section] - before, before};
  }

  /// Work items of earlier sections of the batch item.
  Index before(Index section) const { return begins_[section]; }

 private:
  DocumentSections const& sections_;
  Index *begins_, *ends_;  ///< for each section, the work items of its batch item before it, and up to its end
  Index most_ = 0;
};

}  // namespace annulus::cpu::detail
