#pragma once
// Rows of the backward pass in HBM: negated log-sum-exp, delta = rowsum(dout * output), and gradients.

#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/rotating_buffers.hpp"
#include "annulus/nki/kernels/row_tiles.hpp"
#include "annulus/nki/program/roll.hpp"

namespace annulus::nki {

/// Loads the values into SBUF and computes delta where it is not an input.
class RowStatistics {
 public:
  RowStatistics(Builder& builder, KernelSpec const& spec) : builder_(&builder), spec_(&spec), columns_(spec.columns()) {
    negated_lse_ = RotatingTile(builder, "negated_lse", columns_);
    delta_ = RotatingTile(builder, "row_delta", columns_);
    masked_ = RotatingTile(builder, "dead_rows", columns_);
    if (builder.program().find("output") < 0) return;
    own_delta_ = RotatingTile(builder, "own_row_delta", columns_);
    product_ = RotatingTile(builder, "dout_times_output", spec.shape.value_dim);
    row_output_ = RotatingTile(builder, "row_output", spec.shape.value_dim, spec.output_type);
    row_dout_ = RotatingTile(builder, "row_dout", spec.shape.value_dim, spec.type);
  }

  /// A column per row tile, in the tiles numbered by load().
  RotatingTile const& negated_lse() const { return negated_lse_; }
  RotatingTile const& delta() const { return delta_; }

  /// Loads the values of a head; returns their tile number. Masked rows get -1e30, so that their probabilities are 0.
  Index load(std::vector<RowTile> const& tiles, ColumnSource const& lse, ColumnSource const& delta) {
    Index const number = negated_lse_.make();
    TileHandle const negated = negated_lse_.newest();
    delta_.make();
    TileHandle const masked = masked_.make_tile();
    builder_->emit(Memset{negated.whole(), 0.0f, Engine::gpsimd});
    load_columns(*builder_, lse, tiles, negated, 0);
    load_columns(*builder_, delta, tiles, delta_.newest(), 0);
    builder_->emit(TensorScalar{masked.whole(), negated.whole(), Operator::less, -masked_lse, false, Operator::multiply,
                                -2 * masked_lse});
    builder_->emit(TensorScalar{negated.whole(), negated.whole(), Operator::multiply, -1.0f, false, Operator::minimum,
                                masked_lse});
    builder_->emit(TensorTensor{negated.whole(), negated.whole(), masked.whole(), Operator::add, Engine::vector});
    for (std::size_t i = 0; i < tiles.size(); ++i)
      if (tiles[i].overlaps)  // both cores hold the row: it must count once
        builder_->on_core(1, [&] {
          builder_->emit(Memset{negated.part(0, 1, static_cast<Index>(i), 1), -masked_lse, Engine::gpsimd});
        });
    return number;
  }

  /// Writes delta of all heads of an item to the core's part of `to`; dout and output [.., heads, rows, value_dim].
  /// Places beyond the last row are zeroed: a tensor that is sent must be completely written.
  void write_delta(TensorHandle const& dout, TensorHandle const& output, Affine const& item, RoundKind kind,
                   std::vector<RowTile> const& tiles, TensorHandle const& to) {
    Index const dim = spec_->shape.value_dim, heads = spec_->query_heads_per_item(), rows = spec_->local_queries;
    auto const of_head = [&](Index head) {
      return ColumnSource{to, (kind.part(*spec_) * heads + head) * (tile_rows * columns_), columns_};
    };
    for (Index head = 0; head < heads; ++head) {
      TileHandle const deltas = own_delta_.make_tile();
      std::vector<Body> bodies;
      for (std::size_t i = 0; i < tiles.size(); ++i)
        bodies.push_back(builder_->collect([&] {
          Index const count = tiles[i].count;
          Affine const offset = (item * (heads * rows) + tiles[i].begin + head * rows) * dim;
          Access const outputs = row_output_.make_tile().part(0, count, 0, dim),
                       douts = row_dout_.make_tile().part(0, count, 0, dim),
                       products = product_.make_tile().part(0, count, 0, dim);
          builder_->emit(DmaCopy{outputs, rows_at(output, offset, count, dim)});
          builder_->emit(DmaCopy{douts, rows_at(dout, offset, count, dim)});
          builder_->emit(TensorTensor{products, outputs, douts, Operator::multiply, Engine::vector});
          builder_->emit(TensorReduce{deltas.part(0, count, static_cast<Index>(i), 1), Operator::add, products});
        }));
      append_rolled(*builder_, "row_tile", std::move(bodies));
      store_columns(*builder_, deltas, 0, tiles, of_head(head));
    }
    if (rows % tile_rows == 0) return;
    TileHandle const zeros =
        builder_->tile("delta_padding" + kind.suffix(), Memory::sbuf, tile_rows, 1, ElementType::float32);
    builder_->emit(Memset{zeros.whole(), 0.0f, Engine::gpsimd});
    for (Index head = 0; head < heads; ++head) pad_columns(*builder_, of_head(head), rows, zeros, kind.shared);
  }

 private:
  static constexpr float masked_lse = 1e30f;

  Builder* builder_;
  KernelSpec const* spec_;
  Index columns_;
  RotatingTile negated_lse_, delta_, masked_, own_delta_, product_, row_output_, row_dout_;
};

/// Gradient rows of one head in HBM, [rows, dim].
struct GradientTarget {
  TensorHandle tensor;
  Affine offset;
  Index rows = 0, dim = 0;

  /// Rows [begin, begin + count).
  Access block(Affine const& begin, Index count) const { return rows_at(tensor, offset + begin * dim, count, dim); }
};

/// A gradient of one item at each step: written to the kernel's result or, if there are several steps, carried. Each
/// step then adds its contribution to the sum received from the predecessor and sends the result to the successor;
/// after as many hops as ranks the sum is back at its owner.
class CarriedGradient {
 public:
  CarriedGradient() = default;
  /// `result`: [.., rows of an item, dim]; `heads` of `rows` rows each.
  CarriedGradient(Builder& builder, KernelSpec const& spec, Round const& round, std::string const& name,
                  TensorHandle result, Index heads, Index rows, Index dim, int steps)
      : builder_(&builder), spec_(&spec), item_(round.item), kind_(round.kind), result_(std::move(result)),
        heads_(heads), rows_(rows), dim_(dim), steps_(steps) {
    if (!travels()) return;
    auto const buffer = [&](std::string const& full_name) {
      return builder.tensor(full_name, {kind_.parts(spec), size()}, ElementType::float32);
    };
    for (std::size_t side : {0, 1}) carried_[side] = buffer(name + kind_.suffix() + (side == 0 ? "_a" : "_b"));
    share_ = buffer(name + "_share" + kind_.suffix());
  }

  bool travels() const { return steps_ > 1; }
  /// Rows of a head to which a step writes its contribution.
  GradientTarget target(int step, Index head = 0) const {
    Affine const first = travels() ? kind_.part(*spec_) : item_;
    return {travels() ? written(step) : result_, first * size() + head * rows_ * dim_, rows_, dim_};
  }
  /// Copies the same rows of `from` to the result; cores that share the item copy half each.
  void copy(TensorHandle const& from) const { copy(from, item_ * size()); }

  /// Call before a step writes to target(): waits until what was last sent from it has been read.
  void begin_step(int step) {
    if (!travels() || spec_->cores == 1) return;
    if (step == 0 ? kind_.repeated : step >= 2 || kind_.repeated) builder_->emit(CoreBarrier{written(step).whole()});
  }

  /// Call after a step has written target(): sends the sum to the successor.
  void send(int step) {
    if (!travels()) return;
    auto const here = static_cast<std::size_t>(step % 2), next = 1 - here;
    if (spec_->cores == 2) {
      builder_->emit(CoreBarrier{written(step).whole()});
      if (kind_.repeated && step == 0) builder_->emit(CoreBarrier{carried_[next].whole()});
    }
    if (step == 0)
      builder_->emit(CollectivePermute{carried_[0].whole(), carried_[1].whole(), 0});
    else
      builder_->emit(
          CollectivePermuteReduce{share_.whole(), carried_[here].whole(), carried_[next].whole(), Operator::add, 0});
  }

  /// Call after the last step: copies the complete sum to the result.
  void finish() const {
    if (travels()) copy(carried_[static_cast<std::size_t>(steps_ % 2)], kind_.part(*spec_) * size());
  }

 private:
  Index size() const { return heads_ * rows_ * dim_; }
  TensorHandle const& written(int step) const { return step == 0 ? carried_[0] : share_; }

  void copy(TensorHandle const& from, Affine const& offset) const {
    Index const rows = heads_ * rows_, half = kind_.shared ? ceil_divide(rows, 2) : rows;
    auto const copy_rows = [&](Index first, Index count) {
      builder_->emit(DmaCopy{rows_at(result_, item_ * size() + first * dim_, count, dim_),
                             rows_at(from, offset + first * dim_, count, dim_)});
    };
    if (!kind_.shared) return copy_rows(0, rows);
    builder_->on_core(0, [&] { copy_rows(0, half); });
    if (rows > half) builder_->on_core(1, [&] { copy_rows(half, rows - half); });
  }

  Builder* builder_ = nullptr;
  KernelSpec const* spec_ = nullptr;
  Affine item_;
  RoundKind kind_;
  TensorHandle result_;
  Index heads_ = 0, rows_ = 0, dim_ = 0;
  int steps_ = 1;
  std::array<TensorHandle, 2> carried_;
  TensorHandle share_;
};

/// Emits the accesses to gradients in HBM.
class GradientRows {
 public:
  GradientRows(Builder& builder, Index widest, Index key_tile_blocks)
      : builder_(&builder), before_(builder, "gradient_before", widest * key_tile_blocks, ElementType::float32, 3) {
    zeros_ = builder.declare("gradient_zeros", Memory::sbuf, tile_rows, widest, ElementType::float32);
  }

  /// Stores, or adds if `add`, rows [begin, begin + count) of the target; `gradient` holds block b of 128 rows at
  /// columns b * dim.
  void store(GradientTarget const& to, Index begin, Index count, TileHandle const& gradient, bool add) {
    for (auto const& [first, rows, blocks] : parts_of(count)) {
      Access const here = gradient.pattern(0, rows, first / tile_rows * to.dim, {{to.dim, blocks}, {1, to.dim}});
      Access const there = to.tensor.pattern(to.offset + (begin + first) * to.dim,
                                             {{to.dim, rows}, {tile_rows * to.dim, blocks}, {1, to.dim}});
      if (add) {
        Access const before =
            before_.make_tile().pattern(0, rows, first / tile_rows * to.dim, {{to.dim, blocks}, {1, to.dim}});
        builder_->emit(DmaCopy{before, there});
        builder_->emit(TensorTensor{here, here, before, Operator::add, Engine::gpsimd});
      }
      builder_->emit(DmaCopy{there, here});
    }
  }

  /// Stores, or adds if `add`, the gradient of a query row tile, which two cores may share.
  void store(GradientTarget const& to, RowTile const& tile, TileHandle const& gradient, bool add) {
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
        Access const sum = before_[left].part(0, tile.count, 0, to.dim),
                     other = before_[right].part(0, tile.count, 0, to.dim);
        auto const add_other = [&] { builder_->emit(TensorTensor{sum, sum, other, Operator::add, Engine::gpsimd}); };
        builder_->emit(DmaCopy{sum, a.block(tile.begin, tile.count)});
        builder_->emit(DmaCopy{other, b.block(tile.begin, tile.count)});
        add_other();
        if (add) {
          // Reuses the tile `right`: a new one would change the age of `left`.
          store_once(*builder_, tile, [&](Index row, Index rows) {
            builder_->emit(DmaCopy{before_[right].part(row, rows, 0, to.dim), to.block(tile.begin + row, rows)});
          });
          add_other();
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

  Builder* builder_;
  RotatingTile before_;
  TileHandle zeros_;
};

}  // namespace annulus::nki
