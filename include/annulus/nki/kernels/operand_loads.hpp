#pragma once
// Inputs of a kernel and their loads into SBUF: operands in the two layouts that TensorE contracts over, by feature
// (partition = element of head_dim or value_dim) and by token (partition = row), panels of queries, bounds of the mask.

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/kernels/round.hpp"

namespace annulus::nki {

/// Emits the loads; transposes with TensorE where HBM holds the other layout.
class OperandLoads {
 public:
  /// `banks`: PSUM tiles in which transposes rotate.
  OperandLoads(Builder& builder, KernelSpec const& spec, int banks = 2)
      : builder_(&builder),
        type_(spec.type),
        widest_(spec.widest()),
        transposed_(builder, "transposed", tile_rows * transposed_blocks, spec.type, banks, Memory::psum) {}

  /// Blocks of 128 columns per PSUM tile: at most a bank of fp32.
  static constexpr Index transposed_blocks = 4;

  /// Transposes `count` blocks of up to 128 x 128 on TensorE through PSUM, which `evacuation` copies out of PSUM:
  /// from(i) is the access to block i; `destination` is the adjacent results.
  template <class From>
  void transpose(Index rows, Index columns, Index count, From&& from, Access const& destination, Engine evacuation) {
    TileHandle const staged = transposed_.make_tile();
    for (Index i = 0; i < count; ++i) builder_->emit(Transpose{staged.part(0, columns, i * rows, rows), from(i)});
    builder_->emit(TensorCopy{destination, staged.part(0, columns, 0, count * rows), evacuation});
  }

  /// Loads rows [begin, begin + count) by feature: chunk c of 128 features at columns c * pitch + column of `tile`.
  void by_feature(HeadRows const& source, Affine const& begin, Index count, TileHandle const& tile, Index pitch,
                  Index column = 0) {
    Chunks const chunks{source.dim};
    if (!source.by_token) {
      for (Index c = 0; c < chunks.count(); ++c)
        builder_->emit(DmaCopy{tile.part(0, chunks.size(c), c * pitch + column, count),
                               source.features(c * tile_rows, chunks.size(c), begin, count)});
      return;
    }
    if (!staging_) staging_.emplace(*builder_, "staged", std::max(widest_, tile_rows), type_);
    for (Index block = 0; block < count; block += tile_rows) {
      Index const rows = std::min(tile_rows, count - block);
      TileHandle const staged = staging_->make_tile();
      builder_->emit(DmaCopy{staged.part(0, rows, 0, source.dim), source.block(begin + block, rows)});
      for (Index c = 0; c < chunks.count(); ++c)
        transpose(
            rows, chunks.size(c), 1, [&](Index) { return staged.part(0, rows, c * tile_rows, chunks.size(c)); },
            tile.part(0, chunks.size(c), c * pitch + column + block, rows), Engine::vector);
    }
  }

  /// Loads rows [begin, begin + count) of a source by token: block b of 128 rows at columns (first_block + b) * pitch
  /// of `tile`; `pitch`: columns from block to block, 0 for dim.
  void by_token(HeadRows const& source, Affine const& begin, Index count, TileHandle const& tile, Index first_block = 0,
                Index pitch = 0) {
    Index const whole = count / tile_rows, rest = count % tile_rows, dim = source.dim;
    if (pitch == 0) pitch = dim;
    if (whole > 0)
      builder_->emit(DmaCopy{tile.pattern(0, tile_rows, first_block * pitch, {{pitch, whole}, {1, dim}}),
                             source.blocks(begin, tile_rows, whole)});
    if (rest > 0)
      builder_->emit(DmaCopy{tile.part(0, rest, (first_block + whole) * pitch, dim),
                             source.block(begin + whole * tile_rows, rest)});
  }

 private:
  Builder* builder_;
  ElementType type_;
  Index widest_;
  RotatingTile transposed_;
  std::optional<RotatingTile> staging_;
};

/// The mask that a kernel is written for: with chosen halves, as long as they fit SBUF.
class FittingMask {
 public:
  /// `given` must outlive this; `least`: fewest rows of a half that is chosen. Operands of pairs are loaded from where
  /// the program says, so there is no choice with them.
  FittingMask(RingMask const& given, KernelSpec const& spec, Index least) : given_(&given) {
    if (!spec.bias.given && spec.keep_scale == 0 && spec.local_keys >= 2 * least) halves_ = given.with_chosen_halves();
  }

  RingMask const& operator*() const { return halves_ ? *halves_ : *given_; }  ///< the mask to write the kernel for
  RingMask const* operator->() const { return &**this; }                      ///< its members
  /// Gives up the choice of halves, which takes more SBUF; returns whether there was one.
  bool give_up_halves() { return std::exchange(halves_, std::nullopt).has_value(); }

 private:
  RingMask const* given_;
  std::optional<RingMask> halves_;
};

/// Inputs of a kernel.
struct KernelInputs {
  TensorHandle q, k, v;
  TensorHandle dout;  ///< of a backward kernel
  TensorHandle mask;  ///< without buffer: everything is visible
  TensorHandle bias;  ///< without buffer: none
  TensorHandle kept;  ///< by dropout; without buffer: all weights
};

/// Declares the inputs. The mask is `mask_offsets` [ranks, query pieces * key pieces * 2], or `mask_ranges` [ranks,
/// batch or 1, key pieces, 2, rows], with stationary keys `mask_key_ranges` [ranks, batch or 1, tile pieces, 2, keys],
/// float32 (see RingMask::offsets, ranges and key_ranges), or none; `bias` and `kept` are those of the spec.
/// Throws ShapeError if the mask does not match the spec.
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
    bool const queries_rotate = backward && spec.travels == RotatingSide::queries;
    builder.set_mask_fingerprint(mask.fingerprint(name, queries_rotate));
  };
  if (mask.form() == BoundsForm::band) bounds("mask_offsets", {ranks, std::ssize(mask.query_pieces()) * pieces * 2});
  if (mask.form() == BoundsForm::ranges && spec.keys_stationary && !backward)
    bounds("mask_key_ranges", {ranks, mask.batch(), std::ssize(mask.tile_pieces()), 2, spec.local_keys});
  else if (mask.form() == BoundsForm::ranges)
    bounds("mask_ranges", {ranks, mask.batch(), pieces, 2, spec.local_queries});
  BiasSpec const& bias = spec.bias;
  if (bias.given)
    inputs.bias = builder.tensor("bias",
                                 {ranks, bias.by_head ? shape.batch * shape.query_heads : 1,
                                  bias.by_query ? spec.local_queries : 1, bias.by_key ? spec.local_keys : 1},
                                 bias.type, Role::input);
  if (spec.keep_scale > 0)
    inputs.kept = builder.tensor("kept", {ranks, shape.batch * shape.query_heads, spec.local_queries, spec.local_keys},
                                 spec.type, Role::input);
  return inputs;
}

/// Bounds of the row tiles of a round: begin (inclusive) and end (exclusive) of the keys that each row sees; or of key
/// tiles: of the query rows that see each key.
class BoundsTiles {
 public:
  /// `input`: the mask input of the kernel; key_tiles: bounds of these instead of the round's; factors: of choice().
  BoundsTiles(Builder& builder, RingMask const& mask, TensorHandle input, Round const& round,
              std::vector<RowTile> const* key_tiles = nullptr, std::vector<float> factors = {1})
      : builder_(&builder),
        mask_(&mask),
        input_(std::move(input)),
        round_(&round),
        of_keys_(key_tiles != nullptr),
        row_tiles_(key_tiles ? key_tiles : &round.tiles),
        runs_(runs_of(*row_tiles_)),
        factors_(std::move(factors)),
        owner_(builder.program().ranks > 1 ? builder.make_register() : -1) {
    if (mask.form() == BoundsForm::none) return;
    std::string const name = round.shared ? "shared_bounds" : "bounds";
    Index const columns = std::ssize(mask.pieces()) * (of_keys_ ? std::ssize(mask.tile_pieces()) : 1) * tiles();
    for (bool end : {false, true}) bounds_[end] = RotatingTile(builder, name + (end ? "_end" : "_begin"), columns);
    if (mask.form() != BoundsForm::band) return;
    if (mask.chooses_halves()) {
      choices_ = RotatingTile(builder, name + "_choice", 2 * std::ssize(factors_) + 2);
      first_chosen_ = RotatingTile(builder, name + "_first_chosen", 1, ElementType::int32, 4, Memory::sbuf, 1);
      for (int& register_number : chosen_) register_number = builder.make_register({2, half()});
    }
    rows_ = builder.declare(name + "_rows", Memory::sbuf, tile_rows, tiles(), ElementType::float32);
    Index const width = input_.shape[1];
    offset_row_ = RotatingTile(builder, name + "_offset_row", width, ElementType::float32, 2, Memory::sbuf, 1);
    offsets_ = RotatingTile(builder, name + "_offsets", width);
    // The row numbers to which bands are relative.
    builder.allocate(rows_);
    for (TileRun const& run : runs_)
      builder.emit(Iota{rows_.columns(run.first, run.count), {{run.stride, run.count}}, run.tile.begin, 1});
  }

  /// Loads the bounds for the keys of a ring step. Returns the number by which bound() refers to them, -1 if everything
  /// is visible.
  Index load(int step) {
    if (mask_->form() == BoundsForm::none) return -1;
    prefetch(step);
    if (step > 0 && mask_->chooses_halves()) return load_choice(nth(chosen_, step % 2));
    for (RotatingTile& tile : bounds_) tile.make();
    mask_->form() == BoundsForm::band ? load_band() : load_ranges();
    return bounds_[0].newest_number();
  }

  /// Starts to load the offsets of a step, so that load() need not wait for them.
  void prefetch(int step) {
    if (prefetched_ >= step) return;
    prefetched_ = step;
    if (owner_ >= 0) builder_->emit(ProcessingRank{owner_, step});
    if (mask_->form() != BoundsForm::band) return;
    Index const width = input_.shape[1];
    builder_->emit(DmaCopy{offset_row_.make_tile().whole(), from_table(0, {{width, 1}, {1, width}})});
  }

  /// Where halves are chosen, two columns for each factor: for the early and the late half the factor if the step of
  /// these bounds computes it, else 0. Then for both empty_negated_maximum if it does not, else 0.
  TileHandle choices(Index bounds_number) const { return choices_[bounds_number]; }
  /// A factor of one half, for operands with the partitions of `like`.
  Access choice(bool late, Index bounds_number, Access const& like, Index factor = 0) const {
    return choices(bounds_number).part(0, like.partitions(), 2 * factor + late, 1);
  }
  /// The same rows with those of the early half in place of the late ones, if the step computes early halves. DMA finds
  /// the half by a register.
  HeadRows chosen(int step, HeadRows const& rows) const { return rows.moved(half(), nth(chosen_, step % 2)); }

  /// First key, or one past the last key (`end`), that each row of a tile sees, [rows, 1].
  Access bound(bool end, Index bounds_number, std::size_t piece, Index tile) const {
    return bounds_[end][bounds_number].part(0, nth(*row_tiles_, tile).count, static_cast<Index>(piece) * tiles() + tile,
                                            1);
  }
  /// First query row, or one past the last (`end`), of a tile piece that sees each key of the key tile at row `begin`,
  /// [keys, 1].
  Access bound_of_keys(bool end, Index bounds_number, std::size_t query_piece, std::size_t piece, Index begin) const {
    auto const here = std::ranges::find(*row_tiles_, Affine(begin), &RowTile::begin);
    if (mask_->form() == BoundsForm::band) query_piece = query_piece * mask_->pieces().size() + piece;
    return bound(end, bounds_number, query_piece, here - row_tiles_->begin());
  }

 private:
  Index tiles() const { return std::ssize(*row_tiles_); }
  Index half() const { return mask_->pieces().front().size(); }  ///< rows, where halves are chosen
  /// Reads the row of the table that belongs to the owner of the keys.
  Access from_table(Affine offset, std::initializer_list<Axis> axes) const {
    Access access = input_.pattern(std::move(offset), axes);
    if (owner_ >= 0) access.register_offset = RegisterOffset{owner_, 0};
    return access;
  }

  /// The offsets of the newest step, in all partitions.
  TileHandle repeat_offsets() {
    TileHandle const row = offset_row_.newest(), all = offsets_.make_tile();
    for (Index quadrant = 0; quadrant < tile_rows; quadrant += 32)
      builder_->emit(StreamShuffle{all.part(quadrant, 32, 0, row.elements), row.whole()});
    return all;
  }

  /// Early rows see early keys j < i + hi: all of them if hi is positive, else none.
  Index load_choice(int first_row) {
    Access const first = first_chosen_.make_tile().whole();
    builder_->emit(TensorScalar{first, offset_row_.newest().column(1), Operator::less, 1.0f, Operator::multiply,
                                static_cast<float>(half())});
    builder_->emit(RegisterLoad{first_row, first});
    Access const hi = repeat_offsets().column(1);
    TileHandle const all = choices_.make_tile();
    Index column = 0;
    auto const choose = [&](bool late, float value) {
      builder_->emit(TensorScalar{all.column(column++), hi, late ? Operator::less : Operator::greater_equal, 1.0f,
                                  Operator::multiply, value});
    };
    for (float factor : factors_)
      for (bool late : {false, true}) choose(late, factor);
    for (bool early : {true, false}) choose(early, empty_negated_maximum);
    return choices_.newest_number();
  }
  void load_band() {
    TileHandle const all = repeat_offsets();
    if (of_keys_) return bound_keys(all);
    Index at = 0, first = 0;
    for (RowRange queries : mask_->query_pieces()) {  // whose ends no row tile crosses
      auto const before = [&](RowTile const& tile) { return tile.rows_of_all_cores.begin < queries.end; };
      Index const count = std::ranges::count_if(round_->tiles, before) - first;
      Index column = first;
      for (RowRange keys : mask_->pieces()) {
        for (bool end : {false, true})
          builder_->emit(TensorScalar{bounds_[end].newest().columns(column, count), rows_.columns(first, count),
                                      Operator::add, all.column(at++), end ? Operator::minimum : Operator::maximum,
                                      static_cast<float>(end ? keys.end : keys.begin)});
        column += tiles();
      }
      first += count;
    }
  }

  /// Row i sees key j if i + lo <= j < i + hi: key j is seen by j - hi + 1 <= i < j - lo + 1.
  void bound_keys(TileHandle const& offsets) {
    for (Index pair = 0; pair < input_.shape[1] / 2; ++pair)
      for (bool end : {false, true})
        builder_->emit(TensorScalar{bounds_[end].newest().columns(pair * tiles(), tiles()), rows_.whole(),
                                    Operator::subtract, offsets.column(2 * pair + !end), Operator::add, 1.0f});
  }

  void load_ranges() {
    Index const rows = input_.shape[4], pieces = input_.shape[2];
    // With several batch items an item, one kv head of one batch item, is a batch item.
    Affine const table = mask_->batch() > 1 ? round_->item * (pieces * 2 * rows) : Affine(0);
    for (Index piece = 0; piece < pieces; ++piece)
      for (bool end : {false, true})
        for (TileRun const& run : runs_)
          builder_->emit(DmaCopy{bounds_[end].newest().part(0, run.tile.count, piece * tiles() + run.first, run.count),
                                 from_table(table + (piece * 2 + end) * rows + run.tile.begin,
                                            {{1, run.tile.count}, {run.stride, run.count}})});
  }

  Builder* builder_;
  RingMask const* mask_;
  TensorHandle input_;
  Round const* round_;
  bool of_keys_;
  std::vector<RowTile> const* row_tiles_;
  std::vector<TileRun> runs_;
  std::vector<float> factors_;
  int prefetched_ = -1;                 ///< newest step whose offsets are being loaded
  int owner_;                           ///< register that holds the owner of the keys; negative: a kernel of one rank
  std::array<RotatingTile, 2> bounds_;  ///< begins and ends
  RotatingTile offset_row_, offsets_, choices_, first_chosen_;
  std::array<int, 2> chosen_{};  ///< registers of even and odd steps, which hold the first row that the step chooses
  TileHandle rows_;
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
      : builder_(&builder),
        loads_(&loads),
        chunks_{spec.shape.head_dim},
        most_(most),
        factor_(factor),
        panel_(builder, "queries", chunks_.count() * most * tile_rows, spec.type, 2, Memory::sbuf, chunks_.largest()) {}

  /// `source`: the queries of the first head of the group that shares keys.
  void begin_round(HeadRows source, std::vector<RowTile> const& tiles, BoundsTiles const& bounds) {
    source_ = std::move(source);
    bounds_ = &bounds;
    newest_ = {};
    panels_.clear();
    Index const half = std::ssize(tiles) / 2;
    for (TileRun const& run : runs_of(tiles)) {
      // Tiles that alternate between cores are not adjacent.
      Index const length = run.stride == tile_rows ? most_ : 1, end = run.first + run.count;
      for (Index first = run.first, last = 0; first < end; first = last) {
        last = std::min(first + length, first < half ? std::min(half, end) : end);
        panels_.push_back({nth(tiles, first), first, last - first});
      }
    }
  }

  /// Returns the location of a row tile's queries; loads its panel unless that is the newest of its kind. chosen_step:
  /// of the ring, if the step's bounds choose between this tile and the early one in its place; -1: there is no choice.
  Place fetch(Index head, Index tile, int chosen_step = -1) {
    auto const panel = std::ranges::find_if(panels_, [&](TileRun const& run) { return tile < run.first + run.count; });
    auto& [held, number] = newest_[chosen_step >= 0];
    if (std::tuple const wanted{head, panel->first, chosen_step}; std::exchange(held, wanted) != wanted) {
      HeadRows const source = source_.head(head);
      number = load(chosen_step < 0 ? source : bounds_->chosen(chosen_step, source), *panel);
    }
    return {number, (tile - panel->first) * tile_rows};
  }

  /// Access to chunk c of the features of `rows` queries.
  Access chunk(Place const& place, Index c, Index rows) {
    return panel_[place.number].part(0, chunks_.size(c), c * most_ * tile_rows + place.column, rows);
  }

 private:
  Index load(HeadRows const& source, TileRun const& panel) {
    Index const count = (panel.count - 1) * tile_rows + panel.tile.count, pitch = most_ * tile_rows;
    TileHandle const loaded = panel_.make_tile();
    loads_->by_feature(source, panel.tile.begin, count, loaded, pitch);
    for (Index c = 0; factor_ != 1 && c < chunks_.count(); ++c) {
      Access const all = loaded.part(0, chunks_.size(c), c * pitch, count);
      builder_->emit(TensorScalar{.dst = all, .data = all, .operand0 = factor_});
    }
    return panel_.newest_number();
  }

  Builder* builder_;
  OperandLoads* loads_;
  Chunks chunks_;
  Index most_;
  float factor_;
  RotatingTile panel_;
  HeadRows source_;
  BoundsTiles const* bounds_ = nullptr;
  std::vector<TileRun> panels_;
  /// Newest panel without and with a choice: head, first tile, chosen_step; number.
  std::array<std::pair<std::optional<std::tuple<Index, Index, int>>, Index>, 2> newest_;
};

}  // namespace annulus::nki
