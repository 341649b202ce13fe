#pragma once
// Rows and visible key ranges of a step kernel, computed from the positions and document ids of the step.

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "annulus/nki/kernels/ring_mask.hpp"

namespace annulus::nki {

/// Global positions of the rows of a step and, for packed documents, the document ids of one batch item.
struct StepPositions {
  std::span<Index const> queries, keys;                          ///< global positions
  std::vector<std::int32_t> query_documents{}, key_documents{};  ///< ids by row; empty: not packed

  bool packed() const { return !query_documents.empty() || !key_documents.empty(); }
};

/// Marks a row that takes no part: the kernel gets zeros instead of its values, and returns nothing for it.
inline constexpr Index inactive_row = -1;

/// Rows of a step kernel: query row i of the kernel is row queries[i] of the step, key row j is row keys[j].
struct StepRows {
  RingMask mask;
  std::vector<Index> queries, keys;
};

/// Most runs of equally spaced positions on each side that are expressed as bands; more need a range per query.
inline constexpr std::size_t most_banded_runs = 4;
/// Largest number of key pieces of a step: the end of the sink tokens may cut each run once more.
inline constexpr std::size_t most_step_pieces = 2 * most_banded_runs;

namespace step_rows_detail {

/// Splits the positions into segments, maximal runs with a constant stride of at least 1.
inline std::vector<Segment> segments_of(std::span<Index const> positions) {
  std::vector<Segment> segments;
  for (std::size_t begin = 0, end; begin < positions.size(); begin = end) {
    end = begin + 1;
    Index const step = end < positions.size() ? positions[end] - positions[begin] : 1;
    while (step > 0 && end < positions.size() && positions[end] - positions[end - 1] == step) ++end;
    append_segment(segments, static_cast<Index>(end - begin), positions[begin], std::max(step, Index{1}));
  }
  return segments;
}

/// The mask as bands, with rows in their original order; nullopt if the mask needs ranges.
inline std::optional<StepRows> in_order(Mask const& mask, StepPositions const& at) {
  if (at.packed() || mask.chunk > 0) return std::nullopt;
  auto const every_row = [](std::span<Index const> positions) {
    return std::vector<Segment>{{0, static_cast<Index>(positions.size()), 0, 1}};
  };
  bool const everything = mask == full();
  std::vector<Segment> queries = everything ? every_row(at.queries) : segments_of(at.queries);
  std::vector<Segment> keys = everything ? every_row(at.keys) : segments_of(at.keys);
  if (queries.size() > most_banded_runs || keys.size() > most_banded_runs) return std::nullopt;
  StepRows rows{RingMask(mask, {{std::move(queries)}}, {{std::move(keys)}}), {}, {}};
  if (rows.mask.form() == BoundsForm::ranges) return std::nullopt;
  for (Index i = 0; i < std::ssize(at.keys); ++i) rows.keys.push_back(i);
  return rows;
}

/// Sort key. In this order a query sees one range of the sink tokens and one of the other keys.
struct Key {
  bool in_window = true;
  std::int32_t document = 0;
  Index position = 0, row = 0;

  auto operator<=>(Key const&) const = default;
};

/// Keys sorted so that each query sees one range in each of at most two pieces; drops padding; nullopt if none is left.
inline std::optional<StepRows> sorted(Mask const& mask, StepPositions const& at) {
  std::vector<Key> keys;
  for (std::size_t row = 0; row < at.keys.size(); ++row) {
    std::int32_t const document = at.packed() ? at.key_documents[row] : 1;
    bool const in_window = !(mask.window.bounded() && mask.is_sink(at.keys[row]));
    if (same_document(document, document)) keys.push_back({in_window, document, at.keys[row], static_cast<Index>(row)});
  }
  if (keys.empty()) return std::nullopt;
  std::ranges::sort(keys);
  auto const cut = std::ranges::find_if(keys, &Key::in_window) - keys.begin();
  std::vector<RowRange> pieces;
  for (RowRange piece : {RowRange{0, cut}, RowRange{cut, std::ssize(keys)}})
    if (!piece.empty()) pieces.push_back(piece);

  std::vector<std::vector<RowRange>> ranges(pieces.size());
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    std::span<Key const> const piece = std::span<Key const>(keys).subspan(static_cast<std::size_t>(pieces[p].begin),
                                                                          static_cast<std::size_t>(pieces[p].size()));
    bool const in_window = piece.front().in_window;
    for (std::size_t i = 0; i < at.queries.size(); ++i) {
      std::int32_t const document = at.packed() ? at.query_documents[i] : 1;
      PositionRange const visible = mask.keys_of(at.queries[i], !in_window);
      auto const first_from = [&](Index position) {
        return std::ranges::lower_bound(piece, Key{in_window, document, position, 0}) - piece.begin() + pieces[p].begin;
      };
      RowRange const seen{first_from(visible.begin), first_from(visible.end)};
      ranges[p].push_back(
          same_document(document, document) && !seen.empty() ? seen : RowRange{pieces[p].begin, pieces[p].begin});
    }
  }
  StepRows rows{RingMask(std::move(pieces), std::move(ranges)), {}, {}};
  for (Key const& key : keys) rows.keys.push_back(key.row);
  return rows;
}

/// Marks keys that no query sees and queries that see no key as inactive_row. Returns whether any query is left.
inline bool mark_inactive(StepRows& rows, Index queries) {
  std::vector<Index> change(rows.keys.size() + 1);  // queries that see this row, less those that see the row before
  rows.queries.assign(static_cast<std::size_t>(queries), inactive_row);
  for (std::size_t piece = 0; piece < rows.mask.pieces().size(); ++piece)
    for (Index i = 0; i < queries; ++i) {
      RowRange const seen = rows.mask.seen(0, 0, 0, piece, i);
      if (seen.empty()) continue;
      rows.queries[static_cast<std::size_t>(i)] = i;
      ++change[static_cast<std::size_t>(seen.begin)];
      --change[static_cast<std::size_t>(seen.end)];
    }
  Index seeing = 0;
  for (std::size_t j = 0; j < rows.keys.size(); ++j)
    if ((seeing += change[j]) == 0) rows.keys[j] = inactive_row;
  return std::ranges::any_of(rows.queries, [](Index row) { return row != inactive_row; });
}

}  // namespace step_rows_detail

/// Rows and visible ranges of the kernel of a step; nullopt if no query sees any key.
inline std::optional<StepRows> step_rows(Mask const& mask, StepPositions const& at) {
  if (at.queries.empty() || at.keys.empty()) return std::nullopt;
  std::optional<StepRows> rows = step_rows_detail::in_order(mask, at);
  if (!rows) rows = step_rows_detail::sorted(mask, at);
  if (!rows || !step_rows_detail::mark_inactive(*rows, std::ssize(at.queries))) return std::nullopt;
  return rows;
}

}  // namespace annulus::nki
