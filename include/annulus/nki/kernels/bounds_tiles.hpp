#pragma once
// Ranges of a RingMask in SBUF: one column of bounds per row tile and key piece.

#include <vector>

#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/kernels/rotating_tile.hpp"
#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// Declares the mask input of a kernel: `mask_offsets` [ranks, query pieces * key pieces * 2], or `mask_ranges`
/// [ranks, batch or 1, key pieces, 2, rows], float32 (see RingMask::offsets and ranges), or none.
inline TensorHandle declare_mask_input(Builder& builder, RingMask const& mask, Index rows, int world) {
  auto const pieces = static_cast<Index>(mask.pieces().size());
  if (mask.form() == BoundsForm::band)
    return builder.tensor("mask_offsets", {world, static_cast<Index>(mask.query_pieces().size()) * pieces * 2},
                          ElementType::float32, Role::input);
  if (mask.form() == BoundsForm::ranges)
    return builder.tensor("mask_ranges", {world, mask.batch(), pieces, 2, rows}, ElementType::float32, Role::input);
  return {};
}

/// Bounds of the row tiles of one list: begin (inclusive) and end (exclusive) of the keys that each row sees.
class BoundsTiles {
 public:
  BoundsTiles(Builder& builder, RingMask const& mask, TensorHandle input, std::vector<RowTile> const& tiles,
              std::string const& name)
      : builder_(&builder), mask_(&mask), input_(std::move(input)), tiles_(&tiles) {
    if (mask.form() == BoundsForm::none) return;
    begins_ = RotatingTile(builder, name + "_begin", Memory::sbuf, tile_rows, columns(), ElementType::float32, 2);
    ends_ = RotatingTile(builder, name + "_end", Memory::sbuf, tile_rows, columns(), ElementType::float32, 2);
    if (mask.form() != BoundsForm::band) return;
    rows_ = builder.declare(name + "_rows", Memory::sbuf, tile_rows, static_cast<Index>(tiles.size()),
                            ElementType::float32);
    Index const width = input_.shape[1];
    offset_row_ = RotatingTile(builder, name + "_offset_row", Memory::sbuf, 1, width, ElementType::float32, 2);
    offsets_ = RotatingTile(builder, name + "_offsets", Memory::sbuf, tile_rows, width, ElementType::float32, 2);
  }

  /// False if everything is visible: then nothing is loaded.
  bool needed() const { return mask_->form() != BoundsForm::none; }

  /// Computes the row numbers to which bands are relative; call once, before the first load().
  void prepare() {
    if (mask_->form() != BoundsForm::band) return;
    builder_->allocate(rows_);
    for (TileRun const& run : runs_of(*tiles_)) {
      RowTile const& tile = (*tiles_)[run.first];
      auto const count = static_cast<Index>(run.last - run.first);
      builder_->emit(Iota{rows_.columns(static_cast<Index>(run.first), count), {{run.stride, count}}, tile.begin, 1});
    }
  }

  /// Loads the bounds of a batch item for the keys of the owner in `owner_register` (negative: table row 0).
  /// Returns the number by which begin() and end() refer to them.
  Index load(int owner_register, Affine const& batch) {
    Index const number = begins_.make();
    ends_.make();
    mask_->form() == BoundsForm::band ? load_band(owner_register) : load_ranges(owner_register, batch);
    return number;
  }

  /// First key (begin) and one past the last key (end) that each row of a tile sees, [rows, 1].
  Access begin(Index number, std::size_t piece, std::size_t tile) const { return column(begins_[number], piece, tile); }
  Access end(Index number, std::size_t piece, std::size_t tile) const { return column(ends_[number], piece, tile); }

 private:
  Index columns() const { return static_cast<Index>(mask_->pieces().size() * tiles_->size()); }
  Access column(TileHandle const& bounds, std::size_t piece, std::size_t tile) const {
    return bounds.part(0, (*tiles_)[tile].count, static_cast<Index>(piece * tiles_->size() + tile), 1);
  }
  Access from_table(int owner_register, Affine offset, std::initializer_list<Axis> axes) const {
    Access access = input_.pattern(std::move(offset), axes);
    if (owner_register >= 0) access.register_offset = RegisterOffset{owner_register, 0};
    return access;
  }

  void load_band(int owner_register) {
    Index const width = input_.shape[1];
    offset_row_.make();
    offsets_.make();
    TileHandle const row = offset_row_.newest(), all = offsets_.newest();
    builder_->emit(DmaCopy{row.whole(), from_table(owner_register, 0, {{width, 1}, {1, width}})});
    for (Index quadrant = 0; quadrant < tile_rows; quadrant += 32)
      builder_->emit(StreamShuffle{all.part(quadrant, 32, 0, width), row.whole(), std::vector<int>(32, 0)});
    auto const& query_pieces = mask_->query_pieces();
    for (std::size_t q = 0; q < query_pieces.size(); ++q) {
      auto const inside = [&](RowTile const& tile) {
        return tile.rows_of_all_cores.begin >= query_pieces[q].begin &&
               tile.rows_of_all_cores.end <= query_pieces[q].end;
      };
      auto const first = static_cast<Index>(std::ranges::find_if(*tiles_, inside) - tiles_->begin());
      auto const count = static_cast<Index>(std::ranges::count_if(*tiles_, inside));
      for (std::size_t piece = 0; count > 0 && piece < mask_->pieces().size(); ++piece) {
        Index const at = static_cast<Index>((q * mask_->pieces().size() + piece) * 2);
        Index const column = static_cast<Index>(piece * tiles_->size()) + first;
        auto const limit = [](Index row_number) { return Scalar{static_cast<float>(row_number)}; };
        builder_->emit(TensorScalar{begins_.newest().columns(column, count), rows_.columns(first, count), Operator::add,
                                    all.column(at), false, Operator::maximum, limit(mask_->pieces()[piece].begin),
                                    false, Engine::vector});
        builder_->emit(TensorScalar{ends_.newest().columns(column, count), rows_.columns(first, count), Operator::add,
                                    all.column(at + 1), false, Operator::minimum, limit(mask_->pieces()[piece].end),
                                    false, Engine::vector});
      }
    }
  }

  void load_ranges(int owner_register, Affine const& batch) {
    Index const rows = input_.shape[4];
    auto const pieces = static_cast<Index>(mask_->pieces().size());
    for (Index piece = 0; piece < pieces; ++piece)
      for (Index which = 0; which < 2; ++which)
        for (TileRun const& run : runs_of(*tiles_)) {
          RowTile const& tile = (*tiles_)[run.first];
          auto const count = static_cast<Index>(run.last - run.first);
          Affine const item = mask_->batch() > 1 ? batch : Affine(0);
          TileHandle const to = which == 0 ? begins_.newest() : ends_.newest();
          builder_->emit(DmaCopy{
              to.part(0, tile.count, piece * static_cast<Index>(tiles_->size()) + static_cast<Index>(run.first), count),
              from_table(owner_register, item * (pieces * 2 * rows) + (piece * 2 + which) * rows + tile.begin,
                         {{1, tile.count}, {run.stride, count}})});
        }
  }

  Builder* builder_;
  RingMask const* mask_;
  TensorHandle input_;
  std::vector<RowTile> const* tiles_;
  RotatingTile begins_, ends_, offset_row_, offsets_;
  TileHandle rows_;
};

}  // namespace annulus::nki
