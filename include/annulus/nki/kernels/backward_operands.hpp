#pragma once
// Operands and results of the backward pass: operands in SBUF in both layouts, one loaded, the other made of it by
// TensorE; negated log-sum-exp, delta = rowsum(dout * output), and gradients.

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/operand_loads.hpp"
#include "annulus/nki/kernels/rotating_buffers.hpp"

namespace annulus::nki {

/// Tiles of an operand in both layouts, by feature and by token.
class OperandTiles {
 public:
  RotatingTile features;  ///< partitions are features, rows are adjacent
  RotatingTile tokens;    ///< partitions are rows, features are adjacent

  OperandTiles() = default;
  /// Rows of `width` elements; `rows`: of a tile; by_token: the layout of HBM.
  OperandTiles(Builder& builder, OperandLoads& loads, KernelSpec const& spec, std::string const& name, Index width,
               Index rows, bool by_token)
      : features(builder, name + "_features", Chunks{width}.count() * rows, spec.type, 2, Memory::sbuf,
                 Chunks{width}.largest()),
        tokens(builder, name + "_tokens", rows / tile_rows * width, spec.type),
        builder_(&builder),
        loads_(&loads),
        chunks_{width},
        by_token_(by_token) {}

  Index make() {
    features.make();
    return tokens.make();
  }

  /// Starts to load rows of a source in the layout that HBM has, from block `block` of 128 rows of a tile on.
  void load(HeadRows const& source, Affine const& begin, Index rows, Index number, Index block) {
    TileHandle const tile = loaded(number);
    if (by_token_)
      loads_->by_token(source, begin, rows, tile, block);
    else
      loads_->by_feature(source, begin, rows, tile, tile.elements / chunks_.count(), block * tile_rows);
  }

  /// Multiplies a block of loaded rows by a factor, and transposes it to the layout that HBM does not have.
  void other_layout(Index rows, Index number, Index block, float factor) {
    for (Index c = 0; c < chunks_.count(); ++c) {
      Access const from = part(loaded(number), by_token_, block, c, rows),
                   to = part((by_token_ ? features : tokens)[number], !by_token_, block, c, rows);
      if (factor != 1) builder_->emit(TensorScalar{.dst = from, .data = from, .operand0 = factor});
      loads_->transpose(
          from.partitions(), from.elements(), 1, [&](Index) { return from; }, to, Engine::scalar);
    }
  }

 private:
  TileHandle loaded(Index number) const { return (by_token_ ? tokens : features)[number]; }

  /// Chunk c of the features of a block of rows.
  Access part(TileHandle const& tile, bool by_token, Index block, Index c, Index rows) const {
    return by_token ? tile.part(0, rows, block * chunks_.dim + c * tile_rows, chunks_.size(c))
                    : tile.part(0, chunks_.size(c), c * (tile.elements / chunks_.count()) + block * tile_rows, rows);
  }

  Builder* builder_ = nullptr;
  OperandLoads* loads_ = nullptr;
  Chunks chunks_;
  bool by_token_ = true;
};

/// Loads the values into SBUF and computes delta where it is not an input.
class RowStatistics {
 public:
  /// most_tiles: row tiles of a head.
  RowStatistics(Builder& builder, KernelSpec const& spec, Index most_tiles)
      : builder_(&builder), spec_(&spec), columns_(most_tiles) {
    negated_lse = RotatingTile(builder, "negated_lse", columns_);
    delta = RotatingTile(builder, "row_delta", columns_);
    masked_ = RotatingTile(builder, "masked_rows", columns_);
    if (builder.program().find("output") < 0) return;
    own_delta_ = RotatingTile(builder, "own_row_delta", columns_);
    product_ = RotatingTile(builder, "dout_times_output", spec.shape.value_dim);
    row_output_ = RotatingTile(builder, "row_output", spec.shape.value_dim, spec.output_type, loads_under_way);
    row_dout_ = RotatingTile(builder, "row_dout", spec.shape.value_dim, spec.type, loads_under_way);
  }

  RotatingTile negated_lse, delta;  ///< a column per row tile of a head, in the tiles numbered by load()

  /// Starts to load the values of a head, which are there after complete(); returns their tile number. Masked rows get
  /// -1e30, so that their probabilities are 0. `bounds`, with the number of those of the step: late row tiles get the
  /// values of the half that the step chooses; null: their own.
  Index load(std::vector<RowTile> const& tiles, HeadRows const& lse_rows, HeadRows const& delta_rows,
             BoundsTiles const* bounds, Index bounds_number) {
    Index const number = negated_lse.make();
    delta.make();
    builder_->emit(Memset{negated_lse.newest().whole(), 0.0f});  // GpSimdE may still be adding gradients
    if (bounds) builder_->emit(Memset{delta.newest().whole(), 0.0f});
    load_columns(*builder_, lse_rows, tiles, negated_lse.newest());
    load_columns(*builder_, delta_rows, tiles, delta.newest());
    incomplete_ = [=, this, &tiles] {
      negate_lse(tiles, number);
      if (bounds) choose_halves(std::ssize(tiles) / 2, number, *bounds, bounds_number);
    };
    return number;
  }

  /// Completes the values that load() has begun to load: later, so that VectorE need not wait for them.
  void complete() {
    if (incomplete_) std::exchange(incomplete_, nullptr)();
  }

  /// Writes delta of all heads of the round's item to `to`; dout and output [.., heads, rows, value_dim]. Places beyond
  /// the last row are zeroed: a tensor that is sent must be completely written.
  void write_delta(Round const& round, TensorHandle const& dout, TensorHandle const& output, HeadRows const& to) {
    Index const dim = spec_->shape.value_dim, heads = spec_->query_heads_per_item(), rows = spec_->local_queries;
    for (Index head = 0; head < heads; ++head) {
      TileHandle const deltas = own_delta_.make_tile();
      HeadRows const output_rows = round.in_argument(output).head(head), dout_rows = round.in_argument(dout).head(head);
      emit_rolled(*builder_, "row_tile", 0, std::ssize(round.tiles), [&](Index i) {
        RowTile const& tile = nth(round.tiles, i);
        Access const outputs = row_output_.make_tile().part(0, tile.count, 0, dim),
                     douts = row_dout_.make_tile().part(0, tile.count, 0, dim),
                     products = product_.make_tile().part(0, tile.count, 0, dim);
        builder_->emit(DmaCopy{outputs, output_rows.block(tile.begin, tile.count)});
        builder_->emit(DmaCopy{douts, dout_rows.block(tile.begin, tile.count)});
        builder_->emit(TensorTensor{products, outputs, douts, Operator::multiply});
        builder_->emit(TensorReduce{deltas.part(0, tile.count, i, 1), Operator::add, products});
      });
      store_columns(*builder_, deltas, round.tiles, to.head(head));
    }
    if (rows % tile_rows == 0) return;
    TileHandle const zeros =
        builder_->tile("delta_padding" + round.suffix(), Memory::sbuf, tile_rows, 1, ElementType::float32);
    pad_columns(*builder_, zeros, to, heads, rows, round.shared);
  }

 private:
  static constexpr float masked_lse = 1e30f;
  static constexpr int loads_under_way = 8;

  /// Negates the log-sum-exps of a tile; those of masked rows become -masked_lse.
  void negate_lse(std::vector<RowTile> const& tiles, Index number) {
    Access const negated = negated_lse[number].whole(), masked = masked_.make_tile().whole();
    builder_->emit(TensorScalar{masked, negated, Operator::less, -masked_lse, Operator::multiply, -2 * masked_lse});
    builder_->emit(TensorScalar{negated, negated, Operator::multiply, -1.0f, Operator::minimum, masked_lse});
    builder_->emit(TensorTensor{negated, negated, masked, Operator::add});
    for (std::size_t i = 0; i < tiles.size(); ++i)
      if (tiles[i].overlaps)  // both cores hold the row: it must count once
        builder_->on_core(1, [&] {
          builder_->emit(Memset{negated_lse[number].part(0, 1, static_cast<Index>(i), 1), -masked_lse, Engine::gpsimd});
        });
  }

  /// The last `half` columns get the values of the half that the step chooses.
  void choose_halves(Index half, Index number, BoundsTiles const& bounds, Index bounds_number) {
    for (RotatingTile const* values : {&negated_lse, &delta}) {
      Access const early = (*values)[number].columns(0, half), late = (*values)[number].columns(half, half);
      builder_->emit(TensorScalar{.dst = late, .data = late, .operand0 = bounds.choice(true, bounds_number, late)});
      builder_->emit(ScalarTensorTensor{late, early, Operator::multiply, bounds.choice(false, bounds_number, late),
                                        Operator::add, late});
    }
  }

  Builder* builder_;
  KernelSpec const* spec_;
  Index columns_;
  RotatingTile masked_, own_delta_, product_, row_output_, row_dout_;
  std::function<void()> incomplete_;
};

/// A gradient of one item at each step: written to the kernel's result or, if there are several steps, carried. Each
/// step then adds its contribution to the sum received from the predecessor and sends the result to the successor;
/// after as many hops as ranks the sum is back at its owner.
class CarriedGradient : RotatingRows {
 public:
  CarriedGradient(Round const& of, std::string const& name, TensorHandle const& result, int of_steps)
      : RotatingRows(of, name, result, of_steps) {
    if (travels()) share_ = buffer(name + "_share" + of.suffix());
  }

  /// First head of the rows to which a step writes its contribution.
  HeadRows const& target(int step) const { return travels() ? written(step) : argument; }
  void copy_argument(TensorHandle const& from) const { copy(round->in_argument(from)); }

  /// Call before a step writes to target(): waits until what was last sent from it has been read.
  void begin_step(int step) const {
    if (travels() && (step >= 2 || round->repeated)) barrier(written(step));
  }

  /// Call after a step has written target(): sends the sum to the successor.
  void send(int step) const {
    if (!travels()) return;
    barrier(written(step));
    if (step == 0 && round->repeated) barrier(at(1));
    TensorHandle const &here = at(step).tensor, &next = at(step + 1).tensor;
    if (step == 0)
      round->builder->emit(CollectivePermute{here.whole(), next.whole()});
    else
      round->builder->emit(CollectivePermuteReduce{share_.tensor.whole(), here.whole(), next.whole(), Operator::add});
  }

  /// Call after the last step: copies the complete sum to the result.
  void finish() const {
    if (!travels()) return;
    // Of a single element core 1 copies nothing, but both must use a buffer of a collective. At even steps they have.
    if (round->shared && all_rows * argument.dim == 1 && steps % 2 == 1) barrier(at(steps));
    copy(at(steps));
  }

 private:
  HeadRows const& written(int step) const { return step == 0 ? buffers[0] : share_; }

  /// Copies all heads; cores that share the item copy half each, of a single row half of its columns: both must use a
  /// buffer of a collective.
  void copy(HeadRows const& from) const {
    bool const by_row = !round->shared || all_rows > 1;
    Index const count = by_row ? all_rows : argument.dim, half = detail::ceil_divide(count, 2);
    auto const copy_part = [&](Index first, Index size) {
      round->builder->emit(by_row ? DmaCopy{argument.block(first, size), from.block(first, size)}
                                  : DmaCopy{argument.columns(first, size), from.columns(first, size)});
    };
    if (!round->shared) return copy_part(0, count);
    round->builder->on_core(0, [&] { copy_part(0, half); });
    if (count > half) round->builder->on_core(1, [&] { copy_part(half, count - half); });
  }

  HeadRows share_;
};

/// Emits the accesses to gradients in HBM.
class GradientRows {
 public:
  /// `loads`: sums of earlier steps that are on their way from HBM.
  GradientRows(Builder& builder, Index widest, Index key_tile_blocks, int loads)
      : builder_(&builder), before_(builder, "gradient_before", widest * key_tile_blocks, ElementType::float32, loads) {
    zeros_ = builder.declare("gradient_zeros", Memory::sbuf, tile_rows, widest, ElementType::float32);
  }

  /// Stores, or adds if `add`, rows [begin, begin + count) of the target; `gradient` holds block b of 128 rows at
  /// columns b * dim.
  void store(HeadRows const& to, Index begin, Index count, TileHandle const& gradient, bool add) {
    for_row_blocks(count, [&](Index first, Index rows, Index blocks) {
      Access const here = blocks_of(gradient, rows, first, blocks, to.dim),
                   there = to.blocks(begin + first * tile_rows, rows, blocks);
      if (add) {
        Access const before = blocks_of(before_.make_tile(), rows, first, blocks, to.dim);
        builder_->emit(DmaCopy{before, there});
        builder_->emit(TensorTensor{here, here, before, Operator::add, Engine::gpsimd});
      }
      builder_->emit(DmaCopy{there, here});
    });
  }

  /// Stores, or adds if `add`, the gradient of a query row tile, which two cores may share.
  void store(HeadRows const& to, RowTile const& tile, TileHandle const& gradient, bool add) {
    if (add) {
      TileHandle const before = before_.make_tile();
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
  void clear(HeadRows const& to, Index begin, Index count) {
    builder_->allocate(zeros_);
    builder_->emit(Memset{zeros_.whole(), 0.0f, Engine::gpsimd});
    for (Index first = 0; first < count; first += tile_rows) {
      Index const rows = std::min(tile_rows, count - first);
      builder_->emit(DmaCopy{to.block(begin + first, rows), zeros_.part(0, rows, 0, to.dim)});
    }
  }

  /// to = a + b, or to += a + b if `add`; row tiles alternate between the cores of a pair.
  void join(HeadRows const& to, HeadRows const& a, HeadRows const& b, bool add) {
    std::vector<RowTile> const tiles = row_tiles({{0, to.rows}}, true);
    emit_rolled(*builder_, "row_tile", 0, std::ssize(tiles), [&](Index i) { join(to, a, b, add, nth(tiles, i)); });
  }

 private:
  /// Blocks [first, first + blocks) of a gradient, of which block b is at columns b * dim.
  static Access blocks_of(TileHandle const& tile, Index rows, Index first, Index blocks, Index dim) {
    return tile.pattern(0, rows, first * dim, {{dim, blocks}, {1, dim}});
  }

  void join(HeadRows const& to, HeadRows const& a, HeadRows const& b, bool add, RowTile const& tile) {
    Index const left = before_.make(), right = before_.make();
    Access const sum = before_[left].part(0, tile.count, 0, to.dim),
                 other = before_[right].part(0, tile.count, 0, to.dim);
    TensorTensor const add_other{sum, sum, other, Operator::add, Engine::gpsimd};
    builder_->emit(DmaCopy{sum, a.block(tile.begin, tile.count)});
    builder_->emit(DmaCopy{other, b.block(tile.begin, tile.count)});
    builder_->emit(add_other);
    if (add) {
      // Reuses the tile `right`: a new one would change the age of `left`.
      store_once(*builder_, tile, [&](Index row, Index rows) {
        builder_->emit(DmaCopy{before_[right].part(row, rows, 0, to.dim), to.block(tile.begin + row, rows)});
      });
      builder_->emit(add_other);
    }
    store(to, tile, before_[left], false);
  }

  Builder* builder_;
  RotatingTile before_;
  TileHandle zeros_;
};

}  // namespace annulus::nki
