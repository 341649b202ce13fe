#pragma once
// Forward pass of query tiles over groups of keys, in four stages that run concurrently in a pipeline:
//   scores         S = Q K^T through PSUM, soft cap, mask, running maximum
//   probabilities  P = exp(S - maximum) and its row sums
//   transposes     P^T, partly by DMA, partly by TensorE
//   values         accumulator = accumulator * correction + P V
// (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135.) Maxima are stored negated, as bias of exp.

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/forward_work.hpp"
#include "annulus/nki/kernels/pair_tiles.hpp"

namespace annulus::nki {

/// Emits the loads and pipeline stages of forward units.
class ForwardPipeline : public ForwardStages {
 public:
  static constexpr std::size_t depth = 5;  ///< four stages, and a slot for the latency of DMA transposes
  /// Row tiles; fewer cause more short instructions, more delay the next unit.
  static constexpr Index finished_together = 4;
  static constexpr double choose = 0.25;  ///< part of a step after which VectorE reads the next one's choice

  ForwardPipeline(Builder& builder, KernelSpec const& spec, RingMask const& mask, SbufPlan const& plan,
                  Index dma_transposed, KernelInputs const& inputs)
      : ForwardStages(builder, spec, 2, ForwardTuning::query_tiles),
        dma_transposed_(dma_transposed),
        bias_(builder, spec, "bias_tile", inputs.bias, {}, plan.group),
        kept_(builder, spec, "kept_tile", inputs.kept, {}, plan.group),
        section_tiles_(builder, loads_, spec, plan.section, false) {
    Index const value_dim = spec.shape.value_dim, group = plan.group;
    auto const tile = [&](char const* name, Index elements, ElementType type = ElementType::float32, int rotation = 2) {
      return RotatingTile(builder, name, elements, type, rotation);
    };
    if (adds_bias_to_product(spec)) bias_.use_tensor_engine(1 / factors_.multiplier);
    raw_scores_ = RotatingTile(builder, "raw_scores", ForwardTuning::span_keys, ElementType::float32, 4, Memory::psum);
    scores_ = tile("scores", group);
    score_maximum_ = tile("score_maximum", 1);
    bool const halves = mask.chooses_halves();
    negated_maximum_ = tile("raised_maximum", halves ? 5 : 1, ElementType::float32, 3);
    correction_ = tile("correction", halves ? 2 : 1, ElementType::float32, 4);
    if (halves) chosen_values_ = tile("chosen_values", 2 * value_dim);
    probabilities_ = tile("probabilities", group, spec.type);
    row_sum_ = tile("row_sum", halves ? 3 : 1);
    transposed_ = tile("transposed_probabilities", detail::ceil_divide(group, tile_rows) * tile_rows, spec.type);
    weighted_ = RotatingTile(builder, "weighted_values", value_dim, ElementType::float32, 2, Memory::psum);
    // A span that all rows see takes the same instruction, with bounds that mask nothing.
    all_of_span_ = builder.tile("all_of_span", Memory::sbuf, tile_rows, 2, ElementType::float32);
    negated_multiplier_ = builder.tile("negated_multiplier", Memory::sbuf, tile_rows, 1, ElementType::float32);
    builder.emit(Memset{negated_multiplier_.whole(), -factors_.multiplier, Engine::gpsimd});
    builder.emit(Memset{all_of_span_.column(0), 0.0f, Engine::gpsimd});
    builder.emit(Memset{all_of_span_.column(1), float{ForwardTuning::span_keys}, Engine::gpsimd});
  }

  /// Sets what later units refer to; `queries`: of the item's first head.
  void begin_round(ForwardState const& state, Round const& round, BoundsTiles const& bounds, HeadRows queries) {
    ForwardStages::begin_round(state, round.tiles, bounds, std::move(queries));
    for (PairTiles* pairs : {&bias_, &kept_}) pairs->begin_round(round);
    if (!state.resident && !spilled_accumulator_)
      spilled_accumulator_.emplace(*builder_, "accumulator_tile", spec_->shape.value_dim, ElementType::float32, 6);
  }

  SectionTiles& section_tiles() { return section_tiles_; }

  /// Buffers of which each slot makes a tile.
  static constexpr char const* tiles_of_slots = "scores, probabilities, transposed_probabilities";
  Index slots_made() const { return scores_.made(); }  ///< so far

  /// Emits one slot of the pipeline, its stages interleaved span by span; any stage may have no units. `coming` is
  /// scored in the next slot: its loads from HBM start here.
  void slot(ForwardSlot coming, ForwardSlot scored, ForwardSlot weighed, ForwardSlot transposed, ForwardSlot summed,
            std::vector<KeySection> const& sections) {
    sections_ = &sections;
    transposed_count_ = 0;  // equal slots must emit equal instructions, so that they roll
    // While the pipeline drains, VectorE, the busiest engine before, is idle and takes over work of other engines.
    draining_ = scored.empty();
    for (PairTiles* pairs : {&bias_, &kept_})
      if (!coming.empty()) pairs->make();
    for (ForwardUnit const& unit : coming) fetch(unit);
    std::vector<Parts> stages(4);
    if (!scored.empty()) scores_.make();
    for (ForwardUnit const& unit : scored) score(stages[0], unit);
    sum(stages[1], summed);
    transpose_stage(stages[2], transposed);
    if (!weighed.empty()) probabilities_.make();
    for (ForwardUnit const& unit : weighed) weigh(stages[3], unit);
    interleave(stages);
  }

  /// A permute of so many bytes starts (0: none). Until it should be over, TensorE transposes all blocks, as DMA
  /// transposes would wait for it.
  void begin_permute(Index bytes) {
    if (bytes == 0) return;
    Costs const costs = hardware_of(spec_->target).costs;
    double const seconds = costs.permute_latency + static_cast<double>(bytes) / costs.permute_rate;
    permuted_keys_ += static_cast<Index>(seconds * 1e6 * ForwardTuning::permute_keys);
  }

 private:
  /// Most keys of a chosen unit whose accumulators VectorE corrects; with longer ones it is the busiest engine.
  static constexpr Index vector_keys = 1024;

  RowTile const& tile(ForwardUnit const& unit) const { return nth(*tiles_, unit.tile); }
  Index rows(ForwardUnit const& unit) const { return tile(unit).count; }
  Index half() const { return std::ssize(*tiles_) / 2; }  ///< row tiles from an early one to the late one in its place
  Index state_column(ForwardUnit const& unit, bool early = false) const {
    return unit.head * std::ssize(*tiles_) + unit.tile - early * half();
  }
  /// False and, for a chosen unit, which adds to the early or to the late rows, true.
  static std::span<bool const> early_sides(ForwardUnit const& unit) {
    static constexpr bool sides[] = {false, true};
    return {sides, unit.chosen ? 2u : 1u};
  }
  /// A column of the state; of a chosen unit those of early and late rows.
  Access state_of(TileHandle const& columns, ForwardUnit const& unit) const {
    return unit.chosen ? columns.pattern(0, rows(unit), state_column(unit, true), {{half(), 2}})
                       : columns.part(0, rows(unit), state_column(unit), 1);
  }
  /// Column of the raised maximum in its tile. Of a chosen unit column 0 is for the chosen rows, then early and late.
  static Index maximum_column(ForwardUnit const& unit, bool early) { return unit.chosen ? 2 - early : 0; }
  Access negated_maximum(ForwardUnit const& unit, Index column, Index columns = 1) {
    return negated_maximum_[flight(unit).negated_maximum].part(0, rows(unit), column, columns);
  }
  Access choices(ForwardUnit const& unit, Index column = 0, Index count = 2) const {
    return bounds_->choices(section(unit).bounds_number).part(0, rows(unit), column, count);
  }
  /// Column 0 of a tile that holds one value per row of a unit.
  Access column_of(RotatingTile const& tile, Index number, ForwardUnit const& unit) const {
    return tile[number].part(0, rows(unit), 0, 1);
  }
  Access correction(ForwardUnit const& unit) {
    return correction_[flight(unit).correction].part(0, rows(unit), 0, 1 + unit.chosen);
  }
  Access resident_accumulator(ForwardUnit const& unit, bool early = false) const {
    Index const dim = spec_->shape.value_dim;
    return state_.accumulator.part(0, rows(unit), state_column(unit, early) * dim, dim);
  }
  Access accumulator(ForwardUnit const& unit) {
    Index const dim = spec_->shape.value_dim;
    if (unit.chosen)
      return state_.accumulator.pattern(0, rows(unit), state_column(unit, true) * dim, {{half() * dim, 2}, {1, dim}});
    if (state_.resident) return resident_accumulator(unit);
    return (*spilled_accumulator_)[flight(unit).accumulator].part(0, rows(unit), 0, dim);
  }
  Access spilled(ForwardUnit const& unit) const { return state_.in_hbm(unit.head, tile(unit)); }
  ForwardInFlight& flight(ForwardUnit const& unit) { return flights_[&unit]; }

  template <class Emit>
  void add_spans(Parts& parts, ForwardUnit const& unit, Emit emit) {
    for (KeySpan const& span : spans_of(unit)) parts.push_back([=] { emit(span); });
  }

  void fetch(ForwardUnit const& unit) {
    auto const place = queries_.fetch(unit.head, unit.tile, unit.chosen ? section(unit).step : -1);
    if (unit.first && !state_.resident) load_accumulator(unit);
    auto const load = [&](PairTiles& pairs) {
      return pairs.load(section(unit).step, unit.head, tile(unit), unit.keys, unit.column);
    };
    Index const bias = load(bias_), kept = load(kept_);
    flights_[&unit] = {.queries = place, .accumulator = accumulator_number_, .bias = bias, .kept = kept};
  }

  /// Loads the accumulator, unless units in the pipeline still hold it: then HBM is not up to date.
  void load_accumulator(ForwardUnit const& unit) {
    StateInFlight& state = states_[state_column(unit)];
    if (state.unstored++ == 0) {
      state.accumulator = spilled_accumulator_->make();
      builder_->emit(
          DmaCopy{spilled_accumulator_->newest().part(0, rows(unit), 0, spec_->shape.value_dim), spilled(unit)});
    }
    accumulator_number_ = state.accumulator;
  }

  void score(Parts& parts, ForwardUnit const& unit) {
    ForwardInFlight& now = flight(unit);
    now.scores = scores_.newest_number();
    now.score_maximum = score_maximum_.make();
    now.negated_maximum = negated_maximum_.make();
    for (bool early : early_sides(unit))
      now.maximum_before[early] = std::exchange(states_[state_column(unit, early)].negated_maximum,
                                                {now.negated_maximum, maximum_column(unit, early)});
    now.correction = correction_.make();
    add_spans(parts, unit, [this, &unit](KeySpan const& span) {
      score_span(unit, span);
      if (span.last) raise_maximum(unit);
    });
  }

  void score_span(ForwardUnit const& unit, KeySpan const& span) {
    Chunks const chunks{spec_->shape.head_dim};
    Index const begin = section(unit).place(unit.keys.begin) + span.begin;
    Access const from = raw_scores_.make_tile().part(0, rows(unit), 0, span.count);
    for (Index c = 0; c < chunks.count(); ++c)
      builder_->emit(MatMul{from, queries_.chunk(flight(unit).queries, c, rows(unit)),
                            section_tiles_.keys(section(unit), c, begin, span.count), c > 0});
    bias_.add_to_product(from, flight(unit).bias, unit.column + span.begin);
    Access const to = scores_[flight(unit).scores].part(0, rows(unit), unit.column + span.begin, span.count);
    Access source = from;
    if (factors_.capped) {
      builder_->emit(Activation{to, Function::tanh, from, 0.0f, factors_.inner});
      source = to;
    }
    if (bias_.add(to, source, factors_.before_bias, flight(unit).bias, unit.column, span.begin)) source = to;
    // The maximum over all spans is chained in VectorE and read out once.
    std::optional<Access> result;
    if (span.last) result = score_maximum(unit);
    bool const select = unit.select && span.begin >= unit.visible;
    auto const bound = [&](bool end) {
      return select ? bounds_->bound(end, section(unit).bounds_number, unit.piece, unit.tile)
                    : all_of_span_.part(0, rows(unit), end, 1);
    };
    builder_->emit(RangeSelect{to, source, bound(false), bound(true), span.command(), result,
                               select ? unit.keys.begin + span.begin : 0});
  }

  Access score_maximum(ForwardUnit const& unit) { return column_of(score_maximum_, flight(unit).score_maximum, unit); }

  void raise_maximum(ForwardUnit const& unit) {
    auto const emit = [&](Access const& to, Access const& a, Access const& b, Operator op) {
      builder_->emit(TensorTensor{to, a, b, op, Engine::gpsimd});
    };
    Access const of_unit = negated_maximum(unit, 0);
    emit(of_unit, score_maximum(unit), negated_multiplier_.part(0, rows(unit), 0, 1), Operator::multiply);
    auto const& before = flight(unit).maximum_before;
    if (unit.chosen)  // the other rows have no scores: what is added hides any
      emit(negated_maximum(unit, 1, 2), choices(unit, 2),
           negated_maximum_[flight(unit).negated_maximum].pattern(0, rows(unit), 0, {{0, 2}}), Operator::add);
    if (unit.chosen && before[0].number < 0 && before[1].number < 0) {
      Access const both = negated_maximum(unit, 1, 2);
      emit(both, both, state_of(state_.negated_maximum, unit), Operator::minimum);
    } else {
      for (bool early : early_sides(unit)) {
        Access const raised = negated_maximum(unit, maximum_column(unit, early));
        emit(raised, raised, maximum_before(unit, early), Operator::minimum);
      }
    }
    if (!unit.chosen) return;
    emit(negated_maximum(unit, 3, 2), negated_maximum(unit, 1, 2), choices(unit), Operator::multiply);
    emit(of_unit, negated_maximum(unit, 3), negated_maximum(unit, 4), Operator::add);
  }

  /// Negated maximum before this unit, perhaps of a unit in the pipeline, as the state is updated one slot later.
  Access maximum_before(ForwardUnit const& unit, bool early) {
    MaximumInFlight const before = flight(unit).maximum_before[early];
    return before.number < 0 ? state_.negated_maximum.part(0, rows(unit), state_column(unit, early), 1)
                             : negated_maximum_[before.number].part(0, rows(unit), before.column, 1);
  }

  void weigh(Parts& parts, ForwardUnit const& unit) {
    flight(unit).probabilities = probabilities_.newest_number();
    flight(unit).row_sum = row_sum_.make();
    add_spans(parts, unit, [this, &unit](KeySpan const& span) { weigh_span(unit, span); });
  }

  void weigh_span(ForwardUnit const& unit, KeySpan const& span) {
    ForwardInFlight const& now = flight(unit);
    Index const begin = unit.column + span.begin;
    Access const weights = probabilities_[now.probabilities].part(0, rows(unit), begin, span.count);
    // The sum over all spans is chained in ScalarE and read out once.
    std::optional<Access> result;
    if (span.last) result = column_of(row_sum_, now.row_sum, unit);
    builder_->emit(Activation{weights, Function::exp, scores_[now.scores].part(0, rows(unit), begin, span.count),
                              column_of(negated_maximum_, now.negated_maximum, unit), factors_.multiplier,
                              Operator::add, result, span.command()});
    if (kept_.given())  // the sum is that of all weights
      builder_->emit(
          TensorTensor{weights, weights, kept_.part(now.kept, weights, begin), Operator::multiply, Engine::gpsimd});
    if (span.last) save_maximum_and_sum(unit);
  }

  /// Separate from raise_maximum(): there, ScalarE would wait for a unit that has just begun.
  void save_maximum_and_sum(ForwardUnit const& unit) {
    ForwardInFlight const& now = flight(unit);
    for (bool early : early_sides(unit)) {
      builder_->emit(Activation{correction_[now.correction].part(0, rows(unit), unit.chosen && !early, 1),
                                Function::exp, maximum_before(unit, early),
                                negated_maximum(unit, maximum_column(unit, early)), -1.0f});
      MaximumInFlight& unsaved = states_[state_column(unit, early)].negated_maximum;
      if (unsaved.number == now.negated_maximum) unsaved = {};
    }
    builder_->emit(TensorCopy{state_of(state_.negated_maximum, unit),
                              negated_maximum(unit, unit.chosen, 1 + unit.chosen), Engine::gpsimd});
    Access const sum = state_of(state_.sum, unit);
    builder_->emit(TensorTensor{sum, sum, correction(unit), Operator::multiply, Engine::gpsimd});
    Access of_unit = column_of(row_sum_, now.row_sum, unit);
    if (unit.chosen) {
      Access const of_chosen = std::exchange(of_unit, row_sum_[now.row_sum].part(0, rows(unit), 1, 2));
      multiply_rows(*builder_, of_unit, choices(unit), of_chosen, Engine::gpsimd);
    }
    builder_->emit(TensorTensor{sum, sum, of_unit, Operator::add, Engine::gpsimd});
  }

  void transpose_stage(Parts& parts, ForwardSlot units) {
    if (units.empty()) return;
    Index const number = transposed_.make(), probabilities = flight(units.front()).probabilities;
    std::vector<ProbabilityBlock> blocks;
    Index whole = 0;
    for (ForwardUnit const& unit : units) {
      flight(unit).transposed = number;
      for (Index begin = 0; begin < unit.keys.size(); begin += tile_rows) {
        blocks.push_back({rows(unit), std::min(tile_rows, unit.keys.size() - begin), unit.column + begin});
        if (blocks.back().whole()) ++whole;
      }
    }
    Index const keys = std::ssize(blocks) * tile_rows;
    beside_permute_ = permuted_keys_ > 0;
    permuted_keys_ = std::max(Index{0}, permuted_keys_ - keys);
    bool const use_dma =
        bytes_of(spec_->type) == 2 && !draining_ && !beside_permute_ && keys >= ForwardTuning::dma_shortest;
    Index const by_tensor = use_dma ? whole - whole * dma_transposed_ / 16 : whole;
    // Products read the blocks in order, so the last whole blocks go by DMA, which takes longer.
    whole = 0;
    for (std::size_t first = 0, last = 0; first < blocks.size(); first = last) {
      bool const by_dma = blocks[first].whole() && whole >= by_tensor;
      auto const most = static_cast<std::size_t>(by_dma ? ForwardTuning::dma_blocks
                                                 : blocks[first].whole()
                                                     ? std::min(OperandLoads::transposed_blocks, by_tensor - whole)
                                                     : 1);
      for (last = first + 1; last < blocks.size() && last - first < most && blocks[last].continues(blocks[last - 1]);)
        ++last;
      ProbabilityBlock const block = blocks[first];
      auto const count = static_cast<Index>(last - first);
      if (block.whole()) whole += count;
      if (by_dma) {
        std::initializer_list<Axis> const columns{{1, 1}, {tile_rows, count}, {1, tile_rows}};
        builder_->emit(DmaTranspose{transposed_.newest().pattern(0, tile_rows, block.column, columns),
                                    probabilities_[probabilities].pattern(0, tile_rows, block.column, columns)});
      } else {
        parts.push_back([this, number, probabilities, block, count] {
          transpose_by_tensor(transposed_[number], probabilities_[probabilities], block, count);
        });
      }
    }
  }

  void transpose_by_tensor(TileHandle const& to, TileHandle const& from, ProbabilityBlock const& block, Index count) {
    loads_.transpose(
        block.rows, block.keys, count,
        [&](Index i) { return from.part(0, block.rows, block.column + i * tile_rows, block.keys); },
        block.whole() ? to.part(0, block.keys, block.column, count * tile_rows)
                      : to.pattern(0, block.keys, block.column, {{tile_rows, count}, {1, block.rows}}),
        draining_ || ++transposed_count_ %
                             (beside_permute_ ? ForwardTuning::permute_vector_share : ForwardTuning::vector_share) ==
                         0
            ? Engine::vector
            : Engine::scalar);
  }

  void sum(Parts& parts, ForwardSlot units) {
    std::set<Index> scaled;
    for (ForwardUnit const& unit : units) {
      // Scale early, lest GpSimdE wait for other stages, unless an earlier unit of this slot has the same rows.
      bool early = true;
      for (bool side : early_sides(unit)) early = scaled.insert(state_column(unit, side)).second && early;
      // VectorE corrects and adds in one instruction where GpSimdE, which corrects other accumulators, is the busiest.
      bool const together = unit.chosen ? draining_ || unit.keys.size() <= vector_keys : !early && section(unit).chosen;
      if (early && !together) scale_accumulator(unit);
      Index const blocks = detail::ceil_divide(unit.keys.size(), tile_rows),
                  per_part = ForwardTuning::span_keys / tile_rows;
      for (Index begin = 0; begin < blocks; begin += per_part)
        parts.push_back([=, this, &unit, end = std::min(blocks, begin + per_part)] {
          if (begin == 0) weighted_.make();
          if (begin == 0 && !early && !together) scale_accumulator(unit);
          Access const product = weighted_.newest().part(0, rows(unit), 0, spec_->shape.value_dim);
          sum_blocks(unit, begin, end, product);
          if (end == blocks) add_product(unit, product, together);
        });
    }
  }

  void scale_accumulator(ForwardUnit const& unit) {
    Access const total = accumulator(unit);
    Engine const engine = draining_ ? Engine::vector : Engine::gpsimd;
    if (!unit.chosen) return multiply_rows(*builder_, total, total, correction(unit), engine);
    Access const repeated = correction_[flight(unit).correction].pattern(  // of early and of late rows
        0, rows(unit), 0, {{1, 2}, {0, spec_->shape.value_dim}});
    builder_->emit(TensorTensor{total, total, repeated, Operator::multiply, engine});
  }

  void sum_blocks(ForwardUnit const& unit, Index begin, Index end, Access const& product) {
    Index const first = section(unit).place(unit.keys.begin) / tile_rows;
    for (Index block = begin; block < end; ++block) {
      Index const keys = std::min(tile_rows, unit.keys.size() - block * tile_rows);
      builder_->emit(MatMul{
          product, transposed_[flight(unit).transposed].part(0, keys, unit.column + block * tile_rows, rows(unit)),
          section_tiles_.values(section(unit), first + block, keys), block > 0});
    }
  }

  /// corrects: multiplies the accumulator by the correction first.
  void add_product(ForwardUnit const& unit, Access const& product, bool corrects) {
    auto const correct_and_add = [&](Access const& total, Index column, Access const& values) {
      builder_->emit(ScalarTensorTensor{total, total, Operator::multiply,
                                        correction_[flight(unit).correction].part(0, rows(unit), column, 1),
                                        Operator::add, values});
    };
    Access const total = accumulator(unit);
    if (unit.chosen) {
      Index const dim = product.elements();
      TileHandle const both = chosen_values_.make_tile();
      auto const chosen = [&](bool late) { return both.part(0, rows(unit), late * dim, dim); };
      for (bool late : {false, true})
        builder_->emit(Activation{chosen(late), Function::copy, product, 0.0f, choices(unit, late, 1)});
      if (!corrects)
        builder_->emit(TensorTensor{total, total, both.part(0, rows(unit), 0, 2 * dim), Operator::add, Engine::gpsimd});
      for (bool late : {false, true})
        if (corrects) correct_and_add(resident_accumulator(unit, !late), late, chosen(late));
    } else if (corrects) {
      correct_and_add(total, 0, product);
    } else {
      builder_->emit(TensorTensor{total, total, product, Operator::add});
    }
    if (unit.last && !state_.resident) {
      builder_->emit(DmaCopy{spilled(unit), total});
      --states_[state_column(unit)].unstored;
    }
    flights_.erase(&unit);
  }

  Index dma_transposed_;
  PairTiles bias_, kept_;
  SectionTiles section_tiles_;
  RotatingTile raw_scores_, scores_, score_maximum_, negated_maximum_, correction_, probabilities_, row_sum_,
      transposed_, weighted_, chosen_values_;
  std::optional<RotatingTile> spilled_accumulator_;
  TileHandle all_of_span_, negated_multiplier_;
  std::map<Index, StateInFlight> states_;  // by state column
  bool draining_ = false, beside_permute_ = false;
  Index transposed_count_ = 0, accumulator_number_ = -1, permuted_keys_ = 0;
  std::map<ForwardUnit const*, ForwardInFlight> flights_;
};

}  // namespace annulus::nki
