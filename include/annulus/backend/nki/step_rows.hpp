#pragma once
// Rows and visible key ranges of a step kernel, and conversion between tensor views and kernel layouts.

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "annulus/mask/tile.hpp"
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
  RingMask mask;  ///< over the kernel's rows, in their order
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
  std::vector<Segment> queries = everything ? every_row(at.queries) : annulus::detail::segments_of(at.queries);
  std::vector<Segment> keys = everything ? every_row(at.keys) : annulus::detail::segments_of(at.keys);
  if (queries.size() > most_banded_runs || keys.size() > most_banded_runs) return std::nullopt;
  StepRows rows{RingMask(mask, {{std::move(queries)}}, {{std::move(keys)}}), {}, {}};
  if (rows.mask.form() == BoundsForm::ranges) return std::nullopt;
  for (Index i = 0; i < std::ssize(at.keys); ++i) rows.keys.push_back(i);
  return rows;
}

/// Sort key. In this order a query sees one range of the sink tokens and one of the other keys.
struct SortKey {
  bool in_window = true;
  std::int32_t document = 0;
  Index position = 0, row = 0;

  auto operator<=>(SortKey const&) const = default;
};

/// Keys sorted so that each query sees one range in each of at most two pieces; drops padding; nullopt if none is left.
inline std::optional<StepRows> sorted(Mask const& mask, StepPositions const& at) {
  std::vector<SortKey> keys;
  for (std::size_t row = 0; row < at.keys.size(); ++row) {
    std::int32_t const document = at.packed() ? at.key_documents[row] : 1;
    bool const in_window = !(mask.window.bounded() && mask.is_sink(at.keys[row]));
    if (annulus::detail::same_document(document, document))
      keys.push_back({in_window, document, at.keys[row], static_cast<Index>(row)});
  }
  if (keys.empty()) return std::nullopt;
  std::ranges::sort(keys);
  auto const cut = std::ranges::find_if(keys, &SortKey::in_window) - keys.begin();
  std::vector<RowRange> pieces;
  for (RowRange piece : {RowRange{0, cut}, RowRange{cut, std::ssize(keys)}})
    if (!piece.empty()) pieces.push_back(piece);

  std::vector<std::vector<RowRange>> ranges(pieces.size());
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    std::span<SortKey const> const piece = std::span<SortKey const>(keys).subspan(
        static_cast<std::size_t>(pieces[p].begin), static_cast<std::size_t>(pieces[p].size()));
    bool const in_window = piece.front().in_window;
    for (std::size_t i = 0; i < at.queries.size(); ++i) {
      std::int32_t const document = at.packed() ? at.query_documents[i] : 1;
      PositionRange const visible = mask.keys_of(at.queries[i], !in_window);
      auto const first_from = [&](Index position) {
        return std::ranges::lower_bound(piece, SortKey{in_window, document, position, 0}) - piece.begin() +
               pieces[p].begin;
      };
      RowRange const seen{first_from(visible.begin), first_from(visible.end)};
      ranges[p].push_back(annulus::detail::same_document(document, document) && !seen.empty()
                              ? seen
                              : RowRange{pieces[p].begin, pieces[p].begin});
    }
  }
  StepRows rows{RingMask(std::move(pieces), std::move(ranges)), {}, {}};
  for (SortKey const& key : keys) rows.keys.push_back(key.row);
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

/// Rows of a step's keys that some tile contains, in order. No query sees the others, whatever their positions are.
inline std::vector<Index> key_rows_of(std::span<Tile const> tiles, Index keys) {
  std::vector<char> in_tile(static_cast<std::size_t>(keys));
  for (Tile const& tile : tiles) {
    // A tile may extend beyond the operands where its mask hides all keys.
    RowRange const held = annulus::detail::intersection({tile.key_begin, tile.key_begin + tile.key_count}, {0, keys});
    for (Index row = held.begin; row < held.end; ++row) in_tile[static_cast<std::size_t>(row)] = true;
  }
  std::vector<Index> rows;
  for (Index row = 0; row < keys; ++row)
    if (in_tile[static_cast<std::size_t>(row)]) rows.push_back(row);
  return rows;
}

/// Layouts of a kernel's tensors.
enum class Layout {
  by_row,    ///< [batch, heads, rows, dim]
  by_dim,    ///< [batch, heads, dim, rows]
  by_column  ///< [batch, heads, 128, columns] with row c * 128 + p at (p, c): one value per row
};

/// Per-row values [batch, heads, rows] as a view [batch, rows, heads, 1].
template <class A>
TensorView<A, 4> rows_of_one(TensorView<A, 3> const& view) {
  return {view.data(),
          {view.extent(0), view.extent(2), view.extent(1), 1},
          {view.stride(0), view.stride(2), view.stride(1), 1}};
}

namespace packing_detail {

/// Calls function(offset in the layout, element, batch, head, row of the view) for every element of view [batch, rows,
/// heads, dim] in all `rows` except inactive_row.
template <class T, class Function>
void for_each_packed_element(TensorView<T, 4> const& view, std::span<Index const> rows, Layout layout,
                             Function&& function) {
  Index const count = std::ssize(rows), columns = annulus::detail::ceil_divide(count, tile_rows),
              dim = view.extent(axis::dim);
  for (Index b = 0; b < view.extent(axis::batch); ++b)
    for (Index h = 0; h < view.extent(axis::heads); ++h)
      for (Index i = 0; i < count; ++i) {
        Index const row = rows[static_cast<std::size_t>(i)], head = b * view.extent(axis::heads) + h;
        for (Index d = 0; row != inactive_row && d < dim; ++d) {
          Index const place = layout == Layout::by_row   ? (head * count + i) * dim + d
                              : layout == Layout::by_dim ? (head * dim + d) * count + i
                                                         : (head * tile_rows + i % tile_rows) * columns + i / tile_rows;
          function(static_cast<std::size_t>(place), view(b, row, h, d), b, h, row);
        }
      }
}

}  // namespace packing_detail

/// Packs a view [batch, rows, heads, dim]. encode(element, batch, head, row) is the packed value; places without a row
/// hold `absent`.
template <class T, class Encode>
std::vector<float> packed(TensorView<T const, 4> const& view, std::span<Index const> rows, Layout layout,
                          Encode&& encode, float absent = 0) {
  Index const held = std::ssize(rows);
  Index const places = layout == Layout::by_column ? annulus::detail::ceil_divide(held, tile_rows) * tile_rows : held;
  std::vector<float> values(
      static_cast<std::size_t>(view.extent(axis::batch) * view.extent(axis::heads) * places * view.extent(axis::dim)),
      absent);
  packing_detail::for_each_packed_element(view, rows, layout, [&](std::size_t place, T const& element, auto... at) {
    values[place] = static_cast<float>(encode(element, at...));
  });
  return values;
}

/// Packs the elements as they are.
template <class T>
std::vector<float> packed(TensorView<T const, 4> const& view, std::span<Index const> rows, Layout layout) {
  return packed(view, rows, layout, [](T const& element, auto...) { return element; });
}

/// Inverse of packed(): writes the values, times `factor`, to a view [batch, rows, heads, dim]; rows not in `rows` are
/// left as they are.
template <class A>
void unpack(std::span<float const> values, std::span<Index const> rows, Layout layout, TensorView<A, 4> const& view,
            float factor = 1) {
  packing_detail::for_each_packed_element(view, rows, layout, [&](std::size_t place, A& element, auto...) {
    element = static_cast<A>(factor * values[place]);
  });
}

}  // namespace annulus::nki
