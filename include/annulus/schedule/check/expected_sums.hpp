#pragma once
// What the sums of a pass must have seen, found by enumerating all pairs of positions: the reference of check_plan.hpp.

#include <array>
#include <cstdint>
#include <vector>

#include "annulus/schedule/check/rows.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

/// Positions of the rows of all ranks, and what the sums of each row must have seen at the end.
class ExpectedSums {
 public:
  explicit ExpectedSums(RingPlan const& plan) : plan_(plan), grid_(grid_of(plan)) {
    PlanRequest const& request = plan.request();
    for (Rank rank = 0; rank < plan.ranks(); ++rank) {
      own_[0].push_back(positions_of(request.sharding.segments(Side::query, rank, request.query_lengths)));
      own_[1].push_back(positions_of(request.sharding.segments(Side::key, rank, request.key_lengths)));
      worked_[0].push_back(positions_of(plan.query_segments(rank)));
      worked_[1].push_back(positions_of(plan.key_segments(rank)));
    }
    bool const halves_heads = plan.lanes().size() > 1 && !plan.lanes()[0].transport().halves_rows();
    shares_ = plan.groups().splits_heads() ? plan.groups().size() : halves_heads ? 2 : 0;
    of_rows_[0].resize(static_cast<std::size_t>(plan.global_queries()));
    of_rows_[1].resize(static_cast<std::size_t>(plan.global_keys()));
    if (grid_) leaf_pairs_.resize(static_cast<std::size_t>(grid_->count(Side::query) * grid_->count(Side::key)));
    for (Index query = 0; query < plan.global_queries(); ++query) {
      of_all_queries_.add(RowName::query, query);
      for (Index key = 0; key < plan.global_keys(); ++key)
        if (visible(query, key)) add_pair(query, key);
    }
  }

  /// Positions of the rows that a rank owns, and of those that it works on.
  std::vector<Index> const& own(Side side, Rank rank) const { return at(own_[side == Side::key], rank); }
  std::vector<Index> const& worked(Side side, Rank rank) const { return at(worked_[side == Side::key], rank); }

  int shares() const { return shares_; }  ///< 0: heads are not split
  /// Share of the heads of the operands of a lane, before an exchange in groups.
  int share_of_lane(int lane) const { return plan_.groups().splits_heads() || shares_ == 0 ? 0 : lane + 1; }
  /// Share of the heads that a rank works on.
  int worked_share(Rank rank, int lane) const {
    return plan_.groups().splits_heads() ? plan_.groups().place(rank) + 1 : share_of_lane(lane);
  }
  bool visible(Index query, Index key) const {
    AttentionRules const& rules = plan_.request().rules;
    Index const position = query + rules.query_offset.value_or(0);
    return rules.mask.visible(position, key) && rules.block_mask.visible(position, key);
  }

  /// What has been seen in this share of the heads; 0: in all of them. Each share has a factor.
  Seen in_share(Seen seen, int share) const {
    bool const all = share == 0 && shares_ > 0;
    std::uint64_t factor = 0;
    for (int one = all ? 1 : share; one <= (all ? shares_ : share); ++one)
      factor += hash_of(static_cast<std::uint64_t>(one)) | 1;
    seen.hashes *= factor;
    if (all) seen.count *= shares_;
    return seen;
  }
  /// What the sums of the row must have seen.
  Seen of(RowName const& name) const {
    bool const of_all = name.kind == RowName::joint || name.kind == RowName::sinks;
    Seen seen = of_all ? of_all_queries_ : at(of_rows_[name.kind == RowName::key], name.position);
    if (name.kind == RowName::query)
      for (Index j = 0; j < plan_.request().joint_keys; ++j) seen.add(RowName::joint, j);
    if (grid_ && name.kind != RowName::pairs) {
      Side const other = name.kind == RowName::query ? Side::key : Side::query;
      seen.order = order_of(name, {0, grid_->root_level(other)}, grid_->count(other));
    }
    return in_share(seen, name.share);
  }

 private:
  static LeafGrid const* grid_of(RingPlan const& plan) {
    return plan.transport().leaves ? &plan.transport().leaves->grid() : nullptr;
  }
  void add_pair(Index query, Index key) {
    at(of_rows_[0], query).add(RowName::key, key);
    at(of_rows_[1], key).add(RowName::query, query);
    if (grid_) leaf_pairs_[leaf_pair(query / grid_->length(), key / grid_->length())] = true;
  }
  std::size_t leaf_pair(Index query_leaf, Index key_leaf) const {
    return static_cast<std::size_t>(query_leaf * grid_->count(Side::key) + key_leaf);
  }
  /// Hash of the tree under a node in which the sums of the row are joined. Leaves without visible pairs are in no join.
  std::uint64_t order_of(RowName const& name, LeafNode node, Index leaves) const {
    if (node.begin >= leaves) return 0;
    if (node.level > 0) {
      LeafNode const first{node.begin, node.level - 1};
      return Seen::order_of(order_of(name, first, leaves), order_of(name, first.sibling(), leaves));
    }
    Index const own = name.position / grid_->length();
    bool const seen =
        name.kind == RowName::sinks ||
        leaf_pairs_[name.kind == RowName::query ? leaf_pair(own, node.begin) : leaf_pair(node.begin, own)];
    return seen ? Seen::order_of_leaf(node.begin) : 0;
  }

  RingPlan const& plan_;
  LeafGrid const* grid_;  ///< of a reproducible pass
  int shares_ = 0;
  std::array<std::vector<std::vector<Index>>, 2> own_, worked_;
  std::array<std::vector<Seen>, 2> of_rows_;
  Seen of_all_queries_;
  std::vector<bool> leaf_pairs_;  ///< [leaf of queries, leaf of keys]
};

}  // namespace annulus::detail
