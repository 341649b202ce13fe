#pragma once
// Rows of slots on the abstract machine of check_plan.hpp, and exchanges of them between ranks. Rows hold names in
// place of data, and know when they may be read and written.

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <ostream>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/schedule/action.hpp"

namespace annulus::detail::checker {

struct PlanFault : Error {
  using Error::Error;
};
template <class... Parts>
void require(bool condition, Parts const&... parts) {
  check<PlanFault>(condition, parts...);
}

/// The element of a list with that number.
template <class List>
auto& at(List& list, Index number) {
  return list[static_cast<std::size_t>(number)];
}

/// Names a row of the problem: what it is of, the share of the heads, from 1 (0: all heads), and its global position.
struct RowName {
  enum Kind : std::uint8_t { unknown, query, key, pairs, joint, sinks };

  Kind kind = unknown;
  int share = 0;
  Index position = 0;

  auto operator<=>(RowName const&) const = default;
  friend std::ostream& operator<<(std::ostream& out, RowName const& name) {
    static constexpr std::array words{"no row", "query ", "key ", "pairs of query ", "joint keys", "sink logits"};
    out << words[name.kind];
    if (name.kind == query || name.kind == key || name.kind == pairs) out << name.position;
    if (name.share > 0) out << " of head share " << name.share;
    return out;
  }
};
using RowNames = std::vector<RowName>;

/// Names of some of the rows at these positions; unknown where there is no such row.
inline RowNames names_of(RowName::Kind kind, int share, std::vector<Index> const& positions, RowRange rows) {
  RowNames names;
  for (Index row = rows.begin; row < rows.end; ++row)
    names.push_back(0 <= row && row < std::ssize(positions) ? RowName{kind, share, at(positions, row)} : RowName{});
  return names;
}
inline RowNames names_of(RowName::Kind kind, int share, std::vector<Index> const& positions) {
  return names_of(kind, share, positions, {0, std::ssize(positions)});
}
inline void require_count(std::size_t rows, std::size_t expected) {
  require(rows == expected, rows, " rows, expected ", expected);
}
inline void require_names(RowNames const& found, RowNames const& expected, char const* verb = "reads") {
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i)
    require(found[i] == expected[i], verb, " ", found[i], ", expected ", expected[i]);
  require_count(found.size(), expected.size());
}

constexpr std::uint64_t hash_of(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// Rows that a sum has seen: the sum of their hashes, which does not depend on an order.
struct Seen {
  std::uint64_t hashes = 0;
  std::uint64_t order = 0;  ///< hash of the tree in which partial results were joined, where that is fixed
  Index count = 0;

  void add(RowName const& name) {
    hashes += hash_of(static_cast<std::uint64_t>(name.position) << 16 | static_cast<std::uint64_t>(name.share) << 3 |
                      name.kind);
    ++count;
  }
  /// 0: of sums that have seen nothing, which may be joined at any place of a tree.
  static constexpr std::uint64_t order_of(std::uint64_t first, std::uint64_t second) {
    return first == 0 ? second : second == 0 ? first : hash_of(first * 3 + second);
  }
  static constexpr std::uint64_t order_of_leaf(Index leaf) { return hash_of(static_cast<std::uint64_t>(leaf)) | 1; }
};

/// What a row of a slot, or a checksum, holds.
struct Content {
  enum Kind : std::uint8_t { nothing, row, sums };

  Kind kind = nothing;
  RowName name{};                   ///< sums: unknown until rows are added
  Seen seen{};                      ///< by the sums
  bool closed = false;              ///< results of the sums may have been written
  bool used = false;                ///< since the last addition
  Shift const* checksum = nullptr;  ///< of a checksum: the exchange that computes or receives it

  bool is_unused_sum() const { return kind == sums && !used && seen.count > 0; }
};

/// A row of a slot, or one of its checksums.
struct SlotRow {
  bool shared = false;    ///< other ranks may read it through windows
  bool arriving = false;  ///< an exchange writes it
  int sent = 0;           ///< exchanges that send it
  Content held{};

  Content& read(char const* verb = "reads") {
    require(!arriving, "reads rows that have not been awaited");
    require(held.kind != Content::nothing, "reads rows to which nothing has been written");
    require(!held.closed, verb, " sums that have been closed");
    held.used = true;
    return held;
  }
  Content& read_sums() {
    require(read().kind == Content::sums, "reads sums where there are none");
    return held;
  }
  void require_unlocked() const {
    char const* const what = held.checksum ? "checksums" : "rows";
    require(sent == 0, "overwrites ", what, " that are being sent");
    require(!arriving, "overwrites ", what, " that are to arrive");
    require(!shared, "overwrites ", what, " that other ranks may read: the slot has not been reclaimed");
  }
  void put(Content const& content) {
    require_unlocked();
    require(!held.is_unused_sum(), "overwrites sums of ", held.name, " that nothing has used");
    held = content;
    held.used = false;
  }
  void add(RowName const& name, Seen const& seen) {
    require_unlocked();
    require(held.kind == Content::sums, "adds to rows in which no sums have been opened");
    require(!held.closed, "adds to sums that have been closed");
    require_sums_of(name);
    if (name != RowName{}) held.name = name;
    held.seen.hashes += seen.hashes;
    held.seen.count += seen.count;
    held.seen.order = Seen::order_of(held.seen.order, seen.order);
    held.used = false;
  }
  /// Reads complete sums, which may be closed.
  void finish(RowName const& name, Seen const& expected) {
    held.closed = false;
    Seen const& seen = read_sums().seen;
    require_sums_of(name);
    require(seen.count == expected.count, "sums of ", name, " have seen ", seen.count, " rows, expected ",
            expected.count);
    require(seen.hashes == expected.hashes, "sums of ", name, " have seen other rows than they must");
    require(seen.order == expected.order, "sums of ", name, " are not joined in the order of the tree");
  }
  void require_sums_of(RowName const& name) const {
    bool const same = name == RowName{} || held.name == RowName{} || held.name == name;
    require(same, "adds ", name, " to sums of ", held.name);
  }
};

/// One rank's side of an exchange.
struct Posting {
  Shift const* shift = nullptr;  ///< null: not started
  int lane = 0;
  Slot const *out = nullptr, *in = nullptr;
  std::vector<SlotRow*> leaving{}, arriving{};
  std::vector<Content> sent{};             ///< what the rows that leave held at the start
  bool awaited = false, released = false;  ///< by the reader
};

/// An exchange that all ranks start, with the same hop.
struct Exchange {
  bool window = false;
  int hop = 0;
  std::vector<Posting> postings{};  ///< by rank

  Posting& of(Rank rank) { return at(postings, rank_at(rank, static_cast<int>(postings.size()))); }
  Posting& reader(Rank rank) { return of(rank + hop); }
  Posting& sender(Rank rank) { return of(rank - hop); }
  /// The peers of the rank have started their sides.
  bool can_end(Rank rank) { return sender(rank).shift && (window || reader(rank).shift); }
};

/// Compares what a rank sends with what its peer expects, if both have started.
inline void compare(Posting const& from, Posting const& to) {
  if (!from.shift || !to.shift) return;
  require(!from.out == !to.in, "one of the two ranks sends no rows, or expects none");
  if (!from.out) return;
  Index const sent = from.shift->out.rows.size(), expected = to.shift->in.rows.size();
  require(sent == expected, sent, " rows are sent, ", expected, " are expected");
  PayloadLayout const &leaving = from.out->layout, &arriving = to.in->layout;
  auto const same_part = [](PartLayout const& one, PartLayout const& other) {
    return one.part == other.part && one.row_bytes() == other.row_bytes();
  };
  bool const same =
      std::equal(leaving.parts.begin(), leaving.parts.end(), arriving.parts.begin(), arriving.parts.end(), same_part);
  require(same && leaving.checksums == arriving.checksums && from.out->nodes == to.in->nodes,
          "other parts are sent than are expected");
  int const code = from.shift->leaving_code, expected_code = to.shift->arriving_code;
  require(code == expected_code && from.lane == to.lane, "the checksum is of exchange ", code, " of lane ", from.lane,
          ", expected is that of exchange ", expected_code, " of lane ", to.lane);
}

}  // namespace annulus::detail::checker
