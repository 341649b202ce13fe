#pragma once
// What the sums of a pass must have seen, found by enumerating all pairs of positions: the reference of check_plan.hpp.
// A sum is described by a number, the sum of the hashes of the rows added to it, so that it does not depend on an order.

#include <array>
#include <cstdint>
#include <ostream>
#include <vector>

#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

/// Names a row of the problem: what it is of, its global position, and the share of the heads, from 1; 0: all heads.
struct RowName {
  enum Kind : std::uint8_t { unknown, query, key, pairs, joint, sinks };

  Kind kind = unknown;
  int share = 0;
  Index position = 0;

  bool operator==(RowName const&) const = default;
  friend std::ostream& operator<<(std::ostream& out, RowName const& name) {
    static constexpr std::array<char const*, 6> words{"no row",          "query ",     "key ",
                                                      "pairs of query ", "joint keys", "sink logits"};
    out << words[name.kind];
    if (name.kind == query || name.kind == key || name.kind == pairs) out << name.position;
    if (name.share > 0) out << " of head share " << name.share;
    return out;
  }
};

/// Rows that a sum has seen.
struct Seen {
  std::uint64_t hashes = 0;  ///< their sum
  std::uint64_t order = 0;   ///< of a reproducible pass: hash of the tree in which partial results were joined
  Index count = 0;

  void add(std::uint64_t hash) {
    hashes += hash;
    ++count;
  }
  /// 0: of sums that have seen nothing, which may be joined at any place of a tree.
  static std::uint64_t order_of(std::uint64_t first, std::uint64_t second);
};

constexpr std::uint64_t hash_of(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}
constexpr std::uint64_t hash_of(RowName::Kind kind, Index position) {
  return hash_of(static_cast<std::uint64_t>(position) << 3 | kind);
}
inline std::uint64_t Seen::order_of(std::uint64_t first, std::uint64_t second) {
  return first == 0 ? second : second == 0 ? first : hash_of(first * 3 + second);
}

/// Positions of the rows of all ranks, and what the sums of each row must have seen at the end.
class ExpectedSums {
 public:
  explicit ExpectedSums(RingPlan const& plan) : plan_(plan), offset_(plan.request().rules.query_offset.value_or(0)) {
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
    if (plan.transport().leaves) {
      auto const& grid = plan.transport().leaves->grid();
      leaf_pairs_.resize(static_cast<std::size_t>(grid.count(Side::query) * grid.count(Side::key)));
    }
    enumerate();
  }

  /// Positions of the rows that a rank owns, and of those that it works on.
  std::vector<Index> const& own(Side side, Rank rank) const { return at(own_[at(side)], rank); }
  std::vector<Index> const& worked(Side side, Rank rank) const { return at(worked_[at(side)], rank); }

  int shares() const { return shares_; }  ///< 0: heads are not split
  /// Share of the heads of the operands of a lane, before an exchange in groups.
  int share_of_lane(int lane) const { return plan_.groups().splits_heads() || shares_ == 0 ? 0 : lane + 1; }
  /// Share of the heads that a rank works on.
  int worked_share(Rank rank, int lane) const {
    return plan_.groups().splits_heads() ? plan_.groups().place(rank) + 1 : share_of_lane(lane);
  }
  /// Factor of the hashes of rows that are added in this share of the heads; 0: in all of them.
  std::uint64_t factor(int share) const {
    if (share > 0 || shares_ == 0) return hash_of(static_cast<std::uint64_t>(share)) | 1;
    std::uint64_t sum = 0;
    for (int one = 1; one <= shares_; ++one) sum += factor(one);
    return sum;
  }

  bool visible(Index query, Index key) const {
    AttentionRules const& rules = plan_.request().rules;
    return rules.mask.visible(query + offset_, key) && rules.block_mask.visible(query + offset_, key);
  }
  Index visible_pairs() const { return visible_pairs_; }

  /// What the sums of the row must have seen.
  Seen of(RowName const& name) const {
    if (name.kind == RowName::sinks) return of_all_queries_;
    Seen seen = of_all_queries_;
    Index const joint_keys = plan_.request().joint_keys;
    if (name.kind == RowName::query) {
      seen = at(of_rows_[0], name.position);
      for (Index j = 0; j < joint_keys; ++j) seen.add(hash_of(RowName::joint, j));
    } else if (name.kind != RowName::joint) {
      seen = at(of_rows_[name.kind == RowName::key], name.position);
    }
    seen.hashes *= factor(name.share);
    if (name.share == 0 && shares_ > 0) seen.count *= shares_;
    if (plan_.transport().leaves && name.kind <= RowName::key) seen.order = order_of(name);
    return seen;
  }
  static std::uint64_t order_of_leaf(Index leaf) { return hash_of(static_cast<std::uint64_t>(leaf)) | 1; }
  /// Hash of the tree in which sums of all leaves of queries are joined.
  std::uint64_t order_over_queries() const {
    LeafGrid const& grid = plan_.transport().leaves->grid();
    return order_of_node({0, grid.root_level(Side::query)}, grid.count(Side::query), [](Index) { return true; });
  }

 private:
  template <class T>
  static T const& at(std::vector<T> const& list, Index i) {
    return list[static_cast<std::size_t>(i)];
  }
  static std::size_t at(Side side) { return side == Side::query ? 0 : 1; }

  void enumerate() {
    for (Index query = 0; query < plan_.global_queries(); ++query) {
      of_all_queries_.add(hash_of(RowName::query, query));
      for (Index key = 0; key < plan_.global_keys(); ++key)
        if (visible(query, key)) add_pair(query, key);
    }
  }
  void add_pair(Index query, Index key) {
    ++visible_pairs_;
    of_rows_[0][static_cast<std::size_t>(query)].add(hash_of(RowName::key, key));
    of_rows_[1][static_cast<std::size_t>(key)].add(hash_of(RowName::query, query));
    if (leaf_pairs_.empty()) return;
    LeafGrid const& grid = plan_.transport().leaves->grid();
    Index const place = query / grid.length() * grid.count(Side::key) + key / grid.length();
    leaf_pairs_[static_cast<std::size_t>(place)] = true;
  }

  /// Nodes without visible pairs take part in no join.
  std::uint64_t order_of(RowName const& name) const {
    LeafGrid const& grid = plan_.transport().leaves->grid();
    bool const query = name.kind == RowName::query;
    Side const other = query ? Side::key : Side::query;
    Index const leaf = name.position / grid.length(), keys = grid.count(Side::key);
    auto const sees = [&](Index seen) {
      return leaf_pairs_[static_cast<std::size_t>(query ? leaf * keys + seen : seen * keys + leaf)];
    };
    return order_of_node({0, grid.root_level(other)}, grid.count(other), sees);
  }
  template <class Sees>
  static std::uint64_t order_of_node(LeafNode node, Index leaves, Sees const& sees) {
    if (node.begin >= leaves) return 0;
    if (node.level == 0) return sees(node.begin) ? order_of_leaf(node.begin) : 0;
    LeafNode const first{node.begin, node.level - 1};
    return Seen::order_of(order_of_node(first, leaves, sees), order_of_node(first.sibling(), leaves, sees));
  }

  RingPlan const& plan_;
  Index offset_;
  int shares_ = 0;
  std::array<std::vector<std::vector<Index>>, 2> own_, worked_;
  std::array<std::vector<Seen>, 2> of_rows_;
  Seen of_all_queries_;
  Index visible_pairs_ = 0;
  std::vector<bool> leaf_pairs_;  ///< [leaf of queries, leaf of keys]
};

}  // namespace annulus::detail
