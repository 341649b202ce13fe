#pragma once
// Work order of one backward step: by query section, then key tile, then query tile.

#include <utility>
#include <vector>

#include "annulus/nki/kernels/backward_units.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"

namespace annulus::nki {

/// Work list of one backward step.
struct BackwardStep {
  std::vector<QuerySection> sections;
  std::vector<KeyTile> key_tiles;             ///< one entry per visit by a section
  std::vector<BackwardUnit> units;            ///< by section, then key tile
  std::vector<std::size_t> key_tile_of_rows;  ///< by visit: number of the key tile in the shard
};

/// Lists the units with at least one visible pair; `own`: of the rank's own keys, else of any other rank's keys.
inline BackwardStep backward_step(KernelSpec const& spec, RingMask const& mask, std::vector<RowTile> const& tiles,
                                  Index section_tiles, Index key_rows, bool own) {
  BackwardStep step;
  for (Index head = 0; head < spec.query_heads_per_item(); ++head)
    for (std::size_t first = 0; first < tiles.size(); first += static_cast<std::size_t>(section_tiles)) {
      QuerySection section{.head = head,
                           .first_tile = first,
                           .last_tile = std::min(tiles.size(), first + static_cast<std::size_t>(section_tiles))};
      for (Index begin = 0; begin < spec.local_keys; begin += key_rows) {
        RowRange const keys{begin, std::min(begin + key_rows, spec.local_keys)};
        std::size_t const before = step.units.size();
        for (std::size_t tile = section.first_tile; tile < section.last_tile; ++tile)
          for (std::size_t piece = 0; piece < mask.pieces().size(); ++piece) {
            Cover const cover = mask.cover(own, tiles[tile].rows_of_all_cores, piece);
            RowRange const seen = cover.seen();
            if (std::max(seen.begin, keys.begin) >= std::min(seen.end, keys.end)) continue;
            step.units.push_back({.section = step.sections.size(),
                                  .key_tile = step.key_tiles.size(),
                                  .tile = tile,
                                  .piece = piece,
                                  .select = !cover.full(keys)});
          }
        check_units(step.units.size());
        if (step.units.size() == before) continue;
        step.units[before].first = true;
        step.units.back().last = true;
        step.key_tiles.push_back({.rows = keys});
        step.key_tile_of_rows.push_back(static_cast<std::size_t>(begin / key_rows));
      }
      step.sections.push_back(section);
    }
  return step;
}

}  // namespace annulus::nki
