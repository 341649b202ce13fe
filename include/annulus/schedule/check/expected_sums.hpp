#pragma once
// What the sums of a pass must have seen, found by trying all pairs of positions: the reference of check_plan.hpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "annulus/schedule/check/rows.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail::checker {

/// Positions of the rows of all ranks, and what the sums of each row must have seen at the end.
class ExpectedSums {
 public:
  explicit ExpectedSums(RingPlan const& plan) : plan_(plan) {
    PlanRequest const& request = plan.request();
    for (Rank rank = 0; rank < plan.ranks(); ++rank) {
      own_[0].push_back(positions_of(request.sharding.segments(Side::query, rank, request.query_lengths)));
      own_[1].push_back(positions_of(request.sharding.segments(Side::key, rank, request.key_lengths)));
      own_[2].push_back({0});
      worked_[0].push_back(positions_of(plan.query_segments(rank)));
      worked_[1].push_back(positions_of(plan.key_segments(rank)));
    }
    bool const halves_heads = plan.lanes().size() > 1 && !plan.lanes()[0].transport().halves_rows();
    shares_ = plan.groups().splits_heads() ? plan.groups().size() : halves_heads ? 2 : 0;
  }

  /// Positions of the rows that a rank owns (gradients of joint keys and of sink logits: 0), and that it works on.
  std::vector<Index> const& own(RowName::Kind kind, Rank rank) const {
    bool const shared = kind == RowName::joint || kind == RowName::sinks;
    return at(own_[shared ? 2 : kind == RowName::key], rank);
  }
  std::vector<Index> const& worked(RowName::Kind kind, Rank rank) const {
    return at(worked_[kind == RowName::key], rank);
  }
  int shares() const { return shares_; }  ///< 0: heads are not split
  /// Share of the heads of the operands of a lane, before an exchange in groups.
  int share_of_lane(int lane) const { return plan_.groups().splits_heads() || shares_ == 0 ? 0 : lane + 1; }
  /// Share of the heads that a rank works on.
  int worked_share(Rank rank, int lane) const {
    return plan_.groups().splits_heads() ? plan_.groups().place(rank) + 1 : share_of_lane(lane);
  }
  /// Null if the pass is not reproducible.
  LeafGrid const* grid() const { return plan_.transport().leaves ? &plan_.transport().leaves->grid() : nullptr; }
  bool visible(Index query, Index key) const {
    AttentionRules const& rules = plan_.request().rules;
    Index const position = query + rules.query_offset.value_or(0);
    return rules.mask.visible(position, key) && rules.block_mask.visible(position, key);
  }

  /// What the sums of the row must have seen. Leaves that have no visible pair with those of its leaf are in no join.
  Seen of(RowName const& name) const {
    bool const of_query = name.kind == RowName::query || name.kind == RowName::pairs;
    bool const ordered = grid() && name.kind != RowName::pairs;
    Index const length = ordered ? grid()->length() : 1, first = name.position / length * length;
    Seen seen;
    std::vector<std::uint64_t> orders;  // of the leaves, then of the nodes above them
    if (ordered) orders.resize(static_cast<std::size_t>(grid()->count(of_query ? Side::key : Side::query)));
    for (Index other = 0; other < (of_query ? plan_.global_keys() : plan_.global_queries()); ++other) {
      if (sees(name.kind, name.position, other)) add(seen, of_query ? RowName::key : RowName::query, other, name);
      for (Index row = first; ordered && row < first + length; ++row)
        if (sees(name.kind, row, other)) at(orders, other / length) = Seen::order_of_leaf(other / length);
    }
    for (Index j = 0; name.kind == RowName::query && j < plan_.request().joint_keys; ++j)
      add(seen, RowName::joint, j, name);
    for (std::size_t width = 1; width < orders.size(); width *= 2)
      for (std::size_t i = 0; i + width < orders.size(); i += 2 * width)
        orders[i] = Seen::order_of(orders[i], orders[i + width]);
    if (!orders.empty()) seen.order = orders[0];
    return seen;
  }

 private:
  /// The sums of a row see one of the other side. Gradients of joint keys and of sink logits see all queries.
  bool sees(RowName::Kind kind, Index row, Index other) const {
    if (kind == RowName::joint || kind == RowName::sinks) return true;
    if (kind == RowName::key) return row < plan_.global_keys() && visible(other, row);
    return row < plan_.global_queries() && visible(row, other);
  }
  /// Sums of all heads see a row in each share; each rank computes its shares in sink logits of all heads at once.
  void add(Seen& seen, RowName::Kind kind, Index position, RowName const& sums) const {
    bool const each = sums.share == 0 && sums.kind != RowName::sinks;
    for (int share = each ? std::min(shares_, 1) : sums.share; share <= (each ? shares_ : sums.share); ++share)
      seen.add({kind, share, position});
  }

  RingPlan const& plan_;
  int shares_ = 0;
  std::array<std::vector<std::vector<Index>>, 3> own_, worked_;
};

}  // namespace annulus::detail::checker
