#pragma once
// Block-sparse mask: a rule that hides whole blocks of queries x keys, on a grid of global positions.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "annulus/core/digest.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"

namespace annulus {

/// A boolean for each block of query positions x key positions: whether its queries may see its keys. A cheap copy
/// refers to the same booleans, which never change. Default: no blocks, everything is visible.
class BlockMask {
 public:
  BlockMask() = default;

  /// Query q may see key k iff visible[q / query_block * key_blocks + k / key_block]. The number of query blocks is
  /// visible.size() / key_blocks. Throws ShapeError for a block or number of blocks below 1, or an incomplete row of
  /// blocks.
  BlockMask(Index query_block, Index key_block, Index key_blocks, std::vector<bool> visible) {
    detail::check<ShapeError>(query_block >= 1 && key_block >= 1 && key_blocks >= 1, "block mask: blocks of ",
                              query_block, " x ", key_block, " positions, ", key_blocks,
                              " blocks of keys; accepted: 1 or more of each");
    auto const count = static_cast<Index>(visible.size());
    detail::check<ShapeError>(count >= 1 && count % key_blocks == 0, "block mask: ", count,
                              " booleans are given; accepted: a multiple of the number of key blocks, ", key_blocks);
    Index const extents[] = {query_block, key_block, key_blocks};
    std::vector<std::uint8_t> const bytes(visible.begin(), visible.end());
    std::uint64_t const fingerprint =
        detail::digest_of(std::as_bytes(std::span(bytes)), detail::digest_of(std::as_bytes(std::span(extents))));
    grid_ = std::make_shared<Grid const>(Grid{query_block, key_block, key_blocks, std::move(visible), fingerprint});
  }

  explicit operator bool() const { return grid_ != nullptr; }  ///< true if there are blocks

  Index query_block() const { return grid_->query_block; }  ///< positions of a block of queries
  Index key_block() const { return grid_->key_block; }      ///< positions of a block of keys
  /// Query positions that the blocks cover; 0 if there are none.
  Index queries() const {
    return grid_ ? detail::saturating_product(static_cast<Index>(grid_->visible.size()) / grid_->key_blocks,
                                              grid_->query_block)
                 : 0;
  }
  /// Key positions that the blocks cover; 0 if there are none.
  Index keys() const { return grid_ ? detail::saturating_product(grid_->key_blocks, grid_->key_block) : 0; }

  /// True if the query may see the key. Both are global positions that the blocks cover.
  bool visible(Index query, Index key) const {
    return !grid_ || grid_->visible[static_cast<std::size_t>(query / grid_->query_block * grid_->key_blocks +
                                                             key / grid_->key_block)];
  }

  /// True if all blocks have the same extents and visibility.
  bool operator==(BlockMask const& other) const {
    return grid_ == other.grid_ || (grid_ && other.grid_ && *grid_ == *other.grid_);
  }

  /// Hash of the blocks, which ranks compare; 0 if there are none.
  std::uint64_t fingerprint() const { return grid_ ? grid_->fingerprint : 0; }

 private:
  struct Grid {
    Index query_block, key_block, key_blocks;
    std::vector<bool> visible;
    std::uint64_t fingerprint;

    bool operator==(Grid const&) const = default;
  };

  std::shared_ptr<Grid const> grid_;
};

}  // namespace annulus
