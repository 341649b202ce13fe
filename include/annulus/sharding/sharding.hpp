#pragma once
// Sharding: the assignment of sequence positions to ranks (contiguous, striped, zigzag or explicit), as one value type
// for all kinds.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/core/digest.hpp"
#include "annulus/core/error.hpp"
#include "annulus/sharding/segment.hpp"

namespace annulus {

namespace detail {

/// Takes any parts of a text.
struct AnyText {
  template <class... Parts>
  void operator()(Parts const&...) const {}
};

}  // namespace detail

/// What a kind of sharding must define. Sharding checks ranks and lengths before it calls lengths() and segments().
template <class K>
concept ShardingKind = std::equality_comparable<K> &&
    requires(K const& kind, std::uint64_t hash, Side side, Rank rank, int ranks, Index global,
             std::span<Index const> lengths) {
  { K::kind } -> std::convertible_to<std::string_view>;
  /// True if the ranks may hold any numbers of rows; else they must hold those that lengths() returns.
  { K::any_lengths } -> std::convertible_to<bool>;
  /// Calls write(part, ...) once with the text of the kind and its parameters, of which errors show 31 characters.
  /// `hash` is the fingerprint of the sharding, to be shown for parameters that are too long.
  kind.describe(hash, detail::AnyText{});
  /// Hash of the parameters, begun with `hash`.
  { kind.digest(hash) } -> std::same_as<std::uint64_t>;
  /// Number of rows of a sequence of `global` positions that each rank owns.
  { kind.lengths(side, ranks, global) } -> std::same_as<std::vector<Index>>;
  /// Segments that `rank` owns if the ranks hold `lengths` rows.
  { kind.segments(side, rank, lengths) } -> std::same_as<std::vector<Segment>>;
};

/// Each rank owns one block of the sequence; blocks are in rank order and may have any lengths, including 0.
struct Contiguous {
  static constexpr std::string_view kind = "contiguous";
  static constexpr bool any_lengths = true;

  bool operator==(Contiguous const&) const = default;

  /// Writes the name.
  template <class Write>
  void describe(std::uint64_t, Write&& write) const {
    write(kind);
  }
  std::uint64_t digest(std::uint64_t seed) const { return seed; }

  /// Near-equal blocks: the first global % ranks ranks own one position more.
  std::vector<Index> lengths(Side, int ranks, Index global) const {
    std::vector<Index> result(static_cast<std::size_t>(ranks), global / ranks);
    for (std::size_t r = 0; r < static_cast<std::size_t>(global % ranks); ++r) ++result[r];
    return result;
  }

  std::vector<Segment> segments(Side, Rank rank, std::span<Index const> lengths) const {
    Index const begin = std::accumulate(lengths.begin(), lengths.begin() + rank, Index{0});
    std::vector<Segment> result;
    detail::append_segment(result, lengths[static_cast<std::size_t>(rank)], begin, 1);
    return result;
  }
};

/// Blocks of `block` positions are assigned round-robin; with block 1 rank r owns r, r + ranks, r + 2 ranks, ...
/// Striped Attention: Brandon et al., arXiv 2311.09431.
struct Striped {
  static constexpr std::string_view kind = "striped";
  static constexpr bool any_lengths = false;

  Index block = 1;  ///< positions of a block

  bool operator==(Striped const&) const = default;

  /// Writes the name, with the block if it is not 1.
  template <class Write>
  void describe(std::uint64_t, Write&& write) const {
    block > 1 ? write("block-striped(", block, ")") : write(kind);
  }
  std::uint64_t digest(std::uint64_t seed) const {
    return detail::digest_of(std::as_bytes(std::span(&block, 1)), seed);
  }

  std::vector<Index> lengths(Side, int ranks, Index global) const {
    std::vector<Index> result;
    Index const rows = clamped_block(global), rounds = global / rows / ranks, rest = global - rounds * ranks * rows;
    for (Rank r = 0; r < ranks; ++r)
      result.push_back(rounds * rows + std::clamp(rest - detail::saturating_product(r, rows), Index{0}, rows));
    return result;
  }

  std::vector<Segment> segments(Side, Rank rank, std::span<Index const> lengths) const {
    auto const ranks = static_cast<Index>(lengths.size());
    Index const rows = clamped_block(std::accumulate(lengths.begin(), lengths.end(), Index{0}));
    Index remaining = lengths[static_cast<std::size_t>(rank)];
    std::vector<Segment> result;
    if (rows == 1) {
      detail::append_segment(result, remaining, rank, ranks);
      return result;
    }
    // Saturated begins are those of no rows.
    Index const round = detail::saturating_product(rows, ranks);
    for (Index begin = detail::saturating_product(rank, rows); remaining > 0;
         begin = detail::saturating_sum(begin, round)) {
      detail::append_segment(result, std::min(rows, remaining), begin, 1);
      remaining -= std::min(rows, remaining);
    }
    return result;
  }

 private:
  /// Block length clamped to the sequence: the assignment is the same.
  Index clamped_block(Index global) const { return std::min(block, std::max(global, Index{1})); }
};

/// The sequence is cut into 2 * ranks blocks; rank r owns blocks r and 2 * ranks - 1 - r, so that all ranks have the
/// same causal work. If the length is not a multiple of 2 * ranks, the first blocks are one position longer.
struct Zigzag {
  static constexpr std::string_view kind = "zigzag";
  static constexpr bool any_lengths = false;

  bool operator==(Zigzag const&) const = default;

  /// Writes the name.
  template <class Write>
  void describe(std::uint64_t, Write&& write) const {
    write(kind);
  }
  std::uint64_t digest(std::uint64_t seed) const { return seed; }

  std::vector<Index> lengths(Side, int ranks, Index global) const {
    std::vector<Index> result;
    for (Rank r = 0; r < ranks; ++r)
      result.push_back(block_length(r, ranks, global) + block_length(2 * ranks - 1 - r, ranks, global));
    return result;
  }

  std::vector<Segment> segments(Side, Rank rank, std::span<Index const> lengths) const {
    int const ranks = static_cast<int>(lengths.size());
    Index const global = std::accumulate(lengths.begin(), lengths.end(), Index{0});
    std::vector<Segment> result;
    for (int block : {rank, 2 * ranks - 1 - rank})
      detail::append_segment(result, block_length(block, ranks, global), block_begin(block, ranks, global), 1);
    return result;
  }

 private:
  static Index block_length(int block, int ranks, Index global) {
    return global / (2 * ranks) + (block < global % (2 * ranks) ? 1 : 0);
  }
  static Index block_begin(int block, int ranks, Index global) {
    return block * (global / (2 * ranks)) + std::min<Index>(block, global % (2 * ranks));
  }
};

/// Any position on any rank, in any order: queries[rank][row] is a global position. Keys are placed like the queries
/// unless `keys` is given. Together the ranks must own every position in [0, length) exactly once.
struct ExplicitMap {
  static constexpr std::string_view kind = "explicit";
  static constexpr bool any_lengths = false;

  std::vector<std::vector<Index>> queries;  ///< [rank][row], global positions of the queries
  std::vector<std::vector<Index>> keys;     ///< the same of the keys; empty: as the queries

  bool operator==(ExplicitMap const&) const = default;

  /// Writes the name with the last digits of the fingerprint.
  template <class Write>
  void describe(std::uint64_t fingerprint, Write&& write) const {
    write(kind, " #", fingerprint % 1000000);
  }
  std::uint64_t digest(std::uint64_t seed) const {
    for (auto const* side : {&queries, &keys}) {
      for (auto const& rank : *side) seed = detail::digest_of(std::as_bytes(std::span(rank)), seed);
      seed = ~seed;  // separates the last rank of the queries from the first of the keys
    }
    return seed;
  }

  /// Global positions of one side, [rank][row].
  std::vector<std::vector<Index>> const& positions(Side side) const {
    return side == Side::key && !keys.empty() ? keys : queries;
  }

  /// Rows of every rank. Throws as check_partition does.
  std::vector<Index> lengths(Side side, int ranks, Index global) const {
    check_partition(side, ranks, global);
    std::vector<Index> result;
    for (auto const& rank : positions(side)) result.push_back(static_cast<Index>(rank.size()));
    return result;
  }

  std::vector<Segment> segments(Side side, Rank rank, std::span<Index const>) const {
    return detail::segments_of(positions(side)[static_cast<std::size_t>(rank)]);
  }

  /// Throws ShapeError unless the map has `ranks` ranks that own every position in [0, global) exactly once.
  void check_partition(Side side, int ranks, Index global) const {
    char const* const what = side == Side::query ? "queries" : "keys";
    auto const& map = positions(side);
    detail::check<ShapeError>(static_cast<int>(map.size()) == ranks, "explicit sharding of ", what, ": the map has ",
                              map.size(), " ranks, the ring has ", ranks);
    Index total = 0;
    for (auto const& rank : map)
      for (Index position : rank) {
        detail::check<ShapeError>(position >= 0 && position < global, "explicit sharding of ", what, ": position ",
                                  position, " is outside [0, ", global, ")");
        ++total;
      }
    // Checked before memory is allocated for every position: the length may be one that no map has.
    detail::check<ShapeError>(total >= global, "explicit sharding of ", what, ": ", total, " of ", global,
                              " positions are owned; each must be owned once");
    std::vector<char> owned(static_cast<std::size_t>(global), 0);
    for (auto const& rank : map)
      for (Index position : rank)
        detail::check<ShapeError>(!std::exchange(owned[static_cast<std::size_t>(position)], 1), "explicit sharding of ",
                                  what, ": position ", position, " is owned twice");
  }
};

/// One of Contiguous{} (default), Striped{.block = n} (throws UnsupportedError if n < 1), Zigzag{} or ExplicitMap{...}.
/// A new kind satisfies ShardingKind, and has a constructor and an alternative of the variant here.
class Sharding {
 public:
  Sharding() = default;                       ///< contiguous
  Sharding(Contiguous kind) : kind_(kind) {}  ///< any lengths
  /// Throws UnsupportedError if the block is less than 1.
  Sharding(Striped kind) : kind_(kind) {
    detail::check<UnsupportedError>(kind.block >= 1, "striped sharding: block is ", kind.block,
                                    "; it must be at least 1");
  }
  Sharding(Zigzag kind) : kind_(kind) {}                  ///< two blocks a rank
  Sharding(ExplicitMap kind) : kind_(std::move(kind)) {}  ///< checked when it is used

  bool operator==(Sharding const&) const = default;

  /// Number of rows of a sequence of `global` positions that each rank owns. Throws ShapeError for fewer than one rank,
  /// a negative length, or an explicit map that is no partition.
  std::vector<Index> lengths(Side side, int ranks, Index global) const {
    detail::check<ShapeError>(ranks >= 1, "sharding over ", ranks, " ranks; at least one is needed");
    detail::check<ShapeError>(global >= 0, "sharding of ", global, " positions; a length must not be negative");
    return std::visit([&](auto const& kind) { return kind.lengths(side, ranks, global); }, kind_);
  }

  /// Segments that `rank` owns, given the number of rows that every rank holds. Together the ranks own each position
  /// exactly once. Throws ShapeError for a rank or lengths that cannot be, and if this sharding assigns other lengths,
  /// unless its kind accepts any.
  std::vector<Segment> segments(Side side, Rank rank, std::span<Index const> held) const {
    detail::check<ShapeError>(rank >= 0 && rank < static_cast<int>(held.size()), "sharding: rank ", rank, " of ",
                              held.size());
    Index total = 0;
    for (Index rows : held) {
      detail::check<ShapeError>(rows >= 0, "sharding: a rank holds ", rows, " rows; a length must not be negative");
      total = detail::saturating_sum(total, rows);
    }
    detail::check<ShapeError>(total < detail::largest_index, "sharding: the ranks hold ", detail::largest_index,
                              " rows or more; accepted: fewer");
    return std::visit(
        [&]<class Kind>(Kind const& kind) {
          static_assert(ShardingKind<Kind>);
          if constexpr (!Kind::any_lengths) check_lengths(side, held);
          return kind.segments(side, rank, held);
        },
        kind_);
  }

  /// "contiguous", "striped", "block-striped", "zigzag" or "explicit".
  std::string_view kind() const {
    if (block() > 1) return "block-striped";
    return std::visit([](auto const& kind) { return kind.kind; }, kind_);
  }
  /// Block length of a striped sharding; 0 for other kinds.
  Index block() const {
    auto const* const striped = std::get_if<Striped>(&kind_);
    return striped ? striped->block : 0;
  }
  /// The kind with its parameters: "contiguous", "striped", "block-striped(16)", "zigzag", "explicit #123456".
  std::string name() const {
    std::string text;
    describe(fingerprint(), [&](auto const&... parts) { text = detail::message_of(parts...); });
    return text;
  }
  /// Calls write(part, ...) with the parts of name(), given fingerprint().
  template <class Write>
  void describe(std::uint64_t hash, Write&& write) const {
    std::visit([&](auto const& kind) { kind.describe(hash, write); }, kind_);
  }

  /// Hash of kind and parameters, which ranks compare before they exchange anything.
  std::uint64_t fingerprint() const {
    Index const kind = static_cast<Index>(kind_.index());
    auto const hash = detail::digest_of(std::as_bytes(std::span(&kind, 1)));
    return std::visit([&](auto const& parameters) { return parameters.digest(hash); }, kind_);
  }

 private:
  void check_lengths(Side side, std::span<Index const> held) const {
    Index const global = std::accumulate(held.begin(), held.end(), Index{0});
    std::vector<Index> const expected = lengths(side, static_cast<int>(held.size()), global);
    if (std::equal(held.begin(), held.end(), expected.begin(), expected.end())) return;
    throw ShapeError(detail::message_of(name(), " sharding of ", global, side == Side::query ? " queries" : " keys",
                                        " over ", held.size(), " ranks: the ranks hold ",
                                        std::vector<Index>(held.begin(), held.end()), " rows, expected ", expected));
  }

  std::variant<Contiguous, Striped, Zigzag, ExplicitMap> kind_;
};

}  // namespace annulus
