#pragma once
// The forward pass of one query tile over one group of keys, in four stages that a pipeline runs side by side:
//   scores         S = Q K^T through PSUM, soft cap, mask, running maximum
//   probabilities  P = exp(S - maximum) and its row sums
//   transposes     P^T, partly by DMA, partly by TensorE
//   values         accumulator = accumulator * correction + P V
// (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135.) Maxima are kept negated, as exp's bias.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "annulus/backend/nki/lower/bounds_tiles.hpp"
#include "annulus/backend/nki/lower/operand_loads.hpp"

namespace annulus::nki {

/// How the work is spread over engines and buffers; found with the cost model.
struct ForwardTuning {
  Index group_keys = 4096;     ///< keys between two corrections of the accumulator
  Index span_keys = 1024;      ///< keys that leave PSUM in one instruction: two banks
  Index dma_transposed = 3;    ///< of every four full 128 x 128 blocks of P^T, these go by DMA
};

/// A negated maximum that says: nothing seen yet. Scores that were masked, which are the lowest float times the
/// multiplier, stay far below its opposite.
inline constexpr float empty_negated_maximum = 1e30f;

struct ForwardUnit {
  Index head = 0;          ///< query head inside the item's group
  std::size_t tile = 0;    ///< row tile
  RowRange keys;           ///< rows of the shard
  std::size_t piece = 0;
  bool select = false;     ///< some row does not see some key
  bool first = false, last = false;  ///< of the units of this head and tile in this section
  std::size_t section = 0;
};

/// Where the keys and values of a unit lie.
struct KeySection {
  RowRange rows;
  Index key_number = -1, value_number = -1, bounds_number = -1;
};

class ForwardUnits {
 public:
  struct State {
    bool resident = true;
    TileHandle negated_maximum, sum;  ///< [128, heads * tiles]
    TileHandle accumulator;           ///< resident: [128, heads * tiles * value_dim]
    TensorHandle spilled;             ///< else in the core's own HBM [heads, rows, value_dim]

    /// The accumulator rows of a tile in HBM.
    Access in_hbm(Index head, RowTile const& tile, Index rows, Index dim) const {
      return spilled.pattern(tile.begin * dim + head * rows * dim, {{dim, tile.count}, {1, dim}});
    }
  };

  ForwardUnits(Builder& builder, KernelSpec const& spec, ForwardTuning const& tuning, Transposer& transposer, OperandLoads& loads,
               Index section_keys)
      : builder_(&builder), spec_(&spec), tuning_(tuning), transposer_(&transposer), loads_(&loads), factors_(logit_factors(spec)) {
    Index const dim = spec.shape.head_dim, value_dim = spec.shape.value_dim, group = std::min(tuning.group_keys, section_keys);
    Chunks const chunks{dim};
    auto const rotating = [&](char const* name, Memory memory, Index elements, ElementType type, int rotation) {
      return RotatingTile(builder, name, memory, tile_rows, elements, type, rotation);
    };
    keys_ = RotatingTile(builder, "keys", Memory::sbuf, chunks.largest(), chunks.count() * section_keys, spec.type, 2);
    values_ = rotating("values", Memory::sbuf, ceil_divide(section_keys, tile_rows) * value_dim, spec.type, 2);
    queries_ = RotatingTile(builder, "queries", Memory::sbuf, chunks.largest(), chunks.count() * tile_rows, spec.type, 3);
    raw_scores_ = rotating("raw_scores", Memory::psum, std::min(tuning.span_keys, ceil_divide(group, Index{512}) * 512), ElementType::float32, 2);
    scores_ = rotating("scores", Memory::sbuf, group, ElementType::float32, 2);
    span_maximum_ = rotating("span_maximum", Memory::sbuf, ceil_divide(group, tuning.span_keys), ElementType::float32, 2);
    negated_maximum_ = rotating("negated_maximum", Memory::sbuf, 1, ElementType::float32, 3);
    correction_ = rotating("correction", Memory::sbuf, 1, ElementType::float32, 4);
    probabilities_ = rotating("probabilities", Memory::sbuf, group, spec.type, 2);
    row_sum_ = rotating("row_sum", Memory::sbuf, 1, ElementType::float32, 2);
    transposed_ = rotating("transposed_probabilities", Memory::sbuf, ceil_divide(group, tile_rows) * tile_rows, spec.type, 2);
    weighted_ = rotating("weighted_values", Memory::psum, value_dim, ElementType::float32, 2);
    section_keys_ = section_keys;
  }

  /// For the units that follow: where state, row tiles, bounds and the queries of the item's first head are.
  void begin_round(State const& state, std::vector<RowTile> const& tiles, BoundsTiles const& bounds, HeadSource queries) {
    state_ = state;
    tiles_ = &tiles;
    bounds_ = &bounds;
    query_source_ = std::move(queries);
    if (!state.resident && !spill_declared_) {
      spilled_accumulator_ = RotatingTile(*builder_, "accumulator_tile", Memory::sbuf, tile_rows, spec_->shape.value_dim, ElementType::float32, 6);
      spill_declared_ = true;
    }
  }

  void load_section(KeySection& section, HeadSource const& keys, HeadSource const& values) {
    section.key_number = keys_.make();
    section.value_number = values_.make();
    loads_->by_feature(keys, section.rows.begin, section.rows.size(), keys_.newest(), section_keys_);
    loads_->by_token(values, section.rows.begin, section.rows.size(), values_.newest());
  }

  /// One slot of the pipeline; any of the units may be missing. Products of two units take turns on TensorE, span by span.
  /// `coming` is scored in the next slot: what it needs from HBM starts to move.
  void slot(ForwardUnit const* coming, ForwardUnit const* scored, ForwardUnit const* weighed, ForwardUnit const* turned,
            ForwardUnit const* summed, std::vector<KeySection> const& sections) {
    if (coming) fetch(*coming);
    std::vector<std::function<void()>> scoring, summing;
    if (scored) scoring = score(*scored, sections);
    if (summed) summing = sum(*summed, sections);
    for (std::size_t i = 0; i < std::max(scoring.size(), summing.size()); ++i) {
      if (i < scoring.size()) scoring[i]();
      if (i < summing.size()) summing[i]();
    }
    if (weighed) weigh(*weighed);
    if (turned) turn(*turned);
  }

 private:
  struct InFlight {
    Index queries = -1, scores = -1, spans = -1, negated_maximum = -1, correction = -1, probabilities = -1, transposed = -1, accumulator = -1;
  };

  RowTile const& tile(ForwardUnit const& unit) const { return (*tiles_)[unit.tile]; }
  Index rows(ForwardUnit const& unit) const { return tile(unit).count; }
  Index state_column(ForwardUnit const& unit) const { return unit.head * static_cast<Index>(tiles_->size()) + static_cast<Index>(unit.tile); }
  Access state_of(TileHandle const& columns, ForwardUnit const& unit) const { return columns.part(0, rows(unit), state_column(unit), 1); }
  Access accumulator(ForwardUnit const& unit) {
    Index const dim = spec_->shape.value_dim;
    if (state_.resident) return state_.accumulator.part(0, rows(unit), state_column(unit) * dim, dim);
    return spilled_accumulator_[flight(unit).accumulator].part(0, rows(unit), 0, dim);
  }
  Access spilled(ForwardUnit const& unit) const {
    return state_.in_hbm(unit.head, tile(unit), spec_->local_queries, spec_->shape.value_dim);
  }
  InFlight& flight(ForwardUnit const& unit) { return flights_[&unit]; }

  void fetch(ForwardUnit const& unit) {
    if (unit.first) {
      load_queries(unit);
      if (!state_.resident) {
        accumulator_number_ = spilled_accumulator_.make();
        builder_->emit(DmaCopy{spilled_accumulator_.newest().part(0, rows(unit), 0, spec_->shape.value_dim), spilled(unit)});
      }
    }
    flights_[&unit] = {.queries = query_number_, .accumulator = accumulator_number_};
  }

  void load_queries(ForwardUnit const& unit) {
    query_number_ = queries_.make();
    HeadSource source = query_source_;
    source.offset += Affine(unit.head * source.rows * source.dim);
    loads_->by_feature(source, tile(unit).begin, rows(unit), queries_.newest(), tile_rows);
    if (factors_.query_factor == 1) return;
    Chunks const chunks{source.dim};
    for (Index c = 0; c < chunks.count(); ++c) {
      Access const part = queries_.newest().part(0, chunks.size(c), c * tile_rows, rows(unit));
      builder_->emit(TensorScalar{part, part, Operator::multiply, factors_.query_factor, false, std::nullopt, 0.0f, false, Engine::gpsimd});
    }
  }

  std::vector<std::function<void()>> score(ForwardUnit const& unit, std::vector<KeySection> const& sections) {
    InFlight& now = flight(unit);
    now.scores = scores_.make();
    now.spans = span_maximum_.make();
    now.negated_maximum = negated_maximum_.make();
    now.correction = correction_.make();
    KeySection const& section = sections[unit.section];
    std::vector<std::function<void()>> parts;
    Index const spans = ceil_divide(unit.keys.size(), tuning_.span_keys);
    for (Index span = 0; span < spans; ++span)
      parts.push_back([this, &unit, &section, span, spans] {
        score_span(unit, section, span, spans);
        if (span == spans - 1) raise_maximum(unit, spans);
      });
    return parts;
  }

  void score_span(ForwardUnit const& unit, KeySection const& section, Index span, Index spans) {
    Index const begin = span * tuning_.span_keys, count = std::min(tuning_.span_keys, unit.keys.size() - begin);
    Chunks const chunks{spec_->shape.head_dim};
    raw_scores_.make();
    TileHandle const raw = raw_scores_.newest(), keys = keys_[section.key_number], queries = queries_[flight(unit).queries];
    for (Index at = 0; at < count; at += 512)
      for (Index c = 0; c < chunks.count(); ++c) {
        Index const width = std::min(Index{512}, count - at);
        builder_->emit(MatMul{raw.part(0, rows(unit), at, width), queries.part(0, chunks.size(c), c * tile_rows, rows(unit)),
                              keys.part(0, chunks.size(c), c * section_keys_ + unit.keys.begin - section.rows.begin + begin + at, width), c > 0});
      }
    Access const from = raw.part(0, rows(unit), 0, count), to = scores_[flight(unit).scores].part(0, rows(unit), begin, count);
    TileHandle const maxima = span_maximum_[flight(unit).spans];
    Access source = from;
    if (factors_.capped) {
      builder_->emit(Activation{to, Function::tanh, from, 0.0f, factors_.inner, std::nullopt, std::nullopt, ReduceCommand::idle});
      source = to;
    }
    if (unit.select) {
      // The maximum of all spans is chained in VectorE and read out once.
      std::optional<Access> result;
      if (span == spans - 1) result = maxima.part(0, rows(unit), 0, 1);
      builder_->emit(RangeSelect{to, source, Operator::greater_equal, Operator::less, bounds_->begin(section.bounds_number, unit.piece, unit.tile),
                                 bounds_->end(section.bounds_number, unit.piece, unit.tile),
                                 span == 0 ? ReduceCommand::reset_reduce : ReduceCommand::reduce, result, Operator::maximum,
                                 unit.keys.begin + begin, lowest_float});
    } else {
      builder_->emit(TensorScalarReduce{to, source, Operator::multiply, 1.0f, Operator::maximum, maxima.part(0, rows(unit), span, 1)});
    }
  }

  void raise_maximum(ForwardUnit const& unit, Index spans) {
    TileHandle const maxima = span_maximum_[flight(unit).spans], raised = negated_maximum_[flight(unit).negated_maximum];
    Access const old = state_of(state_.negated_maximum, unit), now = raised.part(0, rows(unit), 0, 1);
    Index const maximum_count = unit.select ? 1 : spans;
    Access highest = maxima.part(0, rows(unit), 0, 1);
    if (maximum_count > 1) builder_->emit(TensorReduce{highest, Operator::maximum, maxima.part(0, rows(unit), 0, maximum_count), 1, false});
    builder_->emit(ScalarTensorTensor{now, highest, Operator::multiply, -factors_.multiplier, Operator::minimum, old, false, false});
    builder_->emit(Activation{correction_[flight(unit).correction].part(0, rows(unit), 0, 1), Function::exp, old, now, -1.0f, std::nullopt,
                              std::nullopt, ReduceCommand::idle});
    builder_->emit(TensorCopy{old, now, Engine::gpsimd});
  }

  void weigh(ForwardUnit const& unit) {
    InFlight& now = flight(unit);
    now.probabilities = probabilities_.make();
    row_sum_.make();
    Access const total = row_sum_.newest().part(0, rows(unit), 0, 1);
    Index const spans = ceil_divide(unit.keys.size(), tuning_.span_keys);
    for (Index span = 0; span < spans; ++span) {
      Index const begin = span * tuning_.span_keys, count = std::min(tuning_.span_keys, unit.keys.size() - begin);
      std::optional<Access> result;
      if (span == spans - 1) result = total;
      builder_->emit(Activation{probabilities_.newest().part(0, rows(unit), begin, count), Function::exp,
                                scores_[now.scores].part(0, rows(unit), begin, count), negated_maximum_[now.negated_maximum].part(0, rows(unit), 0, 1),
                                factors_.multiplier, Operator::add, result, span == 0 ? ReduceCommand::reset_reduce : ReduceCommand::reduce});
    }
    Access const sum = state_of(state_.sum, unit);
    builder_->emit(Activation{sum, Function::copy, sum, total, correction_[now.correction].part(0, rows(unit), 0, 1), std::nullopt, std::nullopt,
                              ReduceCommand::idle});
  }

  void turn(ForwardUnit const& unit) {
    InFlight& now = flight(unit);
    now.transposed = transposed_.make();
    TileHandle const from = probabilities_[now.probabilities], to = transposed_.newest();
    Index const whole = unit.keys.size() / tile_rows, blocks = ceil_divide(unit.keys.size(), tile_rows);
    Index const by_dma = bytes_of(spec_->type) == 2 && rows(unit) == tile_rows ? whole * tuning_.dma_transposed / 4 : 0;
    for (Index block = 0; block < by_dma; block += 8) {
      Index const count = std::min(Index{8}, by_dma - block);
      builder_->emit(DmaTranspose{to.pattern(0, tile_rows, block * tile_rows, {{1, 1}, {tile_rows, count}, {1, tile_rows}}),
                                  from.pattern(0, tile_rows, block * tile_rows, {{1, 1}, {tile_rows, count}, {1, tile_rows}})});
    }
    for (Index block = by_dma; block < blocks;) {
      Index const keys = std::min(tile_rows, unit.keys.size() - block * tile_rows);
      Index const count = keys == tile_rows ? std::min(Transposer::blocks, whole - block) : 1;
      transposer_->run(rows(unit), keys, count, [&](Index i) { return from.part(0, rows(unit), (block + i) * tile_rows, keys); },
                       rows(unit) == tile_rows ? to.part(0, keys, block * tile_rows, count * tile_rows)
                                               : to.pattern(0, keys, block * tile_rows, {{tile_rows, count}, {1, rows(unit)}}),
                       Engine::scalar);
      block += count;
    }
  }

  std::vector<std::function<void()>> sum(ForwardUnit const& unit, std::vector<KeySection> const& sections) {
    KeySection const& section = sections[unit.section];
    weighted_.make();
    Index const blocks = ceil_divide(unit.keys.size(), tile_rows), per_part = tuning_.span_keys / tile_rows, dim = spec_->shape.value_dim;
    std::vector<std::function<void()>> parts;
    for (Index begin = 0; begin < blocks; begin += per_part)
      parts.push_back([this, &unit, &section, begin, per_part, blocks, dim] {
        Index const first = (unit.keys.begin - section.rows.begin) / tile_rows, end = std::min(blocks, begin + per_part);
        Access const product = weighted_.newest().part(0, rows(unit), 0, dim);
        if (begin == 0) {
          Access const total = accumulator(unit);
          builder_->emit(TensorScalar{total, total, Operator::multiply, correction_[flight(unit).correction].part(0, rows(unit), 0, 1), false,
                                      std::nullopt, 0.0f, false, Engine::gpsimd});
        }
        for (Index block = begin; block < end; ++block) {
          Index const keys = std::min(tile_rows, unit.keys.size() - block * tile_rows);
          builder_->emit(MatMul{product, transposed_[flight(unit).transposed].part(0, keys, block * tile_rows, rows(unit)),
                                values_[section.value_number].part(0, keys, (first + block) * dim, dim), block > 0});
        }
        if (end < blocks) return;
        Access const total = accumulator(unit);
        builder_->emit(TensorTensor{total, total, product, Operator::add, Engine::vector});
        if (unit.last && !state_.resident) builder_->emit(DmaCopy{spilled(unit), total});
        flights_.erase(&unit);
      });
    return parts;
  }

  Builder* builder_;
  KernelSpec const* spec_;
  ForwardTuning tuning_;
  Transposer* transposer_;
  OperandLoads* loads_;
  LogitFactors factors_;
  Index section_keys_ = 0;
  RotatingTile keys_, values_, queries_, raw_scores_, scores_, span_maximum_, negated_maximum_, correction_, probabilities_, row_sum_, transposed_,
      weighted_, spilled_accumulator_;
  bool spill_declared_ = false;
  State state_;
  std::vector<RowTile> const* tiles_ = nullptr;
  BoundsTiles const* bounds_ = nullptr;
  HeadSource query_source_;
  Index query_number_ = -1, accumulator_number_ = -1;
  std::map<ForwardUnit const*, InFlight> flights_;
};

}  // namespace annulus::nki
