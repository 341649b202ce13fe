#pragma once
// Sharding: the assignment of sequence positions to ranks (contiguous, striped, zigzag or explicit), as one value type
// for all kinds.

#include <algorithm>
#include <array>
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

/// Each rank owns one block of the sequence; blocks are in rank order and may have any lengths, including 0.
struct Contiguous {
  static constexpr std::string_view kind = "contiguous";

  bool operator==(Contiguous const&) const = default;

  /// Hash of the parameters, begun with `seed`.
  std::uint64_t digest(std::uint64_t seed) const { return seed; }

  /// Near-equal blocks: the first global % ranks ranks own one position more.
  std::vector<Index> lengths(Side, int ranks, Index global) const {
    std::vector<Index> result(static_cast<std::size_t>(ranks), global / ranks);
    for (std::size_t r = 0; r < static_cast<std::size_t>(global % ranks); ++r) ++result[r];
    return result;
  }

  /// `lengths`: rows of every rank.
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

  Index block = 1;

  bool operator==(Striped const&) const = default;

  std::uint64_t digest(std::uint64_t seed) const {
    return detail::digest_of(std::as_bytes(std::span(&block, 1)), seed);
  }

  std::vector<Index> lengths(Side, int ranks, Index global) const {
    std::vector<Index> result;
    Index const rows = clamped_block(global), round = rows * ranks;
    for (Rank r = 0; r < ranks; ++r)
      result.push_back(global / round * rows + std::clamp(global % round - r * rows, Index{0}, rows));
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
    for (Index begin = rank * rows; remaining > 0; begin += rows * ranks) {
      detail::append_segment(result, std::min(rows, remaining), begin, 1);
      remaining -= std::min(rows, remaining);
    }
    return result;
  }

 private:
  /// Block length clamped to the sequence: the assignment is the same, and products of it cannot overflow.
  Index clamped_block(Index global) const { return std::min(block, std::max(global, Index{1})); }
};

/// The sequence is cut into 2 * ranks blocks; rank r owns blocks r and 2 * ranks - 1 - r, so that all ranks have the
/// same causal work. If the length is not a multiple of 2 * ranks, the first blocks are one position longer.
struct Zigzag {
  static constexpr std::string_view kind = "zigzag";

  bool operator==(Zigzag const&) const = default;

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

  std::vector<std::vector<Index>> queries;
  std::vector<std::vector<Index>> keys;

  bool operator==(ExplicitMap const&) const = default;

  std::uint64_t digest(std::uint64_t seed) const {
    for (auto const* side : {&queries, &keys}) {
      for (auto const& rank : *side) seed = detail::digest_of(std::as_bytes(std::span(rank)), seed);
      seed = ~seed;  // separates the last rank of the queries from the first of the keys
    }
    return seed;
  }

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
    std::vector<char> owned(static_cast<std::size_t>(global), 0);
    Index total = 0;
    for (auto const& rank : map)
      for (Index position : rank) {
        detail::check<ShapeError>(position >= 0 && position < global, "explicit sharding of ", what, ": position ",
                                  position, " is outside [0, ", global, ")");
        detail::check<ShapeError>(!std::exchange(owned[static_cast<std::size_t>(position)], 1), "explicit sharding of ",
                                  what, ": position ", position, " is owned twice");
        ++total;
      }
    detail::check<ShapeError>(total == global, "explicit sharding of ", what, ": ", total, " of ", global,
                              " positions are owned; each must be owned once");
  }
};

/// One of Contiguous{} (default), Striped{.block = n} (throws UnsupportedError if n < 1), Zigzag{} or ExplicitMap{...}.
class Sharding {
 public:
  Sharding() = default;
  Sharding(Contiguous kind) : kind_(kind) {}
  Sharding(Striped kind) : kind_(kind) {
    detail::check<UnsupportedError>(kind.block >= 1, "striped sharding: block is ", kind.block,
                                    "; it must be at least 1");
  }
  Sharding(Zigzag kind) : kind_(kind) {}
  Sharding(ExplicitMap kind) : kind_(std::move(kind)) {}

  bool operator==(Sharding const&) const = default;

  /// Number of rows of a sequence of `global` positions that each rank owns. Throws ShapeError for fewer than one rank,
  /// a negative length, or an explicit map that is no partition.
  std::vector<Index> lengths(Side side, int ranks, Index global) const {
    detail::check<ShapeError>(ranks >= 1, "sharding over ", ranks, " ranks; at least one is needed");
    detail::check<ShapeError>(global >= 0, "sharding of ", global, " positions; a length must not be negative");
    return std::visit([&](auto const& kind) { return kind.lengths(side, ranks, global); }, kind_);
  }

  /// Segments that `rank` owns, given the number of rows that every rank holds. Together the ranks own each position
  /// exactly once. Throws ShapeError if this sharding assigns other lengths (contiguous shards may have any).
  std::vector<Segment> segments(Side side, Rank rank, std::span<Index const> held) const {
    detail::check<ShapeError>(rank >= 0 && rank < static_cast<int>(held.size()), "sharding: rank ", rank, " of ",
                              held.size());
    for (Index rows : held)
      detail::check<ShapeError>(rows >= 0, "sharding: a rank holds ", rows, " rows; a length must not be negative");
    if (!std::holds_alternative<Contiguous>(kind_)) {
      Index const global = std::accumulate(held.begin(), held.end(), Index{0});
      std::vector<Index> const expected = lengths(side, static_cast<int>(held.size()), global);
      std::vector<Index> const seen(held.begin(), held.end());
      detail::check<ShapeError>(seen == expected, name(), " sharding of ", global,
                                side == Side::query ? " queries" : " keys", " over ", held.size(),
                                " ranks: the ranks hold ", seen, " rows, expected ", expected);
    }
    return std::visit([&](auto const& kind) { return kind.segments(side, rank, held); }, kind_);
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
  /// The kind, with the block length if it is above 1.
  std::string name() const { return block() > 1 ? detail::message_of(kind(), "(", block(), ")") : std::string(kind()); }

  /// Hash of kind and parameters, which ranks compare before they exchange anything.
  std::uint64_t fingerprint() const {
    Index const kind = static_cast<Index>(kind_.index());
    auto const hash = detail::digest_of(std::as_bytes(std::span(&kind, 1)));
    return std::visit([&](auto const& parameters) { return parameters.digest(hash); }, kind_);
  }

 private:
  std::variant<Contiguous, Striped, Zigzag, ExplicitMap> kind_;
};

}  // namespace annulus
