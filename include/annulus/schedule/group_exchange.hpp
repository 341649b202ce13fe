#pragma once
// What the ranks of a group exchange before and after the rings between the groups: layouts, bytes and buffers.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "annulus/schedule/payload_layout.hpp"
#include "annulus/schedule/rank_groups.hpp"

namespace annulus {

/// Kinds of rows that ranks of a group exchange.
enum class GroupRows : std::uint8_t {
  queries,  ///< q and what the backward pass knows of it, or results of queries
  keys,     ///< k and v, or their gradients
  pairs,    ///< of queries, with an element for each key: bias and boolean mask, or the gradient of the bias
};

/// The side whose ranks own the rows.
constexpr Side side_of(GroupRows rows) { return rows == GroupRows::keys ? Side::key : Side::query; }

/// The exchanges of all groups. A layout without parts: rows of that kind are not exchanged.
class GroupExchange {
 public:
  static constexpr std::array all{GroupRows::queries, GroupRows::keys, GroupRows::pairs};  ///< kinds of rows

  GroupExchange() = default;
  /// Exchanges of these groups, of nothing at first.
  explicit GroupExchange(RankGroups groups) : groups_(std::move(groups)) {}

  RankGroups const& groups() const { return groups_; }  ///< that exchange them
  /// Layout of the operands that are exchanged before the rings.
  PayloadLayout& before(GroupRows rows) { return before_[static_cast<std::size_t>(rows)]; }
  /// The same.
  PayloadLayout const& before(GroupRows rows) const { return before_[static_cast<std::size_t>(rows)]; }
  /// Layout of the results that are sent to the owners of their rows after the rings.
  PayloadLayout& after(GroupRows rows) { return after_[static_cast<std::size_t>(rows)]; }
  /// The same.
  PayloadLayout const& after(GroupRows rows) const { return after_[static_cast<std::size_t>(rows)]; }

  /// Rows of the buffer of operands of the group.
  Index gathered_rows(GroupRows rows, Rank rank) const { return groups_.rows(side_of(rows), rank); }
  /// Rows of the buffer of results for the whole group; 0: the pass has them in a buffer of its own.
  Index result_rows(GroupRows rows, Rank rank) const {
    return groups_.splits_heads() && rows != GroupRows::pairs ? groups_.rows(side_of(rows), rank) : 0;
  }
  /// Rows of the buffer of what leaves for the other ranks of the group before the rings; 0: that is in place.
  Index leaving_rows(GroupRows rows, Rank rank) const { return groups_.splits_heads() ? arriving_rows(rows, rank) : 0; }
  /// Rows of the buffer, the same one, of what arrives from them after the rings.
  Index arriving_rows(GroupRows rows, Rank rank) const {
    return (groups_.size() - 1) * groups_.own_rows(side_of(rows), rank);
  }

  /// Bytes that the rank sends to each other rank of its group before the rings, without checksums.
  Index bytes_before(Rank rank) const {
    Index bytes = 0;
    for (GroupRows rows : all) bytes += groups_.own_rows(side_of(rows), rank) * before(rows).bytes_per_row();
    return bytes;
  }
  /// Bytes that it sends to a member of its group after the rings.
  Index bytes_after(Rank rank, int member) const {
    Index bytes = 0;
    for (GroupRows rows : all)
      bytes += groups_.member_rows(side_of(rows), rank, member).size() * after(rows).bytes_per_row();
    return bytes;
  }
  /// Bytes that it sends to the other ranks of its group in all.
  Index bytes_sent(Rank rank) const {
    Index bytes = (groups_.size() - 1) * bytes_before(rank);
    for (int member = 0; member < groups_.size(); ++member)
      if (member != groups_.place(rank)) bytes += bytes_after(rank, member);
    return bytes;
  }
  /// Bytes of the buffers of the rank.
  Index buffer_bytes(Rank rank) const {
    Index bytes = 0;
    for (GroupRows rows : all)
      bytes += before(rows).buffer_bytes(gathered_rows(rows, rank)) +
               after(rows).buffer_bytes(result_rows(rows, rank)) +
               std::max(before(rows).buffer_bytes(leaving_rows(rows, rank)),
                        after(rows).buffer_bytes(arriving_rows(rows, rank)));
    return bytes;
  }

 private:
  RankGroups groups_;
  std::array<PayloadLayout, 3> before_{}, after_{};
};

}  // namespace annulus
