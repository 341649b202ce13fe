#pragma once
// Leaves of the sequences of a reproducible call on a cache: which rank holds each of them, which of them the queries
// of a rank see, and the order in which partial results over them are joined, which is that of LeafForest.

#include <algorithm>
#include <span>
#include <vector>

#include "annulus/attention/cache/page_table.hpp"
#include "annulus/mask/attention_rules.hpp"
#include "annulus/schedule/cache_actions.hpp"
#include "annulus/schedule/leaf_forest.hpp"
#include "annulus/schedule/visible_tiles.hpp"

namespace annulus::detail {

/// Leaf i of a sequence has its positions [i * length, (i + 1) * length). Queries of different owners see different
/// leaves; owner 0 stands for all ranks if they have the same queries. Storage is reused.
class CacheLeaves {
 public:
  /// The sequence of a batch item, and the position of query 0.
  struct Item {
    Index rows, query_offset;
    std::span<PagePlace const> pages;
  };

  /// segments_of(owner): positions of the owner's queries, counted from query 0. All pages of a leaf are on one rank.
  template <class SegmentsOf>
  void find(AttentionRules const& rules, bool elementwise, Index page_rows, std::span<Item const> items, int owners,
            SegmentsOf const& segments_of) {
    length_ = rules.reproducible_leaf;
    page_rows_ = page_rows;
    items_.assign(items.begin(), items.end());
    owners_ = owners;
    first_.clear();
    visible_before_.clear();
    for (Rank owner = 0; owner < owners; ++owner)
      for (std::size_t item = 0; item < items_.size(); ++item) {
        AttentionRules of_item = rules;
        of_item.query_offset = items_[item].query_offset;
        find_visible(segments_of(owner), item, of_item, elementwise);
      }
  }

  int owners() const { return owners_; }
  Index leaves(std::size_t item) const { return ceil_divide(items_[item].rows, length_); }
  /// Positions of a leaf.
  RowRange rows(std::size_t item, Index leaf) const {
    return {leaf * length_, std::min((leaf + 1) * length_, items_[item].rows)};
  }

  /// Replaces the forest by the leaves of a rank that the owner's queries see. fold_leaf(leaf, place) computes the
  /// partial result of a leaf, join(into, from) joins two.
  template <class FoldLeaf, class Join>
  void fold(Rank owner, std::size_t item, Rank holder, LeafForest& forest, PlacePool& pool, FoldLeaf const& fold_leaf,
            Join const& join) const {
    forest.clear();
    for (Index leaf = 0; leaf < leaves(item); ++leaf) {
      if (rank_of(item, leaf) != holder || !any_visible(owner, item, {leaf, 0})) continue;
      Index const place = pool.take();
      fold_leaf(leaf, place);
      insert(owner, item, forest, {leaf, 0}, place, pool, join);
    }
  }
  /// Adds the partial results that fold() leaves on another rank to a forest. copy(node, place) copies the one of that
  /// number.
  template <class Copy, class Join>
  void receive(Rank owner, std::size_t item, Rank holder, LeafForest& forest, PlacePool& pool, Copy const& copy,
               Join const& join) {
    find_sent(owner, item, holder);
    Index node = 0;
    for (auto const& partial : sent_.partials()) {
      Index const place = pool.take();
      copy(node++, place);
      insert(owner, item, forest, partial.node, place, pool, join);
    }
  }

  /// The partial results that the slots of `rank` must hold; `sent` is equal on all ranks.
  CacheNodes count(Rank rank, int ranks) {
    CacheNodes nodes;
    auto const nothing = [](Index, Index) {};
    for (std::size_t item = 0; item < items_.size(); ++item) {
      Rank const own = owners_ == 1 ? 0 : rank;
      places_.clear();
      fold(own, item, rank, forest_, places_, nothing, nothing);
      for (int k = 1; k < ranks; ++k) receive(own, item, rank_at(rank + k, ranks), forest_, places_, nothing, nothing);
      nodes.own = std::max(nodes.own, places_.count());
      for (Rank owner = 0; owner < owners_; ++owner) {
        for (Rank holder = 0; holder < ranks; ++holder) {
          if (owners_ > 1 && holder == owner) continue;
          Index const places = find_sent(owner, item, holder);
          nodes.sent = std::max(nodes.sent, std::ssize(sent_.partials()));
          if (holder == rank) nodes.visiting = std::max(nodes.visiting, places);
        }
      }
    }
    return nodes;
  }

 private:
  Rank rank_of(std::size_t item, Index leaf) const {
    return items_[item].pages[static_cast<std::size_t>(leaf * length_ / page_rows_)].rank;
  }
  /// True if queries of the owner see a leaf of the node, as far as positions tell.
  bool any_visible(Rank owner, std::size_t item, LeafNode const& node) const {
    Index const* const before = visible_before_.data() + first_[static_cast<std::size_t>(owner) * items_.size() + item];
    Index const count = leaves(item);
    return before[std::min(node.end(), count)] > before[std::min(node.begin, count)];
  }

  void find_visible(std::span<Segment const> queries, std::size_t item, AttentionRules const& rules, bool elementwise) {
    first_.push_back(std::ssize(visible_before_));
    Index visible = 0;
    for (Index leaf = 0; leaf < leaves(item); ++leaf) {
      visible_before_.push_back(visible);
      RowRange const rows = this->rows(item, leaf);
      Segment const keys{0, rows.size(), rows.begin, 1};
      Need const need =
          finder_.find(queries, {&keys, 1}, rules.mask, *rules.query_offset, elementwise, nullptr, rules.block_mask);
      visible += need.visible_pairs > 0 ? 1 : 0;
    }
    visible_before_.push_back(visible);
  }

  template <class Join>
  void insert(Rank owner, std::size_t item, LeafForest& forest, LeafNode node, Index place, PlacePool& pool,
              Join const& join) const {
    auto const sees = [&](LeafNode const& other) { return any_visible(owner, item, other); };
    forest.insert(root_level_of(leaves(item)), sees, node, place, [&](Index into, Index from) {
      join(into, from);
      pool.give_back(from);
    });
  }

  /// Sets sent_ to what fold() leaves on a rank, and returns the number of its places.
  Index find_sent(Rank owner, std::size_t item, Rank holder) {
    auto const nothing = [](Index, Index) {};
    of_sent_.clear();
    fold(owner, item, holder, sent_, of_sent_, nothing, nothing);
    return of_sent_.count();
  }

  Index length_ = 1, page_rows_ = 1;
  std::vector<Item> items_;
  int owners_ = 1;
  std::vector<Index> first_;           ///< of each owner and item, in visible_before_
  std::vector<Index> visible_before_;  ///< for each leaf the visible ones before it; then the number of all
  TileFinder finder_;
  LeafForest forest_, sent_;
  PlacePool places_, of_sent_;
};

}  // namespace annulus::detail
