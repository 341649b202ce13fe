#pragma once
// Epilogue of a forward pass: sink logits, division by the sums, log-sum-exp.

#include <algorithm>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/forward_work.hpp"

namespace annulus::nki {

/// Results of a forward kernel, and its sink logits.
struct ForwardOutputs {
  TensorHandle output;        ///< [batch, query_heads, rows, value_dim]
  TensorHandle lse;           ///< [batch, query_heads, 128, columns]; without buffer: not requested
  TensorHandle sinks;         ///< sink logits [batch, query_heads, n]; without buffer: none
  TensorHandle beyond_range;  ///< [batch, query_heads, 128, columns]; without buffer: not requested
};

/// Normalises and stores finished row tiles.
class ForwardEpilogue {
 public:
  ForwardEpilogue(Builder& builder, KernelSpec const& spec, ForwardState const& state, ForwardOutputs outputs)
      : builder_(&builder), spec_(&spec), state_(state), outputs_(std::move(outputs)) {
    auto const tile = [&](char const* name, ElementType type = ElementType::float32, Index columns = most_tiles,
                          int rotation = 2) { return RotatingTile(builder, name, columns, type, rotation); };
    sum_ = tile("positive_sum");
    scale_ = tile("normaliser");
    if (spec.training) {
      logarithm_ = tile("logarithm");
      masked_ = tile("dead");
      lse_ = tile("lse_tile", spec.lse_type, most_tiles, stored);
      padding_ = tile("lse_padding", spec.lse_type, 1);
    }
    if (spec.sinks > 0) {
      sink_ = tile("sink", ElementType::float32, spec.sinks);
      sink_maximum_ = tile("sink_maximum", ElementType::float32, 1);
      sink_weights_ = tile("sink_weights", ElementType::float32, spec.sinks);
      correction_ = tile("sink_correction");
      sink_sum_ = tile("sink_sum");
    }
    if (outputs_.beyond_range.buffer >= 0) {
      below_ = tile("sum_too_small", ElementType::float32, most_tiles, stored);
      above_ = tile("sum_too_large");
      zero_ = tile("zero", ElementType::float32, 1);
    }
    Index const dim = spec.shape.value_dim;
    output_ = RotatingTile(builder, "output_tile", batched_tiles * dim, spec.output_type, 3);
    if (!state.resident) accumulator_ = RotatingTile(builder, "finished_accumulator", dim, ElementType::float32, 8);
  }

  static constexpr Index most_tiles = 8;
  static constexpr Index batched_tiles = 4;  ///< tiles whose rows one DMA stores
  static constexpr int stored = 4;           ///< tiles of results of a few bytes that are on their way to HBM

  /// Normalises row tiles `range` of a head of a round's item and stores output and lse. drained: no unit is left to be
  /// scored.
  void finish(Round const& round, Index head, RowRange range, bool drained) {
    count_ = range.size();
    first_column_ = head * std::ssize(round.tiles) + range.begin;
    Access const negated_maximum = state_.negated_maximum.columns(first_column_, count_),
                 sum = state_.sum.columns(first_column_, count_);
    bool const reports = outputs_.beyond_range.buffer >= 0;
    if (reports) take_sums(negated_maximum, sum);
    if (spec_->sinks > 0) add_sinks(negated_maximum, sum, round.item * spec_->query_heads_per_item() + head);
    if (reports) report(round, head, range);
    for (RotatingTile* tile : {&sum_, &scale_}) tile->make();
    // A row that saw no key has the sum 0 and an accumulator of zeros, so any finite factor is correct.
    builder_->emit(TensorScalar{some(sum_), sum, Operator::maximum, smallest_sum, Operator::minimum, 1 / smallest_sum});
    builder_->emit(Reciprocal{some(scale_), some(sum_)});
    if (spec_->keep_scale > 0)
      builder_->emit(
          TensorScalar{.dst = some(scale_), .data = some(scale_), .operand0 = static_cast<float>(spec_->keep_scale)});
    if (spec_->sinks > 0)
      builder_->emit(TensorTensor{some(scale_), some(scale_), some(correction_), Operator::multiply});
    // VectorE is the busiest engine until the pipeline is drained.
    write_output(tiles_of(round, range), head, round.in_argument(outputs_.output).head(head),
                 drained ? Engine::vector : Engine::gpsimd);
    if (outputs_.lse.buffer < 0) return;
    make_lse(negated_maximum);
    store(round, head, range, lse_, outputs_.lse, padding_);
  }

 private:
  /// ScalarE's logarithm is defined down to 2^-64; sums of a row that saw a key are at least about 1.
  static constexpr float smallest_sum = 0x1p-60f;
  /// Negated maxima above this limit belong to masked rows.
  static constexpr float masked_limit = 0.5f * empty_negated_maximum;

  /// Stores the newest values of row tiles `range`, and zeros beyond the last row.
  void store(Round const& round, Index head, RowRange range, RotatingTile const& values, TensorHandle const& result,
             RotatingTile& zeros) {
    HeadRows const to = round.in_argument(result).head(head);
    store_columns(*builder_, values.newest(), tiles_of(round, range), to);
    if (spec_->local_queries % tile_rows != 0 && range.end == std::ssize(round.tiles))
      pad_columns(*builder_, zeros.make_tile(), to, 1, spec_->local_queries, round.shared);
  }
  static std::vector<RowTile> tiles_of(Round const& round, RowRange range) {
    return {round.tiles.begin() + range.begin, round.tiles.begin() + range.end};
  }

  /// For keys that are stationary: copies the sums, which follow the accumulator of each row tile, and finds rows whose
  /// sum of weights relative to 0, not to the row's maximum, is outside of what the logarithm accepts.
  void take_sums(Access const& negated_maximum, Access const& sum) {
    Index const dim = spec_->shape.value_dim;
    builder_->emit(TensorCopy{
        sum, state_.accumulator.pattern(0, tile_rows, first_column_ * (dim + 1) + dim, {{dim + 1, count_}})});
    builder_->emit(
        TensorScalar{negated_maximum, sum, Operator::equal, 0.0f, Operator::multiply, empty_negated_maximum});
    for (RotatingTile* tile : {&below_, &above_}) tile->make();
    builder_->emit(TensorScalar{.dst = some(below_), .data = sum, .op0 = Operator::less, .operand0 = smallest_sum});
    builder_->emit(
        TensorScalar{.dst = some(above_), .data = sum, .op0 = Operator::greater, .operand0 = 1 / smallest_sum});
    builder_->emit(TensorTensor{some(below_), some(below_), some(above_), Operator::add, Engine::gpsimd});
  }
  /// Reports the rows that take_sums found, and those beside whose sink logits weights relative to 0 are too small.
  void report(Round const& round, Index head, RowRange range) {
    if (spec_->sinks > 0) {
      builder_->emit(TensorScalar{
          .dst = some(above_), .data = some(correction_), .op0 = Operator::less, .operand0 = smallest_sum});
      builder_->emit(TensorTensor{some(below_), some(below_), some(above_), Operator::maximum, Engine::gpsimd});
    }
    store(round, head, range, below_, outputs_.beyond_range, zero_);
  }

  Access some(RotatingTile const& tile) const { return tile.newest().columns(0, count_); }

  void add_sinks(Access const& negated_maximum, Access const& sum, Affine const& query_head) {
    for (RotatingTile* tile : {&sink_, &sink_maximum_, &correction_, &sink_sum_}) tile->make();
    builder_->emit(DmaCopy{sink_.newest().whole(),
                           outputs_.sinks.pattern(query_head * spec_->sinks, {{0, tile_rows}, {1, spec_->sinks}})});
    builder_->emit(TensorReduce{sink_maximum_.newest().whole(), Operator::maximum, sink_.newest().whole(), 1, true});
    builder_->emit(TensorCopy{some(correction_), negated_maximum});
    builder_->emit(TensorScalar{negated_maximum, negated_maximum, Operator::minimum, sink_maximum_.newest().whole()});
    builder_->emit(TensorTensor{some(correction_), negated_maximum, some(correction_), Operator::subtract});
    builder_->emit(Activation{some(correction_), Function::exp, some(correction_)});
    for (Index column = 0; column < count_; ++column) {
      sink_weights_.make();
      builder_->emit(Activation{sink_weights_.newest().whole(), Function::exp, sink_.newest().whole(),
                                state_.negated_maximum.column(first_column_ + column), 1.0f, Operator::add,
                                sink_sum_.newest().column(column), ReduceCommand::reset_reduce});
    }
    builder_->emit(TensorTensor{sum, sum, some(correction_), Operator::multiply});
    builder_->emit(TensorTensor{sum, sum, some(sink_sum_), Operator::add});
  }

  /// lse = log(sum) + maximum, and the value of MaskedRow for rows that saw no key.
  void make_lse(Access const& negated_maximum) {
    for (RotatingTile* tile : {&logarithm_, &masked_, &lse_}) tile->make();
    Access const result = some(logarithm_), masked = some(masked_);
    builder_->emit(Activation{result, Function::log, some(sum_)});
    builder_->emit(TensorTensor{result, result, negated_maximum, Operator::subtract, Engine::gpsimd});
    if (spec_->masked_row == MaskedRow::zero) {
      builder_->emit(
          TensorScalar{.dst = masked, .data = negated_maximum, .op0 = Operator::less, .operand0 = masked_limit});
      builder_->emit(TensorTensor{some(lse_), result, masked, Operator::multiply, Engine::gpsimd});
    } else {
      builder_->emit(TensorScalar{masked, negated_maximum, Operator::greater_equal, masked_limit, Operator::multiply,
                                  lowest_float});
      // Twice the lowest float is -inf. The product of 0 and -inf would be NaN in every other row.
      builder_->emit(TensorTensor{result, result, masked, Operator::add, Engine::gpsimd});
      builder_->emit(TensorTensor{some(lse_), result, masked, Operator::add, Engine::gpsimd});
    }
  }

  /// Stores a few tiles with one DMA, to amortise its latency.
  void write_output(std::vector<RowTile> const& tiles, Index head, HeadRows const& to, Engine engine) {
    std::vector<Body> bodies;
    for (TileRun const& run : runs_of(tiles))
      for (Index first = run.first; first < run.first + run.count; first += batched_tiles)
        bodies.push_back(builder_->collect([&] { write_batch(tiles, run, first, head, to, engine); }));
    append_rolled(*builder_, "row_tiles", std::move(bodies));
  }

  /// Stores up to batched_tiles tiles of a run, from tile `first` on.
  void write_batch(std::vector<RowTile> const& tiles, TileRun const& run, Index first, Index head, HeadRows const& to,
                   Engine engine) {
    Index const dim = to.dim, count = std::min(batched_tiles, run.first + run.count - first);
    TileHandle const batch = output_.make_tile();
    for (Index i = first; i < first + count; ++i) {
      RowTile const& tile = nth(tiles, i);
      Access source = state_.accumulator.part(0, tile.count, (first_column_ + i) * state_.pitch, dim);
      if (!state_.resident) {
        source = accumulator_.make_tile().part(0, tile.count, 0, dim);
        builder_->emit(DmaCopy{source, state_.in_hbm(head, tile)});
      }
      multiply_rows(*builder_, batch.part(0, tile.count, (i - first) * dim, dim), source,
                    scale_.newest().part(0, tile.count, i, 1), engine);
    }
    RowTile const& tile = nth(tiles, first);
    store_once(*builder_, tile, [&](Index row, Index rows) {
      builder_->emit(DmaCopy{to.blocks(tile.begin + row, rows, count, run.stride),
                             batch.pattern(row, rows, 0, {{dim, count}, {1, dim}})});
    });
  }

  Builder* builder_;
  KernelSpec const* spec_;
  ForwardState state_;
  ForwardOutputs outputs_;
  Index first_column_ = 0, count_ = 0;
  RotatingTile sum_, scale_, logarithm_, masked_, lse_, sink_, sink_maximum_, sink_weights_, correction_, sink_sum_,
      padding_, output_, accumulator_, below_, above_, zero_;
};

}  // namespace annulus::nki
