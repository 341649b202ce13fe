#pragma once
// Inputs of a kernel and their loads into SBUF: operands in the two layouts that TensorE contracts over, by feature
// (partition = element of head_dim or value_dim) and by token (partition = row), panels of queries, bounds of the mask.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/kernels/row_tiles.hpp"

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
      : builder_(&builder), tiles_(builder, "transposed", tile_rows * blocks, type, 2, Memory::psum) {}

  /// Transposes `count` blocks of up to 128 x 128: from(i) is the access to block i; `destination` is the adjacent
  /// results.
  template <class From>
  void run(Index rows, Index columns, Index count, From&& from, Access const& destination, Engine evacuation) {
    TileHandle const staged = tiles_.make_tile();
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
  OperandLoads(Builder& builder, KernelSpec const& spec)
      : transposer(builder, spec.type), builder_(&builder), type_(spec.type), widest_(spec.widest()) {}

  Transposer transposer;  ///< free for other uses between loads

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
      builder_->emit(DmaCopy{staged.part(0, rows, 0, source.dim),
                             rows_at(source.tensor, source.offset + (begin + block) * source.dim, rows, source.dim)});
      for (Index c = 0; c < chunks.count(); ++c)
        transposer.run(
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
        builder_->emit(DmaCopy{tile.part(0, rest, (first_block + whole) * dim, dim),
                               rows_at(source.tensor, source.offset + (begin + whole * tile_rows) * dim, rest, dim)});
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
        transposer.run(
            chunks.size(c), rows, 1, [&](Index) { return staged.part(0, chunks.size(c), 0, rows); },
            tile.part(0, rows, (first_block + block / tile_rows) * dim + c * tile_rows, chunks.size(c)),
            Engine::vector);
      }
    }
  }

 private:
  TileHandle stage() {
    if (!staging_declared_) {
      staging_ = RotatingTile(*builder_, "staged", std::max(widest_, tile_rows), type_);
      staging_declared_ = true;
    }
    return staging_.make_tile();
  }

  Builder* builder_;
  ElementType type_;
  Index widest_;
  RotatingTile staging_;
  bool staging_declared_ = false;
};

/// Loads panels of queries and tracks the newest.
class QueryPanels {
 public:
  /// Location of the queries of a row tile: number of the panel's tile, and first column in it.
  struct Place {
    Index number = -1, column = 0;
  };

  /// Panels of up to `most` row tiles; queries are multiplied by `factor`.
  QueryPanels(Builder& builder, OperandLoads& loads, KernelSpec const& spec, Index most, float factor)
      : builder_(&builder), loads_(&loads), chunks_{spec.shape.head_dim}, most_(most), factor_(factor),
        panel_(builder, "queries", chunks_.count() * most * tile_rows, spec.type, 2, Memory::sbuf, chunks_.largest()) {}

  /// `source`: the queries of the first head of the group that shares keys.
  void begin_round(HeadSource source, std::vector<RowTile> const& tiles) {
    source_ = std::move(source);
    tiles_ = &tiles;
    newest_.reset();
    panels_.clear();
    for (TileRun const& run : runs_of(tiles)) {
      // Tiles that alternate between cores are not adjacent.
      std::size_t const length = run.stride == tile_rows ? static_cast<std::size_t>(most_) : 1;
      for (std::size_t first = run.first; first < run.last; first += length)
        panels_.push_back({first, std::min(run.last, first + length), run.stride});
    }
  }

  /// Returns the location of a row tile's queries; loads its panel unless that is the newest.
  Place fetch(Index head, std::size_t tile) {
    auto const panel = std::ranges::find_if(panels_, [&](TileRun const& run) { return tile < run.last; });
    std::pair const wanted{head, panel->first};
    if (newest_ != wanted) load(head, *panel);
    newest_ = wanted;
    return {panel_.newest_number(), static_cast<Index>(tile - panel->first) * tile_rows};
  }

  /// Access to chunk c of the features of `rows` queries.
  Access chunk(Place const& place, Index c, Index rows) {
    return panel_[place.number].part(0, chunks_.size(c), c * most_ * tile_rows + place.column, rows);
  }

 private:
  void load(Index head, TileRun const& panel) {
    panel_.make();
    HeadSource source = source_;
    source.offset += Affine(head * source.rows * source.dim);
    Index const count = (panel.count() - 1) * tile_rows + (*tiles_)[panel.last - 1].count;
    loads_->by_feature(source, (*tiles_)[panel.first].begin, count, panel_.newest(), most_ * tile_rows);
    if (factor_ == 1) return;
    for (Index c = 0; c < chunks_.count(); ++c) {
      Access const part = panel_.newest().part(0, chunks_.size(c), c * most_ * tile_rows, count);
      builder_->emit(TensorScalar{.dst = part, .data = part, .operand0 = factor_, .engine = Engine::gpsimd});
    }
  }

  Builder* builder_;
  OperandLoads* loads_;
  Chunks chunks_;
  Index most_;
  float factor_;
  RotatingTile panel_;
  HeadSource source_;
  std::vector<RowTile> const* tiles_ = nullptr;
  std::vector<TileRun> panels_;
  std::optional<std::pair<Index, std::size_t>> newest_;  // head, first tile
};

/// Inputs of a kernel.
struct KernelInputs {
  TensorHandle q, k, v;
  TensorHandle dout;  ///< of a backward kernel
  TensorHandle mask;  ///< without buffer: everything is visible
};

/// Declares the inputs. The mask is `mask_offsets` [ranks, query pieces * key pieces * 2], or `mask_ranges` [ranks,
/// batch or 1, key pieces, 2, rows], float32 (see RingMask::offsets and ranges), or none. Throws ShapeError if it does
/// not match the spec.
inline KernelInputs declare_inputs(Builder& builder, KernelSpec const& spec, RingMask const& mask, bool backward) {
  mask.check_for(spec, builder.program().ranks);
  auto const& shape = spec.shape;
  auto const operand = [&](char const* name, Index heads, Index rows, Index dim, bool by_token = true) {
    return builder.tensor(name, {shape.batch, heads, by_token ? rows : dim, by_token ? dim : rows}, spec.type,
                          Role::input);
  };
  KernelInputs inputs;
  inputs.q = operand("q", shape.query_heads, spec.local_queries, shape.head_dim, spec.queries_by_token);
  inputs.k = operand("k", shape.kv_heads, spec.local_keys, shape.head_dim, spec.keys_by_token);
  inputs.v = operand("v", shape.kv_heads, spec.local_keys, shape.value_dim);
  if (backward) inputs.dout = operand("dout", shape.query_heads, spec.local_queries, shape.value_dim);
  Index const ranks = builder.program().ranks == 1 ? 1 : spec.ranks * spec.groups, pieces = std::ssize(mask.pieces());
  auto const bounds = [&](char const* name, std::vector<Index> extents) {
    inputs.mask = builder.tensor(name, std::move(extents), ElementType::float32, Role::input);
  };
  if (mask.form() == BoundsForm::band) bounds("mask_offsets", {ranks, std::ssize(mask.query_pieces()) * pieces * 2});
  if (mask.form() == BoundsForm::ranges) bounds("mask_ranges", {ranks, mask.batch(), pieces, 2, spec.local_queries});
  return inputs;
}

/// Bounds of the row tiles of one list: begin (inclusive) and end (exclusive) of the keys that each row sees.
class BoundsTiles {
 public:
  BoundsTiles(Builder& builder, RingMask const& mask, TensorHandle input, std::vector<RowTile> const& tiles,
              std::string const& name)
      : builder_(&builder), mask_(&mask), input_(std::move(input)), tiles_(&tiles) {
    if (mask.form() == BoundsForm::none) return;
    begins_ = RotatingTile(builder, name + "_begin", columns());
    ends_ = RotatingTile(builder, name + "_end", columns());
    if (mask.form() != BoundsForm::band) return;
    rows_ = builder.declare(name + "_rows", Memory::sbuf, tile_rows, std::ssize(tiles), ElementType::float32);
    Index const width = input_.shape[1];
    offset_row_ = RotatingTile(builder, name + "_offset_row", width, ElementType::float32, 2, Memory::sbuf, 1);
    offsets_ = RotatingTile(builder, name + "_offsets", width);
  }

  /// False if everything is visible: then nothing is loaded.
  bool needed() const { return mask_->form() != BoundsForm::none; }

  /// Computes the row numbers to which bands are relative; call once, before the first load().
  void prepare() {
    if (mask_->form() != BoundsForm::band) return;
    builder_->allocate(rows_);
    for (TileRun const& run : runs_of(*tiles_)) {
      RowTile const& tile = (*tiles_)[run.first];
      builder_->emit(
          Iota{rows_.columns(static_cast<Index>(run.first), run.count()), {{run.stride, run.count()}}, tile.begin, 1});
    }
  }

  /// Loads the bounds of a batch item for the keys of the owner in `owner_register` (negative: table row 0).
  /// Returns the number by which bound() refers to them.
  Index load(int owner_register, Affine const& batch) {
    Index const number = begins_.make();
    ends_.make();
    mask_->form() == BoundsForm::band ? load_band(owner_register) : load_ranges(owner_register, batch);
    return number;
  }

  /// First key, or one past the last key (`end`), that each row of a tile sees, [rows, 1].
  Access bound(bool end, Index number, std::size_t piece, std::size_t tile) const {
    return (end ? ends_ : begins_)[number].part(0, (*tiles_)[tile].count,
                                                static_cast<Index>(piece * tiles_->size() + tile), 1);
  }

 private:
  Index columns() const { return static_cast<Index>(mask_->pieces().size() * tiles_->size()); }
  Access from_table(int owner_register, Affine offset, std::initializer_list<Axis> axes) const {
    Access access = input_.pattern(std::move(offset), axes);
    if (owner_register >= 0) access.register_offset = RegisterOffset{owner_register, 0};
    return access;
  }

  void load_band(int owner_register) {
    Index const width = input_.shape[1];
    TileHandle const row = offset_row_.make_tile(), all = offsets_.make_tile();
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
        RowRange const keys = mask_->pieces()[piece];
        Index const at = static_cast<Index>((q * mask_->pieces().size() + piece) * 2);
        Index const column = static_cast<Index>(piece * tiles_->size()) + first;
        for (bool end : {false, true})
          builder_->emit(TensorScalar{(end ? ends_ : begins_).newest().columns(column, count),
                                      rows_.columns(first, count), Operator::add, all.column(at + end), false,
                                      end ? Operator::minimum : Operator::maximum,
                                      static_cast<float>(end ? keys.end : keys.begin)});
      }
    }
  }

  void load_ranges(int owner_register, Affine const& batch) {
    Index const rows = input_.shape[4];
    auto const pieces = std::ssize(mask_->pieces());
    for (Index piece = 0; piece < pieces; ++piece)
      for (Index which = 0; which < 2; ++which)
        for (TileRun const& run : runs_of(*tiles_)) {
          RowTile const& tile = (*tiles_)[run.first];
          Affine const item = mask_->batch() > 1 ? batch : Affine(0);
          TileHandle const to = (which == 0 ? begins_ : ends_).newest();
          builder_->emit(
              DmaCopy{to.part(0, tile.count, piece * std::ssize(*tiles_) + static_cast<Index>(run.first), run.count()),
                      from_table(owner_register, item * (pieces * 2 * rows) + (piece * 2 + which) * rows + tile.begin,
                                 {{1, tile.count}, {run.stride, run.count()}})});
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
