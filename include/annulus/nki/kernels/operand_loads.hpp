#pragma once
// Loads of operands from HBM into SBUF in the two layouts that TensorE contracts over: by feature (partition = element
// of head_dim or value_dim) and by token (partition = row).

#include <algorithm>
#include <utility>

#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/kernels/rotating_tile.hpp"

namespace annulus::nki {

/// One head of a tensor in HBM: [dim, rows] or, by token, [rows, dim].
struct HeadSource {
  TensorHandle tensor;
  Affine offset;
  Index rows = 0;
  Index dim = 0;
  bool by_token = false;
};

/// Transposes on TensorE through PSUM; the caller chooses the engine that copies the result out of PSUM.
class Transposer {
 public:
  Transposer(Builder& builder, ElementType type)
      : builder_(&builder), tiles_(builder, "transposed", Memory::psum, tile_rows, tile_rows * blocks, type, 2) {}

  /// Transposes `count` blocks of up to 128 x 128: from(i) is the access to block i; `destination` is the adjacent
  /// results.
  template <class From>
  void run(Index rows, Index columns, Index count, From&& from, Access const& destination, Engine evacuation) {
    tiles_.make();
    TileHandle const staged = tiles_.newest();
    for (Index i = 0; i < count; ++i) builder_->emit(Transpose{staged.part(0, columns, i * rows, rows), from(i)});
    builder_->emit(TensorCopy{destination, staged.part(0, columns, 0, count * rows), evacuation});
  }

  /// Blocks of 128 columns per PSUM tile: at most a bank of fp32.
  static constexpr Index blocks = 4;

 private:
  Builder* builder_;
  RotatingTile tiles_;
};

/// Emits the loads; transposes with TensorE where HBM holds the other layout.
class OperandLoads {
 public:
  OperandLoads(Builder& builder, Transposer& transposer, ElementType type, Index widest)
      : builder_(&builder), transposer_(&transposer), type_(type), widest_(widest) {}

  /// Loads rows [begin, begin + count) by feature: chunk c of 128 features at columns c * pitch + column of `tile`.
  void by_feature(HeadSource const& source, Affine const& begin, Index count, TileHandle const& tile, Index pitch,
                  Index column = 0) {
    Chunks const chunks{source.dim};
    if (!source.by_token) {
      for (Index c = 0; c < chunks.count(); ++c)
        builder_->emit(DmaCopy{tile.part(0, chunks.size(c), c * pitch + column, count),
                               source.tensor.pattern(source.offset + begin + c * tile_rows * source.rows,
                                                     {{source.rows, chunks.size(c)}, {1, count}})});
      return;
    }
    for (Index block = 0; block < count; block += tile_rows) {
      Index const rows = std::min(tile_rows, count - block);
      TileHandle const staged = stage();
      builder_->emit(DmaCopy{
          staged.part(0, rows, 0, source.dim),
          source.tensor.pattern(source.offset + (begin + block) * source.dim, {{source.dim, rows}, {1, source.dim}})});
      for (Index c = 0; c < chunks.count(); ++c)
        transposer_->run(
            rows, chunks.size(c), 1, [&](Index) { return staged.part(0, rows, c * tile_rows, chunks.size(c)); },
            tile.part(0, chunks.size(c), c * pitch + column + block, rows), Engine::vector);
    }
  }

  /// Loads rows [begin, begin + count) by token: block b of 128 rows at columns (first_block + b) * dim of `tile`.
  void by_token(HeadSource const& source, Affine const& begin, Index count, TileHandle const& tile,
                Index first_block = 0) {
    Index const whole = count / tile_rows, rest = count % tile_rows, dim = source.dim;
    if (source.by_token) {
      if (whole > 0)
        builder_->emit(DmaCopy{tile.pattern(0, tile_rows, first_block * dim, {{dim, whole}, {1, dim}}),
                               source.tensor.pattern(source.offset + begin * dim,
                                                     {{dim, tile_rows}, {tile_rows * dim, whole}, {1, dim}})});
      if (rest > 0)
        builder_->emit(
            DmaCopy{tile.part(0, rest, (first_block + whole) * dim, dim),
                    source.tensor.pattern(source.offset + (begin + whole * tile_rows) * dim, {{dim, rest}, {1, dim}})});
      return;
    }
    Chunks const chunks{dim};
    for (Index block = 0; block < count; block += tile_rows) {
      Index const rows = std::min(tile_rows, count - block);
      for (Index c = 0; c < chunks.count(); ++c) {
        TileHandle const staged = stage();
        builder_->emit(DmaCopy{staged.part(0, chunks.size(c), 0, rows),
                               source.tensor.pattern(source.offset + begin + block + c * tile_rows * source.rows,
                                                     {{source.rows, chunks.size(c)}, {1, rows}})});
        transposer_->run(
            chunks.size(c), rows, 1, [&](Index) { return staged.part(0, chunks.size(c), 0, rows); },
            tile.part(0, rows, (first_block + block / tile_rows) * dim + c * tile_rows, chunks.size(c)),
            Engine::vector);
      }
    }
  }

 private:
  TileHandle stage() {
    if (!staging_declared_) {
      staging_ = RotatingTile(*builder_, "staged", Memory::sbuf, tile_rows, std::max(widest_, tile_rows), type_, 2);
      staging_declared_ = true;
    }
    staging_.make();
    return staging_.newest();
  }

  Builder* builder_;
  Transposer* transposer_;
  ElementType type_;
  Index widest_;
  RotatingTile staging_;
  bool staging_declared_ = false;
};

}  // namespace annulus::nki
