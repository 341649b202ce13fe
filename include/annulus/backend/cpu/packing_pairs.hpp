#pragma once
// Packing of 16-bit operands as pairs of neighbours along the axis that a product sums over. The numbers stay as they are.

#include <cstring>

#include "annulus/backend/cpu/packing.hpp"
#include "annulus/backend/cpu/simd/operand.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

namespace detail {

using Bfloat = Eigen::bfloat16;

inline std::uint32_t bits_of(Bfloat const& x) { return Eigen::numext::bit_cast<std::uint16_t>(x); }

/// Elements 2 k and 2 k + 1 of a row of dim elements; what is beyond the row is 0.
inline BfloatPair pair_of_row(Bfloat const* row, Index dim_stride, Index dim, Index k) {
  std::uint32_t const high = 2 * k + 1 < dim ? bits_of(row[(2 * k + 1) * dim_stride]) : 0;
  return {bits_of(row[2 * k * dim_stride]) | high << 16};
}

/// lanes pairs from one row whose elements lie next to each other; only moved about, never computed with.
inline Vector<float> load_pairs(Bfloat const* from) {
  Vector<float> pairs;
  std::memcpy(&pairs.native, from, sizeof pairs.native);
  return pairs;
}
inline void store_pairs(Vector<float> pairs, BfloatPair* to) { std::memcpy(to, &pairs.native, sizeof pairs.native); }

/// to[d] = (upper[d], lower[d]) for d < dim, zeros up to `padded`; null rows are zeros.
inline void pair_rows(Bfloat const* upper, Bfloat const* lower, Index dim_stride, Index dim, Index padded, BfloatPair* to) {
  auto const element = [&](Bfloat const* row, Index d) { return row ? bits_of(row[d * dim_stride]) : 0u; };
  if (upper && lower && dim_stride == 1)
    for (Index d = 0; d < dim; ++d) to[d].bits = bits_of(upper[d]) | bits_of(lower[d]) << 16;
  else
    for (Index d = 0; d < dim; ++d) to[d].bits = element(upper, d) | element(lower, d) << 16;
  for (Index d = dim; d < padded; ++d) to[d].bits = 0;
}

}  // namespace detail

/// As for numbers; pairs along dim.
inline void pack_row_groups(HeadRows<Eigen::bfloat16 const> const& from, Index first, Index count, Index dim, BfloatPair* to) {
  constexpr Index group = Blocking<float>::micro_rows, lanes = Blocking<float>::lanes;
  Index const depth = ceil_divide(dim, 2);
  for (Index begin = 0; begin < count; begin += group) {
    Eigen::bfloat16 const* rows[group];
    for (Index r = 0; r < group; ++r) rows[r] = from.row(first + std::min(begin + r, count - 1));
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

/// As for numbers; pairs of rows: [dim / micro_rows][key_block / 2][micro_rows].
inline void pack_column_groups(HeadRows<Eigen::bfloat16 const> const& from, Index first, Index count, Index dim, BfloatPair* to,
                               RowSet& not_finite) {
  constexpr Index group = Blocking<float>::micro_rows, block = Blocking<float>::key_block / 2;
  not_finite.clear();
  auto const usable = [&](Index j) -> Eigen::bfloat16 const* {
    if (j >= count) return nullptr;
    Eigen::bfloat16 const* const row = from.row(first + j);
    if (all_finite<float>(row, from.dim_stride, dim)) return row;
    not_finite.insert(j);
    return nullptr;
  };
  for (Index j = 0; j < count; j += 2) {
    Eigen::bfloat16 const *const upper = usable(j), *const lower = usable(j + 1);
    for (Index d = 0; d < dim; d += group)
      detail::pair_rows(upper ? upper + d * from.dim_stride : nullptr, lower ? lower + d * from.dim_stride : nullptr, from.dim_stride,
                        std::min(group, dim - d), group, to + d * block + j / 2 * group);
  }
}

/// As for numbers; pairs of rows, in strips of capacity / 2 rows of pairs.
inline void pack_strips(Eigen::bfloat16 const* const* rows, Index dim_stride, Index count, Index dim, BfloatPair* to, Index capacity,
                        RowSet* not_finite) {
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
    for_each_strip<float>(Blocking<float>::dim_padded(dim), [&]<int Width>(Index d, std::integral_constant<int, Width>) {
      constexpr Index width = Width * lanes;
      detail::pair_rows(upper ? upper + d * dim_stride : nullptr, lower ? lower + d * dim_stride : nullptr, dim_stride,
                        std::min(width, dim - d), width, to + d * (capacity / 2) + i / 2 * width);
    });
  }
}

/// As for numbers; pairs along dim.
inline void pack_panel(Eigen::bfloat16 const* const* rows, Index dim_stride, Index dim, BfloatPair* to) {
  constexpr Index panel = Blocking<float>::panel, lanes = Blocking<float>::lanes;
  static constexpr std::uint16_t zeros[2 * lanes]{};
  Index k = 0;
  if (dim_stride == 1)
    for (; 2 * (k + lanes) <= dim; k += lanes)
      for (Index first = 0; first < panel; first += lanes) {
        Vector<float> block[lanes];
        for (Index i = 0; i < lanes; ++i)
          block[i] = detail::load_pairs(rows[first + i] ? rows[first + i] + 2 * k : reinterpret_cast<Eigen::bfloat16 const*>(zeros));
        interleave(block);
        for (Index d = 0; d < lanes; ++d) detail::store_pairs(block[d], to + (k + d) * panel + first);
      }
  for (; 2 * k < dim; ++k)
    for (Index i = 0; i < panel; ++i) to[k * panel + i] = rows[i] ? detail::pair_of_row(rows[i], dim_stride, dim, k) : BfloatPair{0};
}

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
