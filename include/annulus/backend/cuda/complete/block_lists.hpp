#pragma once
// The blocks of a step that hold visible pairs, listed for each block of queries and for each block of keys, from the
// tiles of the step.

#include <algorithm>
#include <span>
#include <vector>

#include "annulus/backend/cuda/complete/arguments.hpp"
#include "annulus/mask/tile.hpp"

namespace annulus::cuda::detail {

/// BlockRuns in host memory.
struct BlockList {
  std::vector<int> first{0};
  std::vector<BlockRun> runs{};
};

/// Lists blocks of pair_block x pair_block rows. A block is untested only if full tiles hold all of its pairs; the tests
/// of others are by position, so that the list need not be exact.
class BlockLists {
 public:
  BlockLists(std::span<Tile const> tiles, Mask const& mask, Index queries, Index keys) : keys_(keys) {
    int const query_blocks = blocks_of(queries);
    for (int block = 0; block < query_blocks; ++block) {
      RowRange const rows{Index{block} * pair_block, std::min(Index{block + 1} * pair_block, queries)};
      marks_.assign(static_cast<std::size_t>(blocks_of(keys)), Mark::none);
      for (Tile const& tile : tiles) mark(tile, mask, rows);
      append_runs();
    }
    transpose(query_blocks);
  }

  BlockList const& of_queries() const { return of_queries_; }  ///< key blocks of each block of queries
  BlockList const& of_keys() const { return of_keys_; }        ///< query blocks of each block of keys

 private:
  enum class Mark : unsigned char { none, full, tested };

  static int blocks_of(Index rows) { return static_cast<int>((rows + pair_block - 1) / pair_block); }

  /// Marks the key blocks that hold pairs of a tile with the query rows `rows`.
  void mark(Tile const& tile, Mask const& mask, RowRange rows) {
    RowRange const of_tile = annulus::detail::intersection({rows.begin - tile.query_begin, rows.end - tile.query_begin},
                                                           {0, tile.query_count});
    if (of_tile.empty()) return;
    // Both ends are non-decreasing in the query.
    RowRange const first = tile.keys_of(mask, of_tile.begin), last = tile.keys_of(mask, of_tile.end - 1);
    RowRange const some{tile.key_begin + first.begin, tile.key_begin + last.end};
    RowRange all{tile.key_begin + last.begin, tile.key_begin + first.end};
    if (of_tile.size() < rows.size() || tile.coverage == annulus::Coverage::elements) all = {};
    if (some.empty()) return;
    for (Index block = some.begin / pair_block; block <= (some.end - 1) / pair_block; ++block) {
      Index const begin = block * pair_block, end = std::min(begin + pair_block, keys_);
      bool const is_full = all.begin <= begin && end <= all.end;
      Mark& mark = marks_[static_cast<std::size_t>(block)];
      if (mark != Mark::full) mark = is_full ? Mark::full : Mark::tested;
    }
  }

  void append_runs() {
    for (std::size_t block = 0; block < marks_.size(); ++block)
      if (marks_[block] != Mark::none)
        append(of_queries_, of_queries_.first.back(), static_cast<int>(block), marks_[block] == Mark::tested);
    of_queries_.first.push_back(static_cast<int>(of_queries_.runs.size()));
  }

  /// Appends a block to the runs from number `first` on.
  static void append(BlockList& list, int first, int block, bool tested) {
    bool const extends = static_cast<int>(list.runs.size()) > first && list.runs.back().end == block &&
                         (list.runs.back().tested != 0) == tested;
    if (extends)
      ++list.runs.back().end;
    else
      list.runs.push_back({block, block + 1, tested ? 1 : 0});
  }

  void transpose(int query_blocks) {
    std::vector<BlockList> columns(marks_.size());
    if (query_blocks == 0) columns.resize(static_cast<std::size_t>(blocks_of(keys_)));
    for (int query = 0; query < query_blocks; ++query)
      for (int n = of_queries_.first[static_cast<std::size_t>(query)];
           n < of_queries_.first[static_cast<std::size_t>(query) + 1]; ++n) {
        BlockRun const& run = of_queries_.runs[static_cast<std::size_t>(n)];
        for (int key = run.begin; key < run.end; ++key)
          append(columns[static_cast<std::size_t>(key)], 0, query, run.tested != 0);
      }
    for (BlockList const& column : columns) {
      of_keys_.runs.insert(of_keys_.runs.end(), column.runs.begin(), column.runs.end());
      of_keys_.first.push_back(static_cast<int>(of_keys_.runs.size()));
    }
  }

  Index keys_;
  std::vector<Mark> marks_;
  BlockList of_queries_, of_keys_;
};

}  // namespace annulus::cuda::detail
