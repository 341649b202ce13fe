#pragma once
// Offsets from rank to rank, on a ring and on a double ring, where an offset counts groups and places in a group.

#include "annulus/core/index.hpp"

namespace annulus {

/// Offsets 0 .. ranks - 1 between the ranks of a ring. On a double ring of inner rings of n consecutive ranks, offset
/// o * n + i leads o groups on and i places on in the ring of the group, so that the distance in ranks depends on the
/// rank. A plain ring is one inner ring of all ranks: offset d leads d ranks on.
class RankOffsets {
 public:
  RankOffsets() = default;
  /// `inner`: ranks of an inner ring, which divides the ranks.
  RankOffsets(int ranks, int inner) : ranks_(ranks), inner_(inner) {}

  int inner() const { return inner_; }  ///< ranks of an inner ring

  /// The rank to which the offset leads from `rank`.
  Rank forward(Rank rank, int offset) const {
    return (rank / inner_ + offset / inner_) % groups() * inner_ + (rank + offset) % inner_;
  }
  /// The rank from which the offset leads to `rank`.
  Rank backward(Rank rank, int offset) const { return forward(rank, between(offset, 0)); }
  /// The offset that leads on from where `from` leads to where `to` leads.
  int between(int from, int to) const {
    return detail::rank_at(to / inner_ - from / inner_, groups()) * inner_ + detail::rank_at(to - from, inner_);
  }
  /// Distance in ranks, 0 .. ranks - 1, from `rank` to where the offset leads.
  int distance(Rank rank, int offset) const { return detail::rank_at(forward(rank, offset) - rank, ranks_); }

 private:
  int groups() const { return ranks_ / inner_; }

  int ranks_ = 1, inner_ = 1;
};

}  // namespace annulus
