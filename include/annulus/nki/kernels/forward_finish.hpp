#pragma once
// End of a forward pass: sink logits, division by the sums, log-sum-exp.

#include <vector>

#include "annulus/nki/kernels/forward_units.hpp"
#include "annulus/nki/program/roll.hpp"

namespace annulus::nki {

/// Results of a forward kernel, and its sink logits.
struct ForwardOutputs {
  TensorHandle output;  ///< [batch, query_heads, rows, value_dim]
  TensorHandle lse;     ///< [batch, query_heads, 128, columns]; without buffer: not requested
  TensorHandle sinks;   ///< sink logits [batch, query_heads, n]; without buffer: none
};

/// Normalises and stores finished row tiles.
class ForwardFinish {
 public:
  ForwardFinish(Builder& builder, KernelSpec const& spec) : builder_(&builder), spec_(&spec) {}

  static constexpr Index most_tiles = 8;
  static constexpr std::size_t batched_tiles = 4;  ///< tiles whose rows one DMA stores

  /// Normalises row tiles `tile_range` of a head of an item and stores output and lse. shared: the cores of a pair
  /// share the item; drained: no unit is left to be scored.
  void finish(ForwardState const& state, std::vector<RowTile> const& all_tiles, Affine const& item, Index head,
              RowRange tile_range, bool shared, ForwardOutputs const& outputs, bool drained) {
    declare(state.resident);
    std::vector<RowTile> const tiles(all_tiles.begin() + tile_range.begin, all_tiles.begin() + tile_range.end);
    count_ = tile_range.size();
    first_column_ = head * std::ssize(all_tiles) + tile_range.begin;
    Access const negated_maximum = state.negated_maximum.columns(first_column_, count_),
                 sum = state.sum.columns(first_column_, count_);
    Affine const query_head = item * spec_->query_heads_per_item() + head;
    if (spec_->sinks > 0) add_sinks(negated_maximum, sum, query_head, outputs.sinks);
    for (RotatingTile* tile : {&sum_, &scale_}) tile->make();
    // A row that saw no key has the sum 0 and an accumulator of zeros, so any finite factor is correct.
    builder_->emit(TensorScalar{some(sum_), sum, Operator::maximum, smallest_sum});
    builder_->emit(Reciprocal{some(scale_), some(sum_)});
    if (spec_->sinks > 0)
      builder_->emit(TensorTensor{some(scale_), some(scale_), some(correction_), Operator::multiply, Engine::vector});
    // VectorE is the busiest engine until the pipeline is drained.
    write_output(state, tiles, head, query_head, outputs.output, drained ? Engine::vector : Engine::gpsimd);
    bool const last = tile_range.end == std::ssize(all_tiles);
    if (outputs.lse.buffer >= 0) write_lse(negated_maximum, tiles, query_head, last, shared, outputs.lse);
  }

 private:
  /// ScalarE's logarithm is defined down to 2^-64; sums of a row that saw a key are at least about 1.
  static constexpr float smallest_sum = 0x1p-60f;
  /// Negated maxima above this limit belong to masked rows.
  static constexpr float masked_limit = 0.5f * empty_negated_maximum;

  void declare(bool resident) {
    if (declared_) return;
    declared_ = true;
    auto const tile = [&](char const* name, ElementType type = ElementType::float32, Index columns = most_tiles) {
      return RotatingTile(*builder_, name, columns, type);
    };
    sum_ = tile("positive_sum");
    scale_ = tile("normaliser");
    if (spec_->training) {
      logarithm_ = tile("logarithm");
      masked_ = tile("dead");
      lse_ = tile("lse_tile", spec_->lse_type);
      padding_ = tile("lse_padding", spec_->lse_type, 1);
    }
    if (spec_->sinks > 0) {
      sink_ = tile("sink", ElementType::float32, spec_->sinks);
      sink_maximum_ = tile("sink_maximum", ElementType::float32, 1);
      sink_weights_ = tile("sink_weights", ElementType::float32, spec_->sinks);
      correction_ = tile("sink_correction");
      sink_sum_ = tile("sink_sum");
    }
    output_ = RotatingTile(*builder_, "output_tile", static_cast<Index>(batched_tiles) * spec_->shape.value_dim,
                           spec_->output_type, 3);
    if (!resident)
      accumulator_ = RotatingTile(*builder_, "finished_accumulator", spec_->shape.value_dim, ElementType::float32, 8);
  }

  Access some(RotatingTile const& tile) const { return tile.newest().columns(0, count_); }

  /// Adds the sink logits to the softmax denominators.
  void add_sinks(Access const& negated_maximum, Access const& sum, Affine const& query_head,
                 TensorHandle const& sinks) {
    for (RotatingTile* tile : {&sink_, &sink_maximum_, &correction_, &sink_sum_}) tile->make();
    builder_->emit(
        DmaCopy{sink_.newest().whole(), sinks.pattern(query_head * spec_->sinks, {{0, tile_rows}, {1, spec_->sinks}})});
    builder_->emit(TensorReduce{sink_maximum_.newest().whole(), Operator::maximum, sink_.newest().whole(), 1, true});
    builder_->emit(TensorCopy{some(correction_), negated_maximum, Engine::vector});
    builder_->emit(TensorScalar{negated_maximum, negated_maximum, Operator::minimum, sink_maximum_.newest().whole()});
    builder_->emit(
        TensorTensor{some(correction_), negated_maximum, some(correction_), Operator::subtract, Engine::vector});
    builder_->emit(Activation{some(correction_), Function::exp, some(correction_)});
    for (Index column = 0; column < count_; ++column) {
      sink_weights_.make();
      Access maximum(negated_maximum.buffer, {negated_maximum.axis(0), {1, 1}});
      maximum.offset = negated_maximum.offset + column;
      builder_->emit(Activation{sink_weights_.newest().whole(), Function::exp, sink_.newest().whole(), maximum, 1.0f,
                                Operator::add, sink_sum_.newest().column(column), ReduceCommand::reset_reduce});
    }
    builder_->emit(TensorTensor{sum, sum, some(correction_), Operator::multiply, Engine::vector});
    builder_->emit(TensorTensor{sum, sum, some(sink_sum_), Operator::add, Engine::vector});
  }

  /// Writes lse = log(sum) + maximum, and the value of MaskedRow for rows that saw no key.
  void write_lse(Access const& negated_maximum, std::vector<RowTile> const& tiles, Affine const& query_head, bool last,
                 bool shared, TensorHandle const& lse) {
    for (RotatingTile* tile : {&logarithm_, &masked_, &lse_}) tile->make();
    Access const result = some(logarithm_), masked = some(masked_);
    builder_->emit(Activation{result, Function::log, some(sum_)});
    builder_->emit(TensorTensor{result, result, negated_maximum, Operator::subtract, Engine::gpsimd});
    if (spec_->masked_row == MaskedRow::zero) {
      builder_->emit(TensorScalar{.dst = masked, .data = negated_maximum, .op0 = Operator::less,
                                  .operand0 = masked_limit, .engine = Engine::gpsimd});
      builder_->emit(TensorTensor{some(lse_), result, masked, Operator::multiply, Engine::gpsimd});
    } else {
      builder_->emit(TensorScalar{masked, negated_maximum, Operator::greater_equal, masked_limit, false,
                                  Operator::multiply, lowest_float, false, Engine::gpsimd});
      // Twice the lowest float is -inf. The product of 0 and -inf would be NaN in every other row.
      builder_->emit(TensorTensor{result, result, masked, Operator::add, Engine::gpsimd});
      builder_->emit(TensorTensor{some(lse_), result, masked, Operator::add, Engine::gpsimd});
    }
    ColumnSource const to{lse, query_head * (tile_rows * spec_->columns()), spec_->columns()};
    store_columns(*builder_, lse_.newest(), 0, tiles, to);
    if (spec_->local_queries % tile_rows == 0 || !last) return;
    TileHandle const zeros = padding_.make_tile();
    builder_->emit(Memset{zeros.whole(), 0.0f, Engine::gpsimd});
    pad_columns(*builder_, to, spec_->local_queries, zeros, shared);
  }

  /// Stores a few tiles with one DMA, to amortise its latency.
  void write_output(ForwardState const& state, std::vector<RowTile> const& tiles, Index head, Affine const& query_head,
                    TensorHandle const& output, Engine engine) {
    Index const dim = spec_->shape.value_dim;
    std::vector<Body> bodies;
    for (TileRun const& run : runs_of(tiles))
      for (std::size_t first = run.first; first < run.last; first += batched_tiles)
        bodies.push_back(builder_->collect([&] {
          std::size_t const end = std::min(run.last, first + batched_tiles);
          output_.make();
          for (std::size_t i = first; i < end; ++i) {
            Index const rows = tiles[i].count, column = first_column_ + static_cast<Index>(i);
            Access source = state.accumulator.part(0, rows, column * dim, dim);
            if (!state.resident) {
              source = accumulator_.make_tile().part(0, rows, 0, dim);
              builder_->emit(DmaCopy{source, state.in_hbm(head, tiles[i], spec_->local_queries, dim)});
            }
            builder_->emit(TensorScalar{.dst = output_.newest().part(0, rows, static_cast<Index>(i - first) * dim, dim),
                                        .data = source,
                                        .operand0 = scale_.newest().part(0, rows, static_cast<Index>(i), 1),
                                        .engine = engine});
          }
          store_once(*builder_, tiles[first], [&](Index row, Index rows) {
            auto const count = static_cast<Index>(end - first);
            builder_->emit(
                DmaCopy{output.pattern(query_head * (spec_->local_queries * dim) + (tiles[first].begin + row) * dim,
                                       {{dim, rows}, {run.stride * dim, count}, {1, dim}}),
                        output_.newest().pattern(row, rows, 0, {{dim, count}, {1, dim}})});
          });
        }));
    append_rolled(*builder_, "row_tiles", std::move(bodies));
  }

  Builder* builder_;
  KernelSpec const* spec_;
  bool declared_ = false;
  Index first_column_ = 0, count_ = 0;
  RotatingTile sum_, scale_, logarithm_, masked_, lse_, sink_, sink_maximum_, sink_weights_, correction_, sink_sum_,
      padding_, output_, accumulator_;
};

}  // namespace annulus::nki
