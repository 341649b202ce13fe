#pragma once
// The end of a forward pass: sinks, division by the sums, log-sum-exp. All rows of a round at once where their columns allow.

#include <vector>

#include "annulus/backend/nki/lower/forward_units.hpp"
#include "annulus/backend/nki/program/roll.hpp"

namespace annulus::nki {

struct ForwardOutputs {
  TensorHandle output;  ///< [batch, query_heads, rows, value_dim]
  TensorHandle lse;     ///< [batch, query_heads, 128, columns]; without shape: not asked for
  TensorHandle sinks;   ///< [batch, query_heads, n]; without shape: none
};

class ForwardFinish {
 public:
  ForwardFinish(Builder& builder, KernelSpec const& spec) : builder_(&builder), spec_(&spec) {}

  /// Ends the rows of an item, which the cores of a pair may share.
  void finish(ForwardUnits::State const& state, std::vector<RowTile> const& tiles, Affine const& item, bool shared,
              ForwardOutputs const& outputs) {
    declare(static_cast<Index>(tiles.size()), state.resident);
    auto const count = static_cast<Index>(tiles.size());
    for (Index head = 0; head < spec_->query_heads_per_item(); ++head) {
      auto const columns = [&](TileHandle const& of) { return of.columns(head * count, count); };
      Access const negated_maximum = columns(state.negated_maximum), sum = columns(state.sum);
      Affine const query_head = item * spec_->query_heads_per_item() + head;
      if (spec_->sinks > 0) add_sinks(negated_maximum, sum, query_head, outputs.sinks, count);
      builder_->allocate(scale_);
      // A row that saw nothing has the sum 0 and an accumulator of zeros: any finite factor will do.
      builder_->emit(TensorScalar{scale_.whole(), sum, Operator::maximum, smallest_sum, false, std::nullopt, 0.0f, false, Engine::vector});
      if (outputs.lse.buffer >= 0) write_lse(negated_maximum, tiles, query_head, shared, outputs.lse);
      builder_->emit(Reciprocal{scale_.whole(), scale_.whole()});
      if (spec_->sinks > 0)
        builder_->emit(TensorTensor{scale_.whole(), scale_.whole(), correction_.whole(), Operator::multiply, Engine::vector});
      write_output(state, tiles, head, query_head, outputs.output);
    }
  }

 private:
  /// ScalarE's logarithm is defined down to 2^-64; sums of a row that saw a key are at least about 1.
  static constexpr float smallest_sum = 0x1p-60f;
  /// Negated maxima above it belong to rows that saw nothing.
  static constexpr float dead_limit = 0.5f * empty_negated_maximum;

  void declare(Index columns, bool resident) {
    if (scale_.buffer >= 0 && scale_.elements == columns) return;
    std::string const suffix = scale_.buffer >= 0 ? "_shared" : "";
    auto const tile = [&](char const* name, ElementType type = ElementType::float32) {
      return builder_->declare(name + suffix, Memory::sbuf, tile_rows, columns, type);
    };
    scale_ = tile("normaliser");
    if (spec_->training) {
      logarithm_ = tile("logarithm");
      dead_ = tile("dead");
      lse_ = tile("lse_tile", spec_->lse_type);
      if (padding_.buffer < 0) padding_ = builder_->declare("lse_padding", Memory::sbuf, tile_rows, 1, spec_->lse_type);
    }
    if (spec_->sinks > 0) {
      sink_ = builder_->declare("sink" + suffix, Memory::sbuf, tile_rows, spec_->sinks, ElementType::float32);
      sink_maximum_ = builder_->declare("sink_maximum" + suffix, Memory::sbuf, tile_rows, 1, ElementType::float32);
      sink_weights_ = builder_->declare("sink_weights" + suffix, Memory::sbuf, tile_rows, spec_->sinks, ElementType::float32);
      correction_ = tile("sink_correction");
      sink_sum_ = tile("sink_sum");
    }
    if (output_.newest().buffer < 0)
      output_ = RotatingTile(*builder_, "output_tile", Memory::sbuf, tile_rows, spec_->shape.value_dim, spec_->output_type, 3);
    if (!resident && accumulator_.newest().buffer < 0)
      accumulator_ = RotatingTile(*builder_, "finished_accumulator", Memory::sbuf, tile_rows, spec_->shape.value_dim, ElementType::float32, 2);
  }

  /// Sinks are logits that take part in the sum alone.
  void add_sinks(Access const& negated_maximum, Access const& sum, Affine const& query_head, TensorHandle const& sinks, Index count) {
    for (TileHandle const& tile : {sink_, sink_maximum_, correction_, sink_sum_}) builder_->allocate(tile);
    builder_->emit(DmaCopy{sink_.whole(), sinks.pattern(query_head * spec_->sinks, {{0, tile_rows}, {1, spec_->sinks}})});
    builder_->emit(TensorReduce{sink_maximum_.whole(), Operator::maximum, sink_.whole(), 1, true});
    builder_->emit(TensorCopy{correction_.whole(), negated_maximum, Engine::vector});
    builder_->emit(TensorScalar{negated_maximum, negated_maximum, Operator::minimum, sink_maximum_.whole(), false, std::nullopt, 0.0f, false,
                                Engine::vector});
    builder_->emit(TensorTensor{correction_.whole(), negated_maximum, correction_.whole(), Operator::subtract, Engine::vector});
    builder_->emit(Activation{correction_.whole(), Function::exp, correction_.whole(), 0.0f, 1.0f, std::nullopt, std::nullopt, ReduceCommand::idle});
    for (Index column = 0; column < count; ++column) {
      builder_->allocate(sink_weights_);
      Access maximum(negated_maximum.buffer, {negated_maximum.axis(0), {1, 1}});
      maximum.offset = negated_maximum.offset + column;
      builder_->emit(Activation{sink_weights_.whole(), Function::exp, sink_.whole(), maximum, 1.0f, Operator::add, sink_sum_.column(column),
                                ReduceCommand::reset_reduce});
    }
    builder_->emit(TensorTensor{sum, sum, correction_.whole(), Operator::multiply, Engine::vector});
    builder_->emit(TensorTensor{sum, sum, sink_sum_.whole(), Operator::add, Engine::vector});
  }

  /// lse = log(sum) + maximum; `scale_` holds the sums.
  void write_lse(Access const& negated_maximum, std::vector<RowTile> const& tiles, Affine const& query_head, bool shared,
                 TensorHandle const& lse) {
    for (TileHandle const& tile : {logarithm_, dead_, lse_}) builder_->allocate(tile);
    Access const result = logarithm_.whole(), dead = dead_.whole();
    builder_->emit(Activation{result, Function::log, scale_.whole(), 0.0f, 1.0f, std::nullopt, std::nullopt, ReduceCommand::idle});
    builder_->emit(TensorTensor{result, result, negated_maximum, Operator::subtract, Engine::vector});
    if (spec_->dead_row == DeadRow::zero) {
      builder_->emit(TensorScalar{dead, negated_maximum, Operator::less, dead_limit, false, std::nullopt, 0.0f, false, Engine::vector});
      builder_->emit(TensorTensor{result, result, dead, Operator::multiply, Engine::vector});
    } else {
      builder_->emit(TensorScalar{dead, negated_maximum, Operator::greater_equal, dead_limit, false, Operator::multiply, lowest_float, false,
                                  Engine::vector});
      // Twice the lowest float is -inf; a product with -inf itself would make NaN of every other row.
      for (int twice = 0; twice < 2; ++twice) builder_->emit(TensorTensor{result, result, dead, Operator::add, Engine::vector});
    }
    builder_->emit(TensorCopy{lse_.whole(), result, Engine::vector});
    Index const columns = lse.shape[3], head_size = tile_rows * columns;
    for (TileRun const& run : runs_of(tiles)) {
      RowTile const& tile = tiles[run.first];
      auto const count = static_cast<Index>(run.last - run.first);
      store_once(*builder_, tile, [&](Index first, Index rows) {
        builder_->emit(DmaCopy{lse.pattern(query_head * head_size + (tile.first_partition + first) * columns + tile.column,
                                           {{columns, rows}, {run.stride / tile_rows, count}}),
                               lse_.part(first, rows, static_cast<Index>(run.first), count)});
      });
    }
    Index const rest = spec_->local_queries % tile_rows;
    if (rest == 0) return;
    builder_->allocate(padding_);
    builder_->emit(Memset{padding_.whole(), 0.0f, Engine::gpsimd});
    auto const pad = [&] {
      builder_->emit(DmaCopy{lse.pattern(query_head * head_size + rest * columns + columns - 1, {{columns, tile_rows - rest}, {1, 1}}),
                             padding_.part(0, tile_rows - rest, 0, 1)});
    };
    shared ? builder_->on_core(0, pad) : pad();
  }

  void write_output(ForwardUnits::State const& state, std::vector<RowTile> const& tiles, Index head, Affine const& query_head,
                    TensorHandle const& output) {
    Index const dim = spec_->shape.value_dim;
    std::vector<Body> bodies;
    for (std::size_t i = 0; i < tiles.size(); ++i)
      bodies.push_back(builder_->collect([&] {
        RowTile const& tile = tiles[i];
        Index const column = head * static_cast<Index>(tiles.size()) + static_cast<Index>(i);
        Access source = state.accumulator.part(0, tile.count, column * dim, dim);
        if (!state.resident) {
          accumulator_.make();
          source = accumulator_.newest().part(0, tile.count, 0, dim);
          builder_->emit(DmaCopy{source, state.in_hbm(head, tile, spec_->local_queries, dim)});
        }
        output_.make();
        Access const scaled = output_.newest().part(0, tile.count, 0, dim);
        builder_->emit(TensorScalar{scaled, source, Operator::multiply, scale_.part(0, tile.count, static_cast<Index>(i), 1), false, std::nullopt,
                                    0.0f, false, Engine::vector});
        store_once(*builder_, tile, [&](Index first, Index rows) {
          builder_->emit(DmaCopy{output.pattern(query_head * (spec_->local_queries * dim) + (tile.begin + first) * dim, {{dim, rows}, {1, dim}}),
                                 output_.newest().part(first, rows, 0, dim)});
        });
      }));
    append_rolled(*builder_, "row_tile", std::move(bodies));
  }

  Builder* builder_;
  KernelSpec const* spec_;
  TileHandle scale_, logarithm_, dead_, lse_, sink_, sink_maximum_, sink_weights_, correction_, sink_sum_, padding_;
  RotatingTile output_, accumulator_;
};

}  // namespace annulus::nki
