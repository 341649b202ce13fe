#pragma once
// Groups of consecutive ranks, which exchange rows before and after the ring between the groups.

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/schedule/plan_request.hpp"

namespace annulus {

/// The groups of a plan, and the rows and heads that a rank works on. The ranks with the same place in their groups
/// form a ring. In schedules without groups every rank is one.
class RankGroups {
 public:
  RankGroups() = default;
  /// `size`: ranks of a group, one of group_sizes(). `rotation`: the side that travels around the rings.
  RankGroups(PlanRequest const& request, int size, Rotation rotation);

  bool operator==(RankGroups const&) const = default;

  int size() const { return size_; }                   ///< ranks of a group
  int place(Rank rank) const { return rank % size_; }  ///< of a rank in its group
  /// The rank with that place in the group of `rank`.
  Rank member(Rank rank, int place) const { return rank - this->place(rank) + place; }

  /// True if a rank works on the rows of all ranks of its group, instead of its own.
  bool gathers(Side side) const { return gathers_[static_cast<std::size_t>(side)]; }
  /// True if it then has a share of the heads: all-to-all exchanges instead of gathers and sums.
  bool splits_heads() const { return splits_heads_; }
  /// True if the ranks of a group have partial results of the rows that they gather.
  bool joins_results() const { return (gathers(Side::query) || gathers(Side::key)) && !splits_heads_; }

  AttentionShape const& shape() const { return shape_; }  ///< heads of the rings
  /// The caller's number of the first query head that the rank works on.
  Index first_head(Rank rank) const { return splits_heads_ ? place(rank) * shape_.query_heads : 0; }

  /// Number of rows that the rank owns.
  Index own_rows(Side side, Rank rank) const { return lengths(side)[static_cast<std::size_t>(rank)]; }
  /// Number of rows that the rank works on: its own, or those of its group.
  Index rows(Side side, Rank rank) const {
    return gathers(side) ? rows_before(side, rank, size_) : own_rows(side, rank);
  }
  /// Rows of a member of the group of `rank` among those that its ranks gather.
  RowRange member_rows(Side side, Rank rank, int place) const {
    return {rows_before(side, rank, place), rows_before(side, rank, place + 1)};
  }
  /// The queries whose pairs with joint keys the rank computes, among those that it works on: its own where other
  /// members have partial results of the same ones, else all.
  RowRange joint_queries(Rank rank) const {
    bool const shared = gathers(Side::query) && joins_results();
    return shared ? member_rows(Side::query, rank, place(rank)) : RowRange{0, rows(Side::query, rank)};
  }

 private:
  std::vector<Index> const& lengths(Side side) const { return lengths_[static_cast<std::size_t>(side)]; }
  /// Rows of the first members of the group of `rank`.
  Index rows_before(Side side, Rank rank, int members) const {
    auto const first = lengths(side).begin() + member(rank, 0);
    return std::accumulate(first, first + members, Index{0});
  }

  int size_ = 1;
  std::array<std::vector<Index>, 2> lengths_{};  ///< of all ranks, by side
  std::array<bool, 2> gathers_{};
  bool splits_heads_ = false;
  AttentionShape shape_{};
};

namespace detail {

/// The group sizes to choose from: PlanRequest::ranks_per_group, or all that the schedule accepts if it is 0; those of
/// two_levels then consist of ranks that are near each other. Throws UnsupportedError if the schedule does not accept
/// the one that is asked for.
std::vector<int> group_sizes(PlanRequest const& request);

}  // namespace detail

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE RankGroups::RankGroups(PlanRequest const& request, int size, Rotation rotation)
    : size_(size), lengths_{request.query_lengths, request.key_lengths}, shape_(request.shape) {
  if (size == 1) return;
  splits_heads_ = request.schedule == Schedule::two_levels;
  gathers_ = {splits_heads_ || rotation == Rotation::keys, splits_heads_ || rotation == Rotation::queries};
  if (splits_heads_) {
    shape_.query_heads /= size;
    shape_.kv_heads /= size;
  }
}

namespace detail {

ANNULUS_INLINE std::vector<int> group_sizes(PlanRequest const& request) {
  check<UnsupportedError>(request.schedule != Schedule::automatic,
                          "a plan of schedule automatic; accepted: the schedule that best_plan chooses");
  int const ranks = static_cast<int>(request.query_lengths.size());
  AttentionShape const& s = request.shape;
  std::vector<int> accepted;
  for (int size = 1; size <= ranks; ++size) {
    bool fits = ranks % size == 0;
    if (!has_groups(request.schedule)) fits = size == 1;
    if (request.schedule == Schedule::two_levels) fits = fits && s.query_heads % size == 0 && s.kv_heads % size == 0;
    if (request.schedule == Schedule::two_levels && request.ranks_per_group == 0 && request.near > 1)
      fits = fits && request.near % size == 0;
    if (request.schedule == Schedule::all_gather) fits = size == ranks;
    if (fits) accepted.push_back(size);
  }
  if (request.schedule == Schedule::double_ring) {
    check<UnsupportedError>(request.ranks_per_group > 0 && ranks % request.ranks_per_group == 0,
                            "schedule double ring with groups of ", request.ranks_per_group, " ranks, on ", ranks,
                            " ranks; accepted: a divisor of the ranks, the number of consecutive ranks that are near");
    return {1};
  }
  if (request.ranks_per_group == 0) return accepted;
  bool const splits = request.schedule == Schedule::two_levels;
  check<UnsupportedError>(std::find(accepted.begin(), accepted.end(), request.ranks_per_group) != accepted.end(),
                          "schedule ", words_of(request.schedule), " with groups of ", request.ranks_per_group,
                          " ranks, on ", ranks, " ranks with ", s.query_heads, " query heads and ", s.kv_heads,
                          " kv heads; accepted: ", accepted,
                          splits ? ", which divide the ranks and both numbers of heads" : "",
                          ", or 0 for the one that sends the fewest bytes");
  return {request.ranks_per_group};
}

}  // namespace detail

#endif

}  // namespace annulus
