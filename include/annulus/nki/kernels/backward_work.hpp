#pragma once
// Work list of a backward step: sections of query rows, key tiles, and units of one row tile with one key tile.

#include <algorithm>
#include <map>
#include <vector>

#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// Query rows that are in SBUF together, by feature and by token, with the sums of their gradients.
struct QuerySection {
  Index head = 0;
  Index first_tile = 0, last_tile = 0;
  bool chosen = false;  ///< with keys that are chosen too, as RingMask::with_chosen_halves() describes
  Index operands = -1, sums = -1, numbers = -1;  ///< tiles by number
};

/// Keys whose gradients are summed in PSUM over the query tiles of a section.
struct KeyTile {
  RowRange rows;
  Index number = 0;                                ///< in key_tiles_of()
  Index operands = -1, sums = -1, gradients = -1;  ///< tiles by number
};

/// Unit of work: one query tile with one key tile and one key piece of the mask.
struct BackwardUnit {
  std::size_t section = 0, key_tile = 0;  ///< indices into the lists of the step
  Index tile = 0;                         ///< row tile
  std::size_t piece = 0;
  bool select = false;
  bool first = false, last = false;                  ///< unit of its key tile in its section
  bool first_of_tile = false, last_of_tile = false;  ///< unit of its row tile in its section
};

struct BackwardStep {
  std::vector<QuerySection> sections;
  std::vector<KeyTile> key_tiles;   ///< one entry per visit by a section
  std::vector<BackwardUnit> units;  ///< by section, then key tile
};

/// Cuts the keys of a rank into tiles of up to key_rows; where halves are chosen, both alike, at blocks of 128.
inline std::vector<RowRange> key_tiles_of(KernelSpec const& spec, RingMask const& mask, Index key_rows) {
  std::vector<RowRange> tiles;
  bool const halves = mask.chooses_halves();
  Index const keys = halves ? spec.local_keys / 2 : spec.local_keys, blocks = detail::ceil_divide(keys, tile_rows),
              count = detail::ceil_divide(keys, key_rows);
  auto const begin_of = [&](Index i) { return std::min(keys, halves ? blocks * i / count * tile_rows : i * key_rows); };
  for (Index first = 0; first < spec.local_keys; first += keys)
    for (Index i = 0; i < count; ++i) tiles.push_back({first + begin_of(i), first + begin_of(i + 1)});
  return tiles;
}

/// Lists the units with at least one visible pair; `own`: of the rank's own keys, else of any other rank's keys.
inline BackwardStep backward_step(KernelSpec const& spec, RingMask const& mask, std::vector<RowTile> const& tiles,
                                  Index section_tiles, Index key_rows, bool own) {
  BackwardStep step;
  bool const halves = mask.chooses_halves() && !own;
  Index const all = std::ssize(tiles), late = halves ? all / 2 : 0;
  auto const key_tiles = key_tiles_of(spec, mask, key_rows);
  // Heads; with halves first the late rows of each with early keys, then the chosen rows with the chosen keys.
  for (Index part = 0; part < spec.query_heads_per_item() * (1 + halves); ++part)
    for (Index first = late; first < all; first += section_tiles) {
      QuerySection const section{.head = part / (1 + halves),
                                 .first_tile = first,
                                 .last_tile = std::min(all, first + section_tiles),
                                 .chosen = part % (1 + halves) == 1};
      std::map<Index, std::size_t> last_units;  // by row tile
      for (Index number = 0; number < std::ssize(key_tiles); ++number) {
        RowRange const keys = nth(key_tiles, number);
        if (halves && section.chosen != (keys.begin >= spec.local_keys / 2)) continue;
        std::size_t const before = step.units.size();
        for (Index tile = section.first_tile; tile < section.last_tile; ++tile)
          for (std::size_t piece = 0; piece < mask.pieces().size(); ++piece) {
            Cover const cover = mask.cover(own, nth(tiles, tile).rows_of_all_cores, piece);
            if (detail::intersection(cover.by_any, keys).empty()) continue;
            step.units.push_back({.section = step.sections.size(),
                                  .key_tile = step.key_tiles.size(),
                                  .tile = tile,
                                  .piece = piece,
                                  .select = !cover.full(keys),
                                  .first_of_tile = !last_units.contains(tile)});
            last_units[tile] = step.units.size() - 1;
          }
        check_units(step.units.size());
        if (step.units.size() == before) continue;
        step.units[before].first = true;
        step.units.back().last = true;
        step.key_tiles.push_back({.rows = keys, .number = number});
      }
      for (auto const& [tile, unit] : last_units) step.units[unit].last_of_tile = true;
      step.sections.push_back(section);
    }
  return step;
}

}  // namespace annulus::nki
