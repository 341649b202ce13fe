#pragma once
// Merge plan: the exchanges by which every rank gets the merged state of query rows that all ranks hold, each having
// attended to its own keys. A plan needs no data, and every rank computes the same plan.

#include <bit>
#include <string_view>

#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/schedule/link_rates.hpp"

namespace annulus {

/// The way in which partial states are merged. All give the same bits, because they merge in the same order.
enum class MergeMethod {
  automatic,  ///< the one that takes less time by the link's rates
  tree,       ///< pairs of ranks exchange states, then pairs of pairs: log2(ranks) rounds, two more if no power of two
  gather,     ///< each rank sends its state to all others: one round
};

constexpr std::string_view name_of(MergeMethod method) {
  return method == MergeMethod::automatic ? "automatic" : method == MergeMethod::tree ? "tree" : "gather";
}

/// A link of which nothing is known: of a local network.
inline constexpr LinkRates usual_link{.latency = 2e-5, .bandwidth = 4e9};

/// The merge of one state for each rank. The bytes do not depend on the number of keys.
class MergePlan {
 public:
  MergePlan() = default;  ///< for one rank, which sends nothing
  /// `state_bytes`: of one rank's state. Throws UnsupportedError for rates that are not positive numbers.
  MergePlan(int ranks, Index state_bytes, MergeMethod asked = MergeMethod::automatic,
            LinkRates const& rates = usual_link)
      : ranks_(ranks), state_bytes_(state_bytes), rates_(rates) {
    detail::require_rates(rates);
    method_ = asked;
    if (asked == MergeMethod::automatic)
      method_ = seconds(MergeMethod::tree) < seconds(MergeMethod::gather) ? MergeMethod::tree : MergeMethod::gather;
  }

  int ranks() const { return ranks_; }                ///< of the ring
  Index state_bytes() const { return state_bytes_; }  ///< of one rank's state
  MergeMethod method() const { return method_; }      ///< tree or gather, never automatic

  /// Exchanges that wait for each other.
  int rounds() const { return rounds(method_); }
  /// The same for another method.
  int rounds(MergeMethod method) const {
    if (ranks_ == 1) return 0;
    return method == MergeMethod::gather ? 1 : doublings() + (excess() > 0 ? 2 : 0);
  }
  /// Bytes that a rank sends, excluding checksums and the small records that validate a call.
  Index bytes_sent(Rank rank) const {
    if (ranks_ == 1) return 0;
    if (method_ == MergeMethod::gather) return (ranks_ - 1) * state_bytes_;
    return (rank < paired() ? doublings() + (rank < excess() ? 1 : 0) : 1) * state_bytes_;
  }
  /// Estimated time of a method.
  double seconds(MergeMethod method) const {
    if (method == MergeMethod::gather) return rounds(method) * rates_.seconds((ranks_ - 1) * state_bytes_);
    return rounds(method) * rates_.seconds(state_bytes_);
  }

  /// The largest power of two of ranks. These exchange in pairs; each of the excess() others first gives its state to
  /// rank - paired(), and receives the result from it in the end.
  int paired() const { return static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks_))); }
  int excess() const { return ranks_ - paired(); }                                       ///< see paired()
  int doublings() const { return std::bit_width(static_cast<unsigned>(paired())) - 1; }  ///< rounds among the pairs

  /// Calls merge(into, from), ranks, for each merge of two states in the order that defines the bits of the result,
  /// which is that of rank 0 in the end.
  template <class Merge>
  void for_each_merge(Merge&& merge) const {
    for (Rank rank = 0; rank < excess(); ++rank) merge(rank, rank + paired());
    for (int distance = 1; distance < paired(); distance *= 2)
      for (Rank rank = 0; rank < paired(); rank += 2 * distance) merge(rank, rank + distance);
  }

 private:
  int ranks_ = 1;
  Index state_bytes_ = 0;
  LinkRates rates_ = usual_link;
  MergeMethod method_ = MergeMethod::gather;
};

}  // namespace annulus
