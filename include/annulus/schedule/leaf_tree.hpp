#pragma once
// Leaf tree: where the partial results of one leaf are, until they are joined to one result in the fixed binary tree
// over the leaves of the other side. A node without visible pairs is empty and takes part in no join, so the joins
// depend on positions and mask alone, and neither on who computed a partial result nor on when it arrived.

#include <algorithm>
#include <vector>

#include "annulus/schedule/leaf_grid.hpp"

namespace annulus::detail {

/// Memory places of one size, handed out and taken back; counts the most that are in use at a time.
class SlotPool {
 public:
  Index take() {
    if (free_.empty()) return count_++;
    Index const slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(Index slot) { free_.push_back(slot); }
  Index count() const { return count_; }
  void clear() {
    free_.clear();
    count_ = 0;
  }

 private:
  std::vector<Index> free_;
  Index count_ = 0;
};

/// The partial results of one leaf, each of the leaves of a node and stored in a slot.
class LeafTree {
 public:
  struct Partial {
    LeafNode node;
    Index slot;
  };

  /// Begins anew, without any partial result, for leaf `index` of `side`.
  void begin(Side side, Index index) {
    side_ = side;
    index_ = index;
    partials_.clear();
  }

  Index index() const { return index_; }
  /// In the order of the positions of their nodes.
  std::vector<Partial> const& partials() const { return partials_; }

  /// Adds a partial result. Calls join(into, from) for the slots of each pair of siblings that are complete: `into` is
  /// the one of the lower positions, `from` is free afterwards.
  template <class Join>
  void insert(LeafGrid const& grid, LeafNode node, Index slot, Join&& join) {
    int const root = grid.root_level(side_ == Side::query ? Side::key : Side::query);
    for (; node.level < root; node = node.parent()) {
      LeafNode const sibling = node.sibling();
      if (!grid.any_visible(side_, index_, sibling)) continue;
      auto const found = std::find_if(partials_.begin(), partials_.end(),
                                      [&](Partial const& partial) { return partial.node == sibling; });
      if (found == partials_.end()) break;
      Index const other = found->slot;
      partials_.erase(found);
      bool const first = node.begin < sibling.begin;
      Index const into = first ? slot : other, from = first ? other : slot;
      join(into, from);
      slot = into;
    }
    auto const place = std::find_if(partials_.begin(), partials_.end(),
                                    [&](Partial const& partial) { return partial.node.begin > node.begin; });
    partials_.insert(place, {node, slot});
  }

 private:
  Side side_ = Side::query;
  Index index_ = 0;
  std::vector<Partial> partials_;
};

}  // namespace annulus::detail
