#pragma once
// Leaf forest: partial results of the same rows over leaves of keys or queries, until they are joined to one result in
// the fixed binary tree over the leaves.

#include <algorithm>
#include <vector>

#include "annulus/core/index.hpp"

namespace annulus::detail {

/// Leaves [begin, begin + 2^level), where begin is a multiple of 2^level: a node of the tree in which leaves are
/// joined.
struct LeafNode {
  Index begin = 0;
  int level = 0;

  Index end() const { return begin + (Index{1} << level); }
  LeafNode parent() const { return {begin >> (level + 1) << (level + 1), level + 1}; }
  LeafNode sibling() const { return {begin ^ (Index{1} << level), level}; }
  bool operator==(LeafNode const&) const = default;
};

/// Level of the root of the tree over so many leaves.
constexpr int root_level_of(Index leaves) {
  int level = 0;
  while ((Index{1} << level) < leaves) ++level;
  return level;
}

/// Places of one size in a buffer, handed out and taken back; counts the most that are in use at a time.
class PlacePool {
 public:
  Index take() {
    if (free_.empty()) return count_++;
    Index const place = free_.back();
    free_.pop_back();
    return place;
  }
  void give_back(Index place) { free_.push_back(place); }
  Index count() const { return count_; }
  void clear() {
    free_.clear();
    count_ = 0;
  }

 private:
  std::vector<Index> free_;
  Index count_ = 0;
};

/// Partial results, each of which covers a node of the tree and is stored in a place. A node without visible pairs is
/// empty and takes part in no join, so the joins depend on positions and mask alone, and neither on who computed a
/// partial result nor on when it arrived.
class LeafForest {
 public:
  struct Partial {
    LeafNode node;
    Index place;
  };

  void clear() { partials_.clear(); }
  /// In the order of the positions of their nodes.
  std::vector<Partial> const& partials() const { return partials_; }

  /// Adds a partial result. root: level of the root. any_visible(node): whether the rows see any leaf of a node. Calls
  /// join(into, from) for the places of each pair of siblings that are complete: `into` is the one of the lower
  /// positions, `from` is free afterwards.
  template <class AnyVisible, class Join>
  void insert(int root, AnyVisible const& any_visible, LeafNode node, Index place, Join&& join) {
    for (; node.level < root; node = node.parent()) {
      LeafNode const sibling = node.sibling();
      if (!any_visible(sibling)) continue;
      auto const found = std::find_if(partials_.begin(), partials_.end(),
                                      [&](Partial const& partial) { return partial.node == sibling; });
      if (found == partials_.end()) break;
      Index const other = found->place;
      partials_.erase(found);
      bool const first = node.begin < sibling.begin;
      Index const into = first ? place : other, from = first ? other : place;
      join(into, from);
      place = into;
    }
    auto const next = std::find_if(partials_.begin(), partials_.end(),
                                   [&](Partial const& partial) { return partial.node.begin > node.begin; });
    partials_.insert(next, {node, place});
  }

 private:
  std::vector<Partial> partials_;
};

}  // namespace annulus::detail
