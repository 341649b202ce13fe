#pragma once
// Packing of bfloat16 operands as pairs of neighbours along the axis that a product sums over. Values are not changed.

#include <cstring>

#include "annulus/backend/cpu/packing.hpp"
#include "annulus/backend/cpu/simd/operand.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

namespace detail {

using Bfloat = Eigen::bfloat16;

inline std::uint32_t bits_of(Bfloat const& x) { return Eigen::numext::bit_cast<std::uint16_t>(x); }

/// Elements 2 k and 2 k + 1 of a row of dim elements; 0 beyond the end of the row.
inline BfloatPair pair_of_row(Bfloat const* row, Index dim_stride, Index dim, Index k) {
  auto const bits = [&](Index d) { return d < dim ? bits_of(row[d * dim_stride]) : 0u; };
  return {bits(2 * k) | bits(2 * k + 1) << 16};
}

/// Bits of `lanes` pairs of a contiguous row; for data movement only, not for arithmetic.
inline Vector<float> load_pairs(Bfloat const* from) {
  Vector<float> pairs;
  std::memcpy(&pairs.native, from, sizeof pairs.native);
  return pairs;
}
inline void store_pairs(Vector<float> pairs, BfloatPair* to) { std::memcpy(to, &pairs.native, sizeof pairs.native); }

/// Sets to[d] = (upper[d], lower[d]) for d < dim, and zeros up to `padded`; null rows are zeros.
inline void pair_rows(Bfloat const* upper, Bfloat const* lower, Index dim_stride, Index dim, Index padded,
                      BfloatPair* to) {
  auto const element = [&](Bfloat const* row, Index d) { return row ? bits_of(row[d * dim_stride]) : 0u; };
  if (upper && lower && dim_stride == 1)
    for (Index d = 0; d < dim; ++d) to[d].bits = bits_of(upper[d]) | bits_of(lower[d]) << 16;
  else
    for (Index d = 0; d < dim; ++d) to[d].bits = element(upper, d) | element(lower, d) << 16;
  for (Index d = dim; d < padded; ++d) to[d].bits = 0;
}

/// Copies pairs [k, k + lanes) of a row.
inline void copy_pairs(Bfloat const* row, Index dim_stride, Index dim, Index k, BfloatPair* to) {
  constexpr Index lanes = Blocking<float>::lanes;
  if (dim_stride == 1 && 2 * (k + lanes) <= dim)
    store_pairs(load_pairs(row + 2 * k), to);
  else
    for (Index i = 0; i < lanes; ++i) to[i] = pair_of_row(row, dim_stride, dim, k + i);
}

/// Packs one group of AMX tiles: [depth / lanes][rows][lanes] pairs along dim.
template <std::size_t Rows>
void pack_row_tiles(Bfloat const* const (&rows)[Rows], Index dim_stride, Index dim, Index depth, BfloatPair* to) {
  constexpr Index lanes = Blocking<float>::lanes;
  for (Index k = 0; k < depth; k += lanes)
    for (Bfloat const* row : rows) {
      copy_pairs(row, dim_stride, dim, k, to);
      to += lanes;
    }
}

/// Packs groups of AMX tiles, [dim / group][key_block / 2 / lanes][group][lanes]: pairs of neighbouring rows, `lanes`
/// of them in a row of a tile. row(j) may be null: zeros.
template <class Row>
void pack_column_tiles(Row const& row, Index dim_stride, Index dim, BfloatPair* to) {
  constexpr Index group = PackedGroup<BfloatPair>::rows, lanes = Blocking<float>::lanes;
  constexpr Index pairs = Blocking<float>::key_block / 2;
  for (Index begin = 0; begin < PackedGroup<BfloatPair>::rows_padded(dim); begin += lanes)
    for (Index first = 0; first < pairs; first += lanes) {
      Vector<float> tile[lanes];
      for (Index j = 0; j < lanes; ++j) {
        BfloatPair of_rows[lanes];
        auto const part = [&](Bfloat const* whole) { return whole ? whole + begin * dim_stride : nullptr; };
        pair_rows(part(row(2 * (first + j))), part(row(2 * (first + j) + 1)), dim_stride,
                  std::clamp<Index>(dim - begin, 0, lanes), lanes, of_rows);
        std::memcpy(&tile[j].native, of_rows, sizeof of_rows);
      }
      interleave(tile);
      BfloatPair* const place = to + begin / group * group * pairs + first * group + begin % group * lanes;
      for (Index d = 0; d < lanes; ++d) store_pairs(tile[d], place + d * lanes);
    }
}

}  // namespace detail

/// pack_row_groups() for bfloat16: pairs along dim.
inline void pack_row_groups(HeadRows<Eigen::bfloat16 const> const& from, Index first, Index count, Index dim,
                            BfloatPair* to) {
  using G = PackedGroup<BfloatPair>;
  constexpr Index group = G::rows, lanes = Blocking<float>::lanes;
  Index const depth = G::elements(dim);
  for (Index begin = 0; begin < count; begin += group) {
    Eigen::bfloat16 const* rows[group];
    for (Index r = 0; r < group; ++r) rows[r] = from.row(first + std::min(begin + r, count - 1));
    if constexpr (G::tiled) {
      detail::pack_row_tiles(rows, from.dim_stride, dim, depth, to + begin * depth);
      continue;
    }
    Index k = 0;
    if (from.dim_stride == 1)
      for (; 2 * (k + lanes) <= dim; k += lanes, to += group * lanes) {
        Vector<float> block[group];
        for (Index r = 0; r < group; ++r) block[r] = detail::load_pairs(rows[r] + 2 * k);
        interleave(block);
        for (Index r = 0; r < group; ++r) detail::store_pairs(block[r], to + r * lanes);
      }
    for (; k < depth; ++k, to += group)
      for (Index r = 0; r < group; ++r) to[r] = detail::pair_of_row(rows[r], from.dim_stride, dim, k);
  }
}

/// pack_column_groups() for bfloat16: pairs of rows.
inline void pack_column_groups(HeadRows<Eigen::bfloat16 const> const& from, Index first, Index count, Index dim,
                               BfloatPair* to, RowSet& not_finite) {
  constexpr Index group = PackedGroup<BfloatPair>::rows, block = Blocking<float>::key_block / 2;
  not_finite.clear();
  auto const usable = [&](Index j) -> Eigen::bfloat16 const* {
    if (j >= count) return nullptr;
    Eigen::bfloat16 const* const row = from.row(first + j);
    if (all_finite<float>(row, from.dim_stride, dim)) return row;
    not_finite.insert(j);
    return nullptr;
  };
  if constexpr (PackedGroup<BfloatPair>::tiled) {
    Eigen::bfloat16 const* rows[Blocking<float>::key_block];
    for (Index j = 0; j < Blocking<float>::key_block; ++j) rows[j] = usable(j);
    detail::pack_column_tiles([&](Index j) { return rows[j]; }, from.dim_stride, dim, to);
    return;
  }
  for (Index j = 0; j < count; j += 2) {
    Eigen::bfloat16 const *const upper = usable(j), *const lower = usable(j + 1);
    for (Index d = 0; d < dim; d += group)
      detail::pair_rows(upper ? upper + d * from.dim_stride : nullptr, lower ? lower + d * from.dim_stride : nullptr,
                        from.dim_stride, std::min(group, dim - d), group, to + d * block + j / 2 * group);
  }
}

/// pack_strips() for bfloat16: pairs of rows, in strips of capacity / 2 rows of pairs.
inline void pack_strips(Eigen::bfloat16 const* const* rows, Index dim_stride, Index count, Index dim, BfloatPair* to,
                        Index capacity, RowSet* not_finite) {
  constexpr Index lanes = Blocking<float>::lanes;
  not_finite->clear();
  auto const usable = [&](Index i) -> Eigen::bfloat16 const* {
    if (i >= count || !rows[i]) return nullptr;
    if (all_finite<float>(rows[i], dim_stride, dim)) return rows[i];
    not_finite->insert(i);
    return nullptr;
  };
  for (Index i = 0; i < count; i += 2) {
    Eigen::bfloat16 const *const upper = usable(i), *const lower = usable(i + 1);
    for_each_strip<float>(
        Blocking<float>::dim_padded(dim), [&]<int Width>(Index d, std::integral_constant<int, Width>) {
          constexpr Index width = Width * lanes;
          detail::pair_rows(upper ? upper + d * dim_stride : nullptr, lower ? lower + d * dim_stride : nullptr,
                            dim_stride, std::min(width, dim - d), width, to + d * (capacity / 2) + i / 2 * width);
        });
  }
}

/// pack_panel() for bfloat16, without a scale: pairs along dim.
inline void pack_panel(Eigen::bfloat16 const* const* rows, Index dim_stride, Index dim, BfloatPair* to) {
  constexpr Index panel = Blocking<float>::panel, lanes = Blocking<float>::lanes;
  static constexpr std::uint16_t zeros[2 * lanes]{};
  Index k = 0;
  if (dim_stride == 1)
    for (; 2 * (k + lanes) <= dim; k += lanes)
      for (Index first = 0; first < panel; first += lanes) {
        Vector<float> block[lanes];
        for (Index i = 0; i < lanes; ++i)
          block[i] = detail::load_pairs(rows[first + i] ? rows[first + i] + 2 * k
                                                        : reinterpret_cast<Eigen::bfloat16 const*>(zeros));
        interleave(block);
        for (Index d = 0; d < lanes; ++d) detail::store_pairs(block[d], to + (k + d) * panel + first);
      }
  for (; k < PackedGroup<BfloatPair>::elements(dim); ++k)
    for (Index i = 0; i < panel; ++i)
      to[k * panel + i] = rows[i] ? detail::pair_of_row(rows[i], dim_stride, dim, k) : BfloatPair{0};
}

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
