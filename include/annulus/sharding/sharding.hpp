#pragma once
// Sharding: the assignment of sequence positions to ranks, as one value type for all kinds.

#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "annulus/core/check.hpp"
#include "annulus/sharding/contiguous.hpp"
#include "annulus/sharding/explicit_map.hpp"
#include "annulus/sharding/striped.hpp"
#include "annulus/sharding/zigzag.hpp"

namespace annulus {

/// One of Contiguous{} (default), Striped{.block = n} (throws UnsupportedError if n < 1), Zigzag{} or ExplicitMap{...}.
class Sharding {
 public:
  Sharding() = default;
  Sharding(Contiguous kind) : kind_(kind) {}
  Sharding(Striped kind) : kind_(kind) {
    check<UnsupportedError>(kind.block >= 1, "striped sharding: block is ", kind.block, "; it must be at least 1");
  }
  Sharding(Zigzag kind) : kind_(kind) {}
  Sharding(ExplicitMap kind) : kind_(std::move(kind)) {}

  bool operator==(Sharding const&) const = default;

  /// Number of rows of a sequence of `global` positions that each rank owns. Throws ShapeError for fewer than one rank,
  /// a negative length, or an explicit map that is no partition.
  std::vector<Index> lengths(Side side, int ranks, Index global) const {
    check<ShapeError>(ranks >= 1, "sharding over ", ranks, " ranks; at least one is needed");
    check<ShapeError>(global >= 0, "sharding of ", global, " positions; a length must not be negative");
    return std::visit([&](auto const& kind) { return kind.lengths(side, ranks, global); }, kind_);
  }

  /// Segments that `rank` owns, given the number of rows that every rank holds. Together the ranks own each position
  /// exactly once. Throws ShapeError if this sharding assigns other lengths (contiguous shards may have any).
  std::vector<Segment> segments(Side side, Rank rank, std::span<Index const> held) const {
    check<ShapeError>(rank >= 0 && rank < static_cast<int>(held.size()), "sharding: rank ", rank, " of ", held.size());
    for (Index rows : held)
      check<ShapeError>(rows >= 0, "sharding: a rank holds ", rows, " rows; a length must not be negative");
    if (!std::holds_alternative<Contiguous>(kind_)) {
      Index const global = std::accumulate(held.begin(), held.end(), Index{0});
      std::vector<Index> const expected = lengths(side, static_cast<int>(held.size()), global);
      std::vector<Index> const seen(held.begin(), held.end());
      check<ShapeError>(seen == expected, name(), " sharding of ", global, side == Side::query ? " queries" : " keys",
                        " over ", held.size(), " ranks: the ranks hold ", seen, " rows, expected ", expected);
    }
    return std::visit([&](auto const& kind) { return kind.segments(side, rank, held); }, kind_);
  }

  /// "contiguous", "striped", "block-striped", "zigzag" or "explicit".
  std::string_view kind() const {
    if (block() > 0) return block() == 1 ? "striped" : "block-striped";
    if (std::holds_alternative<Zigzag>(kind_)) return "zigzag";
    return std::holds_alternative<Contiguous>(kind_) ? "contiguous" : "explicit";
  }
  /// Block length of a striped sharding; 0 for other kinds.
  Index block() const {
    auto const* const striped = std::get_if<Striped>(&kind_);
    return striped ? striped->block : 0;
  }
  /// The kind, with the block length if it is above 1.
  std::string name() const {
    return block() > 1 ? message_of(kind(), "(", block(), ")") : std::string(kind());
  }

  /// Hash of kind and parameters (FNV-1a), which ranks compare before they exchange anything.
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 14695981039346656037u;
    auto const mix = [&](Index value) {
      for (int byte = 0; byte < 8; ++byte)
        hash = (hash ^ (static_cast<std::uint64_t>(value) >> (8 * byte) & 0xff)) * 1099511628211u;
    };
    mix(static_cast<Index>(kind_.index()));
    if (auto const* striped = std::get_if<Striped>(&kind_)) mix(striped->block);
    if (auto const* map = std::get_if<ExplicitMap>(&kind_))
      for (auto const* side : {&map->queries, &map->keys}) {
        mix(static_cast<Index>(side->size()));
        for (auto const& rank : *side) {
          mix(static_cast<Index>(rank.size()));
          for (Index position : rank) mix(position);
        }
      }
    return hash;
  }

 private:
  std::variant<Contiguous, Striped, Zigzag, ExplicitMap> kind_;
};

}  // namespace annulus
