#pragma once
// Check for finite sums and results: an error names the rank and step that computed them, and the rank that owns the
// rows.

#include <cmath>
#include <string>
#include <string_view>

#include "annulus/core/error.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// Origin of the checked results: the rank and step that computed them, and the rank that owns the rows.
struct ResultPlace {
  Rank rank;
  int step;
  Rank owner;
  Index first_head = 0;                ///< number of head 0 of the results
  RankGroups const* groups = nullptr;  ///< set if the rows are those of the owner's group
  Side side = Side::query;             ///< of these rows

  /// Of rows and heads of a side that a rank of the plan works on: its own rows or those of its group.
  ResultPlace of_rows(RingPlan const& plan, Side of_side) const {
    RankGroups const& all = plan.groups();
    Index const of_place = all.first_head(rank) / (of_side == Side::key ? plan.shape().group() : 1);
    Index const of_lane = (of_side == Side::key ? plan.kv_heads() : plan.query_heads()).begin;
    return {rank, step, owner, of_place + of_lane, all.gathers(of_side) ? &all : nullptr, of_side};
  }
  /// The same place with the rank that owns `row`, which is counted from the first one of that rank then.
  ResultPlace of_owner(Index& row) const {
    if (!groups) return *this;
    for (int member = 0;; ++member) {
      RowRange const rows = groups->member_rows(side, owner, member);
      if (row >= rows.end) continue;
      row -= rows.begin;
      return {rank, step, groups->member(owner, member), first_head};
    }
  }
  /// "rank 0, step 1 of the ring: dq of rank 2 has the value nan in batch 0, row 3, head 4": row counted as of_owner
  /// says.
  std::string text(std::string_view name, double value, Index batch, Index row, Index head) const {
    ResultPlace const place = of_owner(row);
    return message_of("rank ", rank, ", step ", step, " of the ring: ", name, " of rank ", place.owner,
                      " has the value ", value, " in batch ", batch, ", row ", row, ", head ", first_head + head);
  }
};

/// Throws Error for the first row of `values`, [batch, rows, heads, dim], that holds a NaN or an infinity. `first_row`:
/// index of row 0 of `values` among the owner's local rows.
template <class T>
void require_finite(std::string_view name, TensorView<T, 4> values, Index first_row, ResultPlace const& place) {
  for (Index b = 0; b < values.extent(axis::batch); ++b)
    for (Index i = 0; i < values.extent(axis::sequence); ++i)
      for (Index h = 0; h < values.extent(axis::heads); ++h)
        for (Index d = 0; d < values.extent(axis::dim); ++d)
          if (auto const value = static_cast<double>(values(b, i, h, d)); !std::isfinite(value))
            throw Error(
                message_of(place.text(name, value, b, first_row + i, h), ", dim ", d, "; required: finite values"));
}

/// As above for row statistics, [batch, heads, rows]; accepts -inf, the lse and maximum of a row that has seen no key.
template <class T>
void require_finite(std::string_view name, TensorView<T, 3> values, Index first_row, ResultPlace const& place) {
  for (Index b = 0; b < values.extent(0); ++b)
    for (Index i = 0; i < values.extent(2); ++i)
      for (Index h = 0; h < values.extent(1); ++h)
        if (auto const value = static_cast<double>(values(b, h, i)); !std::isfinite(value) && !(value < 0))
          throw Error(message_of(place.text(name, value, b, first_row + i, h),
                                 "; required: finite values, or -inf for a row that sees no key"));
}

}  // namespace annulus::detail
