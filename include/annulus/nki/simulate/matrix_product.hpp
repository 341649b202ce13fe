#pragma once
// Matrix product of TensorE: both factors have the contracted axis first. Every element of the result is one chain of
// multiply-adds in the order of that axis, so that it does not depend on the shapes of the operands.

#include <algorithm>
#include <cstring>

#include "annulus/nki/simulate/memory.hpp"

namespace annulus::nki::simulator {

/// A matrix of rows x columns whose element (i, j) is at base[i * stride + j].
struct ConstMatrix {
  float const* base;
  Index rows, columns, stride;
};

namespace matrix_product_detail {

// The block of the result that is held in registers, as large as they allow.
#if defined(__AVX512F__)
inline constexpr Index lanes = 16, block_rows = 8;
#elif defined(__AVX__)
inline constexpr Index lanes = 8, block_rows = 6;
#else
inline constexpr Index lanes = 4, block_rows = 6;
#endif
inline constexpr Index vectors = 2, block_columns = vectors * lanes;
inline constexpr Index panels_at_once = 4;  // so that a cache line is used for several panels while it is cached
using Lanes [[gnu::vector_size(lanes * sizeof(float))]] = float;

/// Packs `panels` panels of `width` columns each, from column `begin` on: one panel after the other, each row by row.
/// Columns beyond the matrix are 0.
template <Index width, Index panels>
void pack(ConstMatrix const& from, Index begin, float* out) {
  bool const whole = begin + panels * width <= from.columns;
  for (Index k = 0; k < from.rows; ++k)
    for (Index panel = 0; panel < panels; ++panel) {
      Index const column = begin + panel * width;
      float const* const row = from.base + k * from.stride + column;
      float* const to = out + (panel * from.rows + k) * width;
      if (whole)
        std::memcpy(to, row, width * sizeof(float));
      else
        for (Index j = 0; j < width; ++j) to[j] = column + j < from.columns ? row[j] : 0.0f;
    }
}

/// out[block_rows, block_columns] = sum over k of a[k, row] * b[k, column], for packed a and b.
inline void multiply_block(Index depth, float const* a, float const* b, float* out) {
  Lanes sums[block_rows][vectors] = {};
  for (Index k = 0; k < depth; ++k, a += block_rows, b += block_columns) {
    Lanes right[vectors];
    for (Index v = 0; v < vectors; ++v) std::memcpy(&right[v], b + v * lanes, sizeof(Lanes));
    for (Index row = 0; row < block_rows; ++row)
      for (Index v = 0; v < vectors; ++v) sums[row][v] += a[row] * right[v];
  }
  std::memcpy(out, sums, sizeof sums);
}

}  // namespace matrix_product_detail

/// to[m, n] = sum over k of a[k, m] * b[k, n], or += if `accumulate`; row m begins at to + m * stride. `packed` is
/// working storage.
inline void multiply_transposed(ConstMatrix const& a, ConstMatrix const& b, bool accumulate, float* to, Index stride,
                                Scratch& packed) {
  using namespace matrix_product_detail;
  Index const depth = a.rows, blocks = ceil_divide(a.columns, block_rows);
  Index const panels = ceil_divide(blocks, panels_at_once) * panels_at_once;
  float* const a_packed = packed.of(depth * (panels * block_rows + block_columns));
  float* const b_packed = a_packed + depth * panels * block_rows;
  for (Index i = 0; i < panels; i += panels_at_once)
    pack<block_rows, panels_at_once>(a, i * block_rows, a_packed + i * block_rows * depth);
  for (Index column = 0; column < b.columns; column += block_columns) {
    pack<block_columns, 1>(b, column, b_packed);
    Index const width = std::min(block_columns, b.columns - column);
    for (Index i = 0; i < blocks; ++i) {
      alignas(64) float block[block_rows * block_columns];
      multiply_block(depth, a_packed + i * block_rows * depth, b_packed, block);
      Index const height = std::min(block_rows, a.columns - i * block_rows);
      for (Index row = 0; row < height; ++row) {
        float* const out = to + (i * block_rows + row) * stride + column;
        float const* const from = block + row * block_columns;
        if (accumulate)
          for (Index j = 0; j < width; ++j) out[j] += from[j];
        else if (width == block_columns)
          std::memcpy(out, from, block_columns * sizeof(float));
        else
          std::copy(from, from + width, out);
      }
    }
  }
}

}  // namespace annulus::nki::simulator
