#pragma once
// Leaf grid: both sides of a reproducible problem cut into leaves, runs of consecutive positions whose length does not
// depend on the ranks, and the pairs of leaves that contain visible pairs.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/mask/attention_rules.hpp"
#include "annulus/schedule/leaf_forest.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "annulus/sharding/segment.hpp"

namespace annulus::detail {

/// A leaf of one side, and its place in the shard of its owner.
struct Leaf {
  Rank owner = 0;
  Index local_begin = 0;  ///< first row of the owner
  Index rows = 0;         ///< the leaf length; the last leaf of a sequence may be shorter
  Index place = 0;        ///< among all leaves in the order of ranks

  RowRange local_rows() const { return {local_begin, local_begin + rows}; }
};

/// The leaves of a problem. Leaf i of a side has the positions [i * length, (i + 1) * length) of its sequence.
class LeafGrid {
 public:
  /// More leaves of a side would make the plan slower than the passes of short leaves.
  static constexpr Index most_leaves = 4096;

  using Shards = std::vector<std::vector<Segment>>;  ///< the segments of every rank

  /// Throws UnsupportedError for a length below 1, if a piece of a shard is not made of whole leaves, or if there are
  /// too many.
  LeafGrid(Shards const& queries, Shards const& keys, AttentionRules const& rules, bool elementwise)
      : length_(rules.reproducible_leaf), rules_(rules), elementwise_(elementwise) {
    check<UnsupportedError>(length_ >= 1, "reproducible leaf is ", length_, "; accepted: 1 or more positions");
    cut(Side::query, "query", queries);
    cut(Side::key, "key", keys);
    find_visible();
  }

  Index length() const { return length_; }
  Index count(Side side) const { return static_cast<Index>(leaves_of(side).size()); }
  Leaf const& leaf(Side side, Index index) const { return leaves_of(side)[static_cast<std::size_t>(index)]; }
  /// Leaves of a rank, in the order of their positions.
  std::span<Index const> of_rank(Side side, Rank rank) const {
    return sides_[at(side)].of_rank[static_cast<std::size_t>(rank)];
  }
  /// Rows of the longest leaf.
  Index longest(Side side) const { return count(side) == 0 ? 0 : leaf(side, 0).rows; }

  /// True if the leaves of queries and keys have visible pairs, as far as positions tell.
  bool visible(Index query_leaf, Index key_leaf) const { return any_visible(Side::query, query_leaf, {key_leaf, 0}); }
  /// True if leaf `index` of `side` has visible pairs with a leaf of `node`, a node of the other side.
  bool any_visible(Side side, Index index, LeafNode const& node) const {
    Bits const& bits = sides_[at(side)].sees;
    Index const end = std::min(node.end(), bits.columns);
    for (Index begin = node.begin; begin < end;) {
      Index const last = std::min(end, (begin / 64 + 1) * 64);
      std::uint64_t const mask = ~std::uint64_t{0} >> (64 - (last - begin)) << (begin % 64);
      if (bits.word(index, begin) & mask) return true;
      begin = last;
    }
    return false;
  }

  /// The tiles of a pair of leaves, rows counted from the first of each leaf: they depend on nothing else.
  Need find_tiles(Index query_leaf, Index key_leaf, TileFinder& finder, std::vector<Tile>* tiles) const {
    Segment const queries{0, leaf(Side::query, query_leaf).rows, query_leaf * length_, 1};
    Segment const keys{0, leaf(Side::key, key_leaf).rows, key_leaf * length_, 1};
    return finder.find({&queries, 1}, {&keys, 1}, rules_.mask, query_offset(), elementwise_, tiles, rules_.block_mask,
                       FullTiles::apart);
  }
  /// Global position of the first row of a leaf, query offset included.
  Index first_position(Side side, Index index) const {
    return index * length_ + (side == Side::query ? query_offset() : 0);
  }

  /// The end of a leaf of the rank, or its row 0, that is nearest to a local row; of equally near ones the later.
  Index nearest_end(Side side, Rank rank, Index row) const {
    Index nearest = 0;
    for (Index const index : of_rank(side, rank)) {
      Index const end = leaf(side, index).local_rows().end, nearer = std::abs(nearest - row) - std::abs(end - row);
      if (nearer > 0 || (nearer == 0 && end > nearest)) nearest = end;
    }
    return nearest;
  }

  /// Leaf::place of the leaves of a rank.
  RowRange ordered_by_rank(Side side, Rank rank) const {
    Index begin = 0;
    for (Rank r = 0; r < rank; ++r) begin += static_cast<Index>(of_rank(side, r).size());
    return {begin, begin + static_cast<Index>(of_rank(side, rank).size())};
  }

  /// Widens the rows that two ranks need of each other to whole leaves.
  void widen_to_leaves(Need& need, Rank queries, Rank keys) const {
    need.queries = needed_rows(Side::query, queries, keys);
    need.keys = needed_rows(Side::key, keys, queries);
  }
  /// The same for [rank of the queries, rank of the keys].
  void widen_to_leaves(std::span<Need> needs, int ranks) const {
    std::size_t place = 0;
    for (Rank queries = 0; queries < ranks; ++queries)
      for (Rank keys = 0; keys < ranks; ++keys) widen_to_leaves(needs[place++], queries, keys);
  }

 private:
  /// Local rows of the leaves of a rank that have visible pairs with leaves of the other side of another rank.
  RowRange needed_rows(Side side, Rank rank, Rank other) const {
    Side const other_side = side == Side::query ? Side::key : Side::query;
    RowRange rows;
    for (Index const index : of_rank(side, rank))
      for (Index const seen : of_rank(other_side, other))
        if (any_visible(side, index, {seen, 0})) {
          rows = hull(rows, leaf(side, index).local_rows());
          break;
        }
    return rows;
  }

  struct Bits {
    Index columns = 0;
    std::vector<std::uint64_t> words{};

    Index words_of_row() const { return ceil_divide(columns, Index{64}); }
    std::uint64_t word(Index row, Index column) const {
      return words[static_cast<std::size_t>(row * words_of_row() + column / 64)];
    }
    void resize(Index rows, Index new_columns) {
      columns = new_columns;
      words.assign(static_cast<std::size_t>(rows * words_of_row()), 0);
    }
    void set(Index row, Index column) {
      words[static_cast<std::size_t>(row * words_of_row() + column / 64)] |= std::uint64_t{1} << (column % 64);
    }
  };
  struct Leaves {
    std::vector<Leaf> leaves{};
    std::vector<std::vector<Index>> of_rank{};
    Bits sees{};  ///< [leaf, leaf of the other side]
  };

  Index query_offset() const { return rules_.query_offset.value_or(0); }
  static std::size_t at(Side side) { return side == Side::query ? 0 : 1; }
  std::vector<Leaf> const& leaves_of(Side side) const { return sides_[at(side)].leaves; }

  void cut(Side side, std::string_view name, Shards const& shards) {
    Leaves& cut = sides_[at(side)];
    Index positions = 0;
    for (auto const& segments : shards) positions += rows_of(segments);
    Index const leaves = ceil_divide(positions, length_);
    check<UnsupportedError>(leaves <= most_leaves, "reproducible: ", positions, " ", name, " positions are ", leaves,
                            " leaves of ", length_, " positions; accepted: at most ", most_leaves, " leaves");
    cut.leaves.resize(static_cast<std::size_t>(leaves));
    for (std::size_t r = 0; r < shards.size(); ++r) {
      auto& own = cut.of_rank.emplace_back();
      for (Piece const& piece : pieces_of(shards[r])) {
        Index const begin = piece.global_begin, end = begin + piece.length;
        check<UnsupportedError>((piece.global_stride == 1 || piece.length == 1) && begin % length_ == 0 &&
                                    (end % length_ == 0 || end == positions),
                                "reproducible: rank ", r, " has a piece of ", piece.length, " ", name,
                                " positions from ", begin, piece.global_stride == 1 ? "" : " in steps",
                                "; accepted: pieces of whole leaves of ", length_,
                                " positions (the reproducible leaf), which begin at a multiple of it and end at one or "
                                "with the sequence, as "
                                "those of block-striped(",
                                length_, ") always do");
        for (Index position = begin; position < end; position += length_) {
          cut.leaves[static_cast<std::size_t>(position / length_)] = {
              static_cast<Rank>(r), piece.local_begin + (position - begin), std::min(length_, end - position)};
          own.push_back(position / length_);
        }
      }
      std::sort(own.begin(), own.end());
    }
    Index place = 0;
    for (auto const& own : cut.of_rank)
      for (Index const index : own) cut.leaves[static_cast<std::size_t>(index)].place = place++;
  }

  /// The segments, where neighbours are joined that continue each other, and single rows are cut off if a leaf is one.
  using Piece = Segment;
  std::vector<Piece> pieces_of(std::vector<Segment> const& segments) const {
    std::vector<Piece> pieces;
    for (Segment const& segment : segments) {
      bool const single = length_ == 1 && segment.global_stride != 1;
      for (Index row = 0; row < segment.length; row += single ? 1 : segment.length)
        append_segment(pieces, single ? 1 : segment.length, segment.global_begin + row * segment.global_stride,
                       single || segment.length == 1 ? 1 : segment.global_stride);
    }
    return pieces;
  }

  void find_visible() {
    Index const queries = count(Side::query), keys = count(Side::key);
    sides_[0].sees.resize(queries, keys);
    sides_[1].sees.resize(keys, queries);
    TileFinder finder;
    for (Index q = 0; q < queries; ++q)
      for (Index k = 0; k < keys; ++k)
        if (find_tiles(q, k, finder, nullptr).visible_pairs > 0) {
          sides_[0].sees.set(q, k);
          sides_[1].sees.set(k, q);
        }
  }

  Index length_;
  AttentionRules rules_;
  bool elementwise_;
  Leaves sides_[2];
};

}  // namespace annulus::detail
