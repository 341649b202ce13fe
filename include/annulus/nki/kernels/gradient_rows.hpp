#pragma once
// Gradient rows in HBM, float32 by token: store, accumulate, clear, and sum of two parts.

#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/rotating_tile.hpp"
#include "annulus/nki/kernels/row_tiles.hpp"
#include "annulus/nki/program/roll.hpp"

namespace annulus::nki {

/// Gradient rows of one head in HBM, [rows, dim].
struct GradientTarget {
  TensorHandle tensor;
  Affine offset;
  Index rows = 0, dim = 0;

  /// Rows [begin, begin + count).
  Access block(Affine const& begin, Index count) const {
    return tensor.pattern(offset + begin * dim, {{dim, count}, {1, dim}});
  }
};

/// Emits the accesses to gradients in HBM.
class GradientRows {
 public:
  GradientRows(Builder& builder, Index widest, Index key_tile_blocks)
      : builder_(&builder),
        before_(builder, "gradient_before", Memory::sbuf, tile_rows, widest * key_tile_blocks, ElementType::float32,
                3) {
    zeros_ = builder.declare("gradient_zeros", Memory::sbuf, tile_rows, widest, ElementType::float32);
  }

  /// Stores, or adds if `add`, rows [begin, begin + count) of the target; `gradient` holds block b of 128 rows at
  /// columns b * dim.
  void store(GradientTarget const& to, Index begin, Index count, TileHandle const& gradient, bool add) {
    for (auto const& [first, rows, blocks] : parts_of(count)) {
      Access const here = gradient.pattern(0, rows, first / tile_rows * to.dim, {{to.dim, blocks}, {1, to.dim}});
      Access const there = to.tensor.pattern(to.offset + (begin + first) * to.dim,
                                             {{to.dim, rows}, {tile_rows * to.dim, blocks}, {1, to.dim}});
      if (add) add_from(there, here, rows, first / tile_rows * to.dim, blocks, to.dim);
      builder_->emit(DmaCopy{there, here});
    }
  }

  /// Stores, or adds if `add`, the gradient of a query row tile, which two cores may share.
  void store(GradientTarget const& to, RowTile const& tile, TileHandle const& gradient, bool add) {
    if (add) {
      before_.make();
      TileHandle const before = before_.newest();
      if (tile.overlaps) builder_->emit(Memset{before.part(0, tile.count, 0, to.dim), 0.0f, Engine::gpsimd});
      store_once(*builder_, tile, [&](Index row, Index rows) {
        builder_->emit(DmaCopy{before.part(row, rows, 0, to.dim), to.block(tile.begin + row, rows)});
      });
      Access const sum = gradient.part(0, tile.count, 0, to.dim);
      builder_->emit(TensorTensor{sum, sum, before.part(0, tile.count, 0, to.dim), Operator::add, Engine::gpsimd});
    }
    store_once(*builder_, tile, [&](Index row, Index rows) {
      builder_->emit(DmaCopy{to.block(tile.begin + row, rows), gradient.part(row, rows, 0, to.dim)});
    });
  }

  /// Zeroes rows [begin, begin + count) of the target.
  void clear(GradientTarget const& to, Index begin, Index count) {
    builder_->allocate(zeros_);
    builder_->emit(Memset{zeros_.whole(), 0.0f, Engine::gpsimd});
    for (Index first = 0; first < count; first += tile_rows) {
      Index const rows = std::min(tile_rows, count - first);
      builder_->emit(DmaCopy{to.block(begin + first, rows), zeros_.part(0, rows, 0, to.dim)});
    }
  }

  /// to = a + b, or to += a + b if `add`; row tiles alternate between the cores of a pair.
  void join(GradientTarget const& to, GradientTarget const& a, GradientTarget const& b, bool add) {
    std::vector<Body> bodies;
    for (RowTile const& tile : row_tiles(to.rows, true))
      bodies.push_back(builder_->collect([&] {
        Index const left = before_.make(), right = before_.make();
        Access const sum = before_[left].part(0, tile.count, 0, to.dim);
        builder_->emit(DmaCopy{sum, a.block(tile.begin, tile.count)});
        builder_->emit(DmaCopy{before_[right].part(0, tile.count, 0, to.dim), b.block(tile.begin, tile.count)});
        builder_->emit(
            TensorTensor{sum, sum, before_[right].part(0, tile.count, 0, to.dim), Operator::add, Engine::gpsimd});
        if (add) {
          // Reuses the tile `right`: a new one would change the age of `left`.
          store_once(*builder_, tile, [&](Index row, Index rows) {
            builder_->emit(DmaCopy{before_[right].part(row, rows, 0, to.dim), to.block(tile.begin + row, rows)});
          });
          builder_->emit(
              TensorTensor{sum, sum, before_[right].part(0, tile.count, 0, to.dim), Operator::add, Engine::gpsimd});
        }
        store(to, tile, before_[left], false);
      }));
    append_rolled(*builder_, "row_tile", std::move(bodies));
  }

 private:
  struct Part {
    Index first, rows, blocks;
  };
  /// All whole blocks of 128 rows as one part, and the remainder as another.
  static std::vector<Part> parts_of(Index count) {
    std::vector<Part> parts;
    if (count >= tile_rows) parts.push_back({0, tile_rows, count / tile_rows});
    if (count % tile_rows > 0) parts.push_back({count / tile_rows * tile_rows, count % tile_rows, 1});
    return parts;
  }

  void add_from(Access const& there, Access const& here, Index rows, Index column, Index blocks, Index dim) {
    before_.make();
    Access const before = before_.newest().pattern(0, rows, column, {{dim, blocks}, {1, dim}});
    builder_->emit(DmaCopy{before, there});
    builder_->emit(TensorTensor{here, here, before, Operator::add, Engine::gpsimd});
  }

  Builder* builder_;
  RotatingTile before_;
  TileHandle zeros_;
};

}  // namespace annulus::nki
