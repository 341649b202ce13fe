#pragma once
// Rows and visible key ranges of a step kernel, and conversion between tensor views and kernel layouts.

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/tensor/view.hpp"

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

/// Last axis of a layout: [batch, heads, rows, dim] or [batch, heads, dim, rows].
enum class LastAxis { dim, rows };

namespace packing_detail {

/// Calls function(offset in the layout, batch, row of the view, head, element of dim) for all rows except inactive_row.
template <class Function>
void for_each_place(std::array<Index, 4> const& extents, std::span<Index const> rows, LastAxis last,
                    Function&& function) {
  Index const count = std::ssize(rows), dim = extents[axis::dim];
  for (Index b = 0; b < extents[axis::batch]; ++b)
    for (Index h = 0; h < extents[axis::heads]; ++h)
      for (Index i = 0; i < count; ++i)
        for (Index d = 0; rows[static_cast<std::size_t>(i)] != inactive_row && d < dim; ++d) {
          Index const head = b * extents[axis::heads] + h;
          Index const place = last == LastAxis::dim ? (head * count + i) * dim + d : (head * dim + d) * count + i;
          function(static_cast<std::size_t>(place), b, rows[static_cast<std::size_t>(i)], h, d);
        }
}

/// Calls function(offset in the layout, batch, head, row of the view) for the layout [batch * heads, 128, columns] with
/// row c * 128 + p at (p, c), skipping inactive_row.
template <class Function>
void for_each_column_place(std::array<Index, 3> const& extents, std::span<Index const> rows, Function&& function) {
  Index const count = std::ssize(rows), columns = ceil_divide(count, tile_rows);
  for (Index b = 0; b < extents[0]; ++b)
    for (Index h = 0; h < extents[1]; ++h)
      for (Index i = 0; i < count; ++i)
        if (rows[static_cast<std::size_t>(i)] != inactive_row)
          function(
              static_cast<std::size_t>(((b * extents[1] + h) * tile_rows + i % tile_rows) * columns + i / tile_rows), b,
              h, rows[static_cast<std::size_t>(i)]);
}

}  // namespace packing_detail

/// Packs view [batch, rows, heads, dim] into [batch, heads, rows, dim] or [batch, heads, dim, rows]. Each row is times
/// factor(batch, head, row), rounded to T.
template <class T, class Factor>
std::vector<float> packed(TensorView<T const, 4> view, std::span<Index const> rows, LastAxis last, Factor&& factor) {
  auto const& extents = view.extents();
  std::vector<float> values(
      static_cast<std::size_t>(extents[axis::batch] * extents[axis::heads] * std::ssize(rows) * extents[axis::dim]));
  packing_detail::for_each_place(extents, rows, last, [&](std::size_t place, Index b, Index row, Index h, Index d) {
    values[place] = static_cast<float>(static_cast<T>(static_cast<float>(view(b, row, h, d)) * factor(b, h, row)));
  });
  return values;
}

/// Packs without a factor.
template <class T>
std::vector<float> packed(TensorView<T const, 4> view, std::span<Index const> rows, LastAxis last) {
  return packed(view, rows, last, [](Index, Index, Index) { return 1.0f; });
}

/// Inverse of packed(): writes the values to view [batch, rows, heads, dim]; rows not in `rows` are left as they are.
template <class A>
void unpack(std::span<float const> values, std::span<Index const> rows, LastAxis last, TensorView<A, 4> view) {
  packing_detail::for_each_place(view.extents(), rows, last,
                                 [&](std::size_t place, Index b, Index row, Index h, Index d) {
                                   view(b, row, h, d) = static_cast<A>(values[place]);
                                 });
}

/// Packs view [batch, heads, rows] into [batch * heads, 128, columns]; encode(element, batch, head, row) is the packed
/// value, `absent` fills places without a row.
template <class A, class Encode>
std::vector<float> packed_columns(TensorView<A const, 3> view, std::span<Index const> rows, float absent,
                                  Encode&& encode) {
  Index const columns = ceil_divide(std::ssize(rows), tile_rows);
  std::vector<float> values(static_cast<std::size_t>(view.extent(0) * view.extent(1) * tile_rows * columns), absent);
  packing_detail::for_each_column_place(view.extents(), rows, [&](std::size_t place, Index b, Index h, Index row) {
    values[place] = static_cast<float>(encode(view(b, h, row), b, h, row));
  });
  return values;
}

/// Inverse of packed_columns(): writes decode(value) to view [batch, heads, rows].
template <class A, class Decode>
void unpack_columns(std::span<float const> values, std::span<Index const> rows, TensorView<A, 3> view,
                    Decode&& decode) {
  packing_detail::for_each_column_place(view.extents(), rows, [&](std::size_t place, Index b, Index h, Index row) {
    view(b, h, row) = static_cast<A>(decode(values[place]));
  });
}

}  // namespace annulus::nki
