#pragma once
// Whether a ring plan is the least one: no step, row or byte more than its mask needs. That its actions compute the
// right results is for schedule/check_plan.hpp.

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/schedule/plan_slots.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "annulus/schedule/visible_tiles.hpp"

namespace annulus_test {

using annulus::Index;
using annulus::Pass;
using annulus::PlannedStep;
using annulus::PlanRequest;
using annulus::Rank;
using annulus::Rotation;
using annulus::RowRange;
using annulus::Side;
using annulus::detail::Need;

/// The checks, one member function each; all throw Error. Plan: RingPlan, or a type with its const member functions,
/// prefetched_rows and carried_rows.
template <class Plan>
class PlanWalk {
 public:
  explicit PlanWalk(Plan const& plan) : plan_(plan) {
    bool const keys = plan.rotation() == Rotation::keys;
    PlanRequest const& request = plan.request();
    for (Rank visitor = 0; visitor < ranks(); ++visitor)
      for (Rank owner = 0; owner < ranks(); ++owner)
        needs_.push_back(annulus::detail::visible_tiles(
            plan.query_segments(keys ? visitor : owner), plan.key_segments(keys ? owner : visitor), request.rules.mask,
            request.rules.query_offset.value_or(0), request.elementwise, nullptr));
    // Whole leaves are needed of a reproducible pass.
    if (plan.transport().leaves)
      for (Rank visitor = 0; visitor < ranks(); ++visitor)
        for (Rank owner = 0; owner < ranks(); ++owner)
          plan.transport().leaves->grid().widen_to_leaves(needs_[static_cast<std::size_t>(visitor * ranks() + owner)],
                                                          keys ? visitor : owner, keys ? owner : visitor);
  }

  void check_offsets() const {
    require(plan_.steps() >= 1 && plan_.steps() <= ranks(), plan_.steps(), " steps on ", ranks(), " ranks");
    require(plan_.offset(0) == 0, "the first step has offset ", plan_.offset(0), ", expected 0");
    for (int i = 1; i < plan_.steps(); ++i) {
      int const before = i == 1 && plan_.transport().backwards ? ranks() : plan_.offset(i - 1);
      // A double ring is not left at the last place of a group, so that only the order of the groups is that of
      // offsets.
      bool in_order = plan_.transport().backwards ? plan_.offset(i) < before : plan_.offset(i) > before;
      if (inner() < ranks()) in_order = plan_.offset(i) / inner() >= before / inner() && plan_.offset(i) != before;
      require(in_order && 0 < plan_.offset(i) && plan_.offset(i) < ranks(), "offset ", plan_.offset(i), " of step ", i,
              " follows ", before, " on ", ranks(), " ranks");
      bool wanted = false;
      for (Rank rank = 0; rank < ranks(); ++rank) wanted = wanted || need(rank, owner(rank, i)).visible_pairs > 0;
      // Lanes that halve the rows make all steps of their plan.
      require(wanted || plan_.transport().halves_rows(), "step ", i, " is made, but no rank needs it");
    }
  }

  /// The pairs of a step are those of the ranks that meet in it.
  void check_pairs() const {
    for (Rank rank = 0; rank < ranks(); ++rank)
      for (int i = 0; i < plan_.steps(); ++i) {
        PlannedStep const& step = plan_.step(rank, i);
        require(step.owner == owner(rank, i), at(rank, i), "the owner is ", step.owner, ", expected ", owner(rank, i));
        require(step.visible_pairs == need(rank, step.owner).visible_pairs, at(rank, i), step.visible_pairs,
                " visible pairs are planned, expected ", need(rank, step.owner).visible_pairs);
      }
  }

  /// A rank sends the rows that later steps need, and no others.
  void check_rows() const {
    for (Rank rank = 0; rank < ranks(); ++rank)
      for (int i = 0; i < plan_.steps(); ++i) {
        PlannedStep const& step = plan_.step(rank, i);
        RowRange const held = i == 0 ? whole(rank) : later_needs(step.owner, i);
        require(same(step.held, held), at(rank, i), "rows ", text(step.held), " are held, needed are ", text(held));
        require(same(step.sent, later_needs(step.owner, i + 1)), at(rank, i), "rows ", text(step.sent),
                " are sent, later steps need ", text(later_needs(step.owner, i + 1)));
        if (!plan_.transport().carried.empty() && plan_.transport().carried_hop(i) > 0)
          check_carried_rows(rank, i, reached(rank, plan_.transport().carried_hop(i)));
      }
  }

  void check_bytes() const {
    for (Rank rank = 0; rank < ranks(); ++rank) {
      Index sum = 0;
      for (int i = 0; i < plan_.steps(); ++i) {
        PlannedStep const& step = plan_.step(rank, i);
        // By zero-copy exchange another rank reads rows of this one.
        bool const shows = plan_.request().zero_copy && i + 1 < plan_.steps();
        Index const leaving = shows ? std::max(Index{0}, later_needs(rank, i + 1).size()) : step.sent.size();
        Index const prefetched = leaving * plan_.transport().prefetched.bytes_per_row();
        Index const carried = step.carried.size() * plan_.transport().carried.bytes_per_row();
        require(step.prefetched_bytes == prefetched && step.carried_bytes == carried, at(rank, i), "bytes ",
                step.prefetched_bytes, " and ", step.carried_bytes, " are planned, the rows have ", prefetched, " and ",
                carried);
        sum += prefetched + carried;
      }
      Index shares = ranks() - 1;
      if (plan_.transport().leaves) {
        auto const& grid = plan_.transport().leaves->grid();
        Rank const next = wrap(rank + (plan_.transport().backwards ? -1 : 1));
        shares = grid.count(Side::query) - static_cast<Index>(grid.of_rank(Side::query, next).size());
      }
      if (plan_.request().pass == Pass::backward && !plan_.transport().shares_buffers())
        sum += shares * plan_.transport().sink_shares.bytes_per_row();
      require(plan_.bytes_sent(rank) == sum, "rank ", rank, " sends ", plan_.bytes_sent(rank), " bytes, its steps ",
              sum);
    }
  }

  /// The buffers are exactly as large as the rows that are stored in them.
  void check_buffers() const {
    using annulus::detail::carried_rows;
    using annulus::detail::prefetched_rows;
    for (Rank rank = 0; rank < ranks(); ++rank) {
      Index prefetched = 0;
      std::array<Index, 4> carried{plan_.rotating_rows(rank).size(), 0, 0, 0};
      if (plan_.transport().leaves)
        carried[0] = plan_.transport().leaves->place_rows(rank, annulus::detail::LeafSums::rotating);
      for (int i = 0; i < plan_.steps(); ++i) {
        PlannedStep const& step = plan_.step(rank, i);
        // With zero-copy exchange only the rank's own rows need a buffer.
        if (i == 0 || !plan_.request().zero_copy) prefetched = std::max(prefetched, step.sent.size());
        if (i > 0 && !plan_.request().zero_copy) prefetched = std::max(prefetched, step.held.size());
        carried[3] = std::max(carried[3], step.arriving.size());
        if (plan_.steps() > 1 && (i > 0 || !plan_.transport().direct))
          carried[1] = std::max(carried[1], step.held.size());
      }
      // Two result buffers alternate, unless only one step sends results. Where results travel on with their rows,
      // a rank's own results arrive in these buffers too, so that it has no separate buffer for them.
      if (plan_.steps() > 2 || !plan_.transport().direct) carried[2] = carried[1];
      // With zero-copy exchange results need no arrival buffer; a third result buffer gives the reader a step of time.
      if (plan_.request().zero_copy) carried[3] = plan_.steps() > (plan_.transport().direct ? 3 : 2) ? carried[1] : 0;
      if (plan_.steps() > 1 && !plan_.transport().direct) carried[0] = 0;
      if (plan_.transport().carried.empty()) carried = {};
      require(prefetched_rows(plan_, rank) == prefetched, "rank ", rank, ": prefetched buffers of ",
              prefetched_rows(plan_, rank), " rows, needed are ", prefetched);
      require(carried_rows(plan_, rank) == carried, "rank ", rank, ": carried buffers of ", carried_rows(plan_, rank),
              " rows, needed are ", carried);
    }
  }

 private:
  template <class... Parts>
  static void require(bool condition, Parts const&... parts) {
    annulus::detail::check<annulus::Error>(condition, "plan: ", parts...);
  }
  static std::string at(Rank rank, int step) {
    return annulus::detail::message_of("rank ", rank, ", step ", step, ": ");
  }
  static std::string text(RowRange rows) { return annulus::detail::message_of("[", rows.begin, ", ", rows.end, ")"); }
  static bool same(RowRange a, RowRange b) { return a == b || (a.empty() && b.empty()); }

  int ranks() const { return plan_.ranks(); }
  Rank wrap(int rank) const { return annulus::detail::rank_at(rank, ranks()); }
  /// Ranks of a ring inside which the last digit of an offset counts.
  int inner() const {
    return plan_.request().schedule == annulus::Schedule::double_ring ? plan_.request().ranks_per_group : ranks();
  }
  Rank reached(Rank rank, int offset) const {
    Rank const last = wrap(rank - rank % inner() + offset / inner() * inner());
    return last + (rank % inner() + offset % inner()) % inner();
  }
  Rank owner(Rank rank, int step) const {
    Rank owner = 0;
    while (reached(owner, plan_.offset(step)) != rank) ++owner;
    return owner;
  }
  /// All rows, or the half of a lane.
  RowRange whole(Rank owner) const { return plan_.rotating_rows(owner); }
  Need const& need(Rank visitor, Rank owner) const {
    return needs_[static_cast<std::size_t>(visitor * ranks() + owner)];
  }
  RowRange needed_rows(Rank visitor, Rank owner) const {
    Need const& all = need(visitor, owner);
    return annulus::detail::intersection(plan_.rotation() == Rotation::keys ? all.keys : all.queries, whole(owner));
  }

  /// Rows of `owner` that steps from `first` on need: all of them, if results travel on with their rows.
  RowRange later_needs(Rank owner, int first) const {
    if (first >= plan_.steps()) return {};
    if (!plan_.transport().direct) return whole(owner);
    RowRange rows;
    for (int i = first; i < plan_.steps(); ++i)
      rows = annulus::detail::hull(rows, needed_rows(reached(owner, plan_.offset(i)), owner));
    return rows;
  }

  void check_carried_rows(Rank rank, int index, Rank to) const {
    PlannedStep const& step = plan_.step(rank, index);
    RowRange const wanted = plan_.transport().direct ? needed_rows(rank, step.owner) : whole(step.owner);
    require(same(step.carried, wanted), at(rank, index), "results for rows ", text(step.carried), " leave, expected ",
            text(wanted));
    require(same(plan_.step(to, index).arriving, step.carried), at(rank, index), "results for rows ",
            text(step.carried), " go to rank ", to, ", which expects ", text(plan_.step(to, index).arriving));
  }

  Plan const& plan_;
  std::vector<Need> needs_;
};

/// Throws Error for the first fault found: a step that no rank needs, rows sent that no later step needs, byte counts
/// or buffers that do not match the rows. Plan: RingPlan, or a type with its const member functions. Cost: that of
/// building the plan.
template <class Plan>
void check_least(Plan const& plan) {
  PlanWalk<Plan> const walk(plan);
  walk.check_offsets();
  walk.check_pairs();
  walk.check_rows();
  walk.check_bytes();
  walk.check_buffers();
}

}  // namespace annulus_test
