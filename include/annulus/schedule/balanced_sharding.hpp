#pragma once
// Balanced sharding: an explicit map that gives all ranks the same work, made from the documents and the mask.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/mask/documents.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus {

/// A sharding of `tokens` positions, of queries and keys alike, for packed documents: all ranks own the same number of
/// rows, up to one, and nearly the same work, whichever side travels. The sequence is cut into blocks of `block`
/// positions, which are dealt to the ranks, the costliest first, and then exchanged until no exchange improves the
/// balance. Ranks that compute it in the same program get the same map.
///
/// documents: ranges that may overlap if they are of several batch items; {{0, tokens}} without packing.
/// block: 0 stands for one with which each rank owns about 32. More blocks balance better and make more tiles.
/// Throws ShapeError for fewer than one rank, a negative number of positions, or documents outside of the sequence, and
/// UnsupportedError for a negative block.
Sharding balanced_sharding(Documents const& documents, Index tokens, Mask const& mask, int ranks, Index block = 0);

#if defined(ANNULUS_DEFINITIONS)

namespace detail {

/// Visible pairs of positions, blocks or ranks, by their queries and by their keys. The first is the work of a rank if
/// keys travel, the second if queries travel.
struct VisiblePairs {
  double by_queries = 0, by_keys = 0;

  double largest() const { return std::max(by_queries, by_keys); }
  VisiblePairs operator+(VisiblePairs const& other) const {
    return {by_queries + other.by_queries, by_keys + other.by_keys};
  }
  VisiblePairs operator-(VisiblePairs const& other) const {
    return {by_queries - other.by_queries, by_keys - other.by_keys};
  }
  double operator*(VisiblePairs const& other) const { return by_queries * other.by_queries + by_keys * other.by_keys; }
};

/// The work of each position.
inline std::vector<VisiblePairs> work_of_positions(Documents const& documents, Index tokens, Mask const& mask) {
  std::vector<VisiblePairs> work(static_cast<std::size_t>(tokens));
  // Differences of consecutive positions' number of queries that see them.
  std::vector<Index> seen(static_cast<std::size_t>(tokens) + 1, 0);
  for (PositionRange const& document : documents)
    for (Index query = document.begin; query < document.end; ++query)
      for (bool sink : {false, true}) {
        PositionRange const keys = mask.keys_of(query, sink);
        Index const first = sink ? 0 : mask.sink_tokens, last = sink ? mask.sink_tokens : tokens;
        Index const begin = std::max({keys.begin, document.begin, first});
        Index const end = std::min({keys.end, document.end, last});
        if (begin >= end) continue;
        work[static_cast<std::size_t>(query)].by_queries += static_cast<double>(end - begin);
        ++seen[static_cast<std::size_t>(begin)];
        --seen[static_cast<std::size_t>(end)];
      }
  Index queries = 0;
  for (std::size_t key = 0; key < work.size(); ++key) work[key].by_keys = static_cast<double>(queries += seen[key]);
  return work;
}

/// 0 .. count - 1.
inline std::vector<std::size_t> numbers_below(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return numbers;
}

/// Assignment of blocks to ranks. Loads are relative to the mean of the ranks.
class BlockAssignment {
 public:
  struct Block {
    PositionRange positions;
    VisiblePairs work{};

    Index rows() const { return positions.end - positions.begin; }
  };

  /// Cuts the sequence into blocks of `block` positions, as many for each rank, and the rest into one more block for
  /// each.
  BlockAssignment(std::vector<VisiblePairs> const& work, int ranks, Index block)
      : owned_(static_cast<std::size_t>(ranks)), loads_(owned_.size()) {
    auto const tokens = static_cast<Index>(work.size()), regular = tokens / block / ranks * ranks;
    for (Index b = 0; b < regular; ++b) add({b * block, (b + 1) * block}, work);
    Index const begin = regular * block, rest = tokens - begin;
    for (Index r = 0; r < ranks && rest > 0; ++r) add({begin + rest * r / ranks, begin + rest * (r + 1) / ranks}, work);
    VisiblePairs total;
    for (Block const& one : blocks_) total = total + one.work;
    for (Block& one : blocks_) {
      if (total.by_queries > 0) one.work.by_queries *= ranks / total.by_queries;
      if (total.by_keys > 0) one.work.by_keys *= ranks / total.by_keys;
    }
    deal(regular);
  }

  /// Exchanges blocks, of the ranks with the largest loads first, while that evens the loads.
  void exchange_blocks() {
    std::vector<std::size_t> ranks = numbers_below(loads_.size());
    for (std::size_t tries = 0; tries < 16 * ranks.size(); ++tries) {
      std::stable_sort(ranks.begin(), ranks.end(),
                       [&](std::size_t a, std::size_t b) { return loads_[a].largest() > loads_[b].largest(); });
      if (loads_[ranks[0]].largest() <= good_enough) return;
      if (std::none_of(ranks.begin(), ranks.end(), [&](std::size_t rank) { return exchange_best(rank); })) return;
    }
  }

  /// Positions of each rank, ascending.
  ExplicitMap map() const {
    ExplicitMap result;
    result.queries.resize(loads_.size());
    for (std::size_t rank = 0; rank < owned_.size(); ++rank) {
      std::vector<std::size_t> blocks = owned_[rank];
      std::sort(blocks.begin(), blocks.end());
      for (std::size_t block : blocks)
        for (Index p = blocks_[block].positions.begin; p < blocks_[block].positions.end; ++p)
          result.queries[rank].push_back(p);
    }
    return result;
  }

 private:
  static constexpr double good_enough = 1.002;
  /// Ranks that one exchanges with: those whose load complements its own best.
  static constexpr std::size_t partners = 8;

  void add(PositionRange positions, std::vector<VisiblePairs> const& work) {
    Block block{.positions = positions};
    for (Index p = positions.begin; p < positions.end; ++p) block.work = block.work + work[static_cast<std::size_t>(p)];
    blocks_.push_back(block);
  }

  /// Deals rounds of one block for each rank, the first `regular` blocks by falling work, then the shorter ones.
  void deal(Index regular) {
    std::vector<std::size_t> order = numbers_below(blocks_.size());
    auto const costlier = [&](std::size_t a, std::size_t b) {
      return blocks_[a].work.largest() > blocks_[b].work.largest();
    };
    std::stable_sort(order.begin(), order.begin() + regular, costlier);
    std::stable_sort(order.begin() + regular, order.end(), costlier);
    std::vector<std::size_t> free;
    for (std::size_t block : order) {
      if (free.empty()) free = numbers_below(loads_.size());
      auto const least = std::min_element(free.begin(), free.end(), [&](std::size_t a, std::size_t b) {
        return loads_[a] * blocks_[block].work < loads_[b] * blocks_[block].work;
      });
      give(block, *least);
      free.erase(least);
    }
  }

  void give(std::size_t block, std::size_t rank) {
    owned_[rank].push_back(block);
    loads_[rank] = loads_[rank] + blocks_[block].work;
  }
  void take(std::size_t block, std::size_t rank) {
    std::erase(owned_[rank], block);
    loads_[rank] = loads_[rank] - blocks_[block].work;
  }

  /// Squared distance of a load from the mean.
  static double unevenness(VisiblePairs const& load) {
    return (load - VisiblePairs{1, 1}) * (load - VisiblePairs{1, 1});
  }

  /// Makes the best exchange of two blocks of equal length between `rank` and another one. False if none helps.
  bool exchange_best(std::size_t rank) {
    std::vector<std::size_t> others = numbers_below(loads_.size());
    std::erase(others, rank);
    std::stable_sort(others.begin(), others.end(),
                     [&](std::size_t a, std::size_t b) { return loads_[a] * loads_[rank] < loads_[b] * loads_[rank]; });
    others.resize(std::min(others.size(), partners));
    struct Exchange {
      double gain;
      std::size_t mine, theirs, other;
    } best{-1e-12, 0, 0, rank};
    for (std::size_t other : others)
      for (std::size_t mine : owned_[rank])
        for (std::size_t theirs : owned_[other]) {
          if (blocks_[mine].rows() != blocks_[theirs].rows()) continue;
          VisiblePairs const moved = blocks_[theirs].work - blocks_[mine].work;
          double const gain = unevenness(loads_[rank] + moved) + unevenness(loads_[other] - moved) -
                              unevenness(loads_[rank]) - unevenness(loads_[other]);
          if (gain < best.gain) best = {gain, mine, theirs, other};
        }
    if (best.other == rank) return false;
    take(best.mine, rank);
    take(best.theirs, best.other);
    give(best.mine, best.other);
    give(best.theirs, rank);
    return true;
  }

  std::vector<Block> blocks_;
  std::vector<std::vector<std::size_t>> owned_;  ///< blocks of each rank
  std::vector<VisiblePairs> loads_;              ///< of each rank
};

}  // namespace detail

ANNULUS_INLINE Sharding balanced_sharding(Documents const& documents, Index tokens, Mask const& mask, int ranks,
                                          Index block) {
  detail::check<ShapeError>(ranks >= 1, "balanced sharding over ", ranks, " ranks; at least one is needed");
  detail::check<ShapeError>(tokens >= 0, "balanced sharding of ", tokens, " positions; a length must not be negative");
  detail::check<UnsupportedError>(block >= 0, "balanced sharding: block is ", block,
                                  "; accepted: 1 or more, or 0 for about 32 blocks on each rank");
  detail::require_within("balanced sharding", documents, tokens);
  constexpr Index blocks_of_a_rank = 32;
  if (block == 0) block = std::max<Index>(1, detail::ceil_divide(tokens, blocks_of_a_rank * ranks));
  detail::BlockAssignment blocks(detail::work_of_positions(documents, tokens, mask), ranks, block);
  blocks.exchange_blocks();
  return blocks.map();
}

#endif

}  // namespace annulus
