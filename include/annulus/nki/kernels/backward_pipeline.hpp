#pragma once
// Backward pass of one query tile over one tile of keys, in four stages that run concurrently in a pipeline:
//   weights    S = Q K^T, P = min(exp(S - lse), 2)
//   slopes     dP = dO V^T, dS = P (dP - delta)
//   sums       dV += P^T dO and dK += dS^T Q in PSUM; dS^T
//   queries    dQ += dS K in SBUF
// (Dao, arXiv 2307.08691, section 3.1.2.) No quadratic intermediate is stored. S and dP are double-buffered in four
// banks of PSUM; dK, dV, dQ and dS^T take the others.

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/backward_operands.hpp"
#include "annulus/nki/kernels/backward_work.hpp"
#include "annulus/nki/kernels/pair_tiles.hpp"

namespace annulus::nki {

/// Emits the loads, pipeline stages and gradient results of backward units.
class BackwardPipeline {
 public:
  Index const section_tiles, key_rows;  ///< most row tiles of a section, and keys of a key tile

  BackwardPipeline(Builder& builder, KernelSpec const& spec, RingMask const& mask, KernelInputs const& inputs,
                   TensorHandle dbias, Index most_tiles, Index most_keys, int stores)
      : section_tiles(most_tiles),
        key_rows(most_keys),
        builder_(&builder),
        spec_(&spec),
        mask_(&mask),
        loads_(builder, spec, 1),
        factors_(logit_factors(spec)),
        bias_(builder, spec, "bias_tile", inputs.bias, std::move(dbias), most_keys),
        kept_(builder, spec, "kept_tile", inputs.kept, {}, most_keys) {
    Index const dim = spec.shape.head_dim, value_dim = spec.shape.value_dim,
                blocks = detail::ceil_divide(key_rows, tile_rows);
    auto const operand = [&](std::string name, Index elements, Index partitions = tile_rows) {
      return RotatingTile(builder, std::move(name), elements, spec.type, 2, Memory::sbuf, partitions);
    };
    if (adds_bias_to_product(spec)) bias_.use_tensor_engine(1 / factors_.multiplier);
    auto const both = [&](char const* name, Index width, Index rows, bool by_token) {
      return OperandTiles(builder, loads_, spec, name, width, rows, by_token);
    };
    auto const sums = [&](char const* name, Index elements, int rotation = 2, Memory memory = Memory::sbuf) {
      return RotatingTile(builder, name, elements, ElementType::float32, rotation, memory);
    };
    q_ = both("q", dim, section_tiles * tile_rows, spec.queries_by_token);
    dout_ = both("dout", value_dim, section_tiles * tile_rows, true);
    k_ = both("k", dim, key_rows, spec.keys_by_token);
    v_ = both("v", value_dim, key_rows, true);
    dq_sums_ = sums("dq_sums", section_tiles * dim);
    raw_scores_ = sums("raw_scores", key_rows, 2, Memory::psum);
    raw_slopes_ = sums("raw_slopes", key_rows, 2, Memory::psum);
    dq_product_ = sums("dq_product", dim, 1, Memory::psum);
    dk_sums_ = sums("dk_sums", blocks * dim, 1, Memory::psum);
    dv_sums_ = sums("dv_sums", blocks * value_dim, 1, Memory::psum);
    scores_ = sums("scores", key_rows);
    if (factors_.capped) {
      tangents_ = sums("tangents", key_rows);
      cap_slopes_ = sums("cap_slopes", key_rows);
    }
    probabilities_ = operand("probabilities", key_rows);
    slopes_ = operand("slopes", key_rows);
    if (kept_.given()) {
      kept_weights_ = operand("kept_weights", key_rows);
      kept_slopes_ = sums("kept_slopes", key_rows);
    }
    if (bias_.has_gradient()) logit_slopes_ = sums("logit_slopes", key_rows);
    transposed_ = operand("transposed_slopes", blocks * tile_rows);
    dk_scaled_ = sums("dk_scaled", blocks * dim, stores);
    dv_copied_ = sums("dv_copied", blocks * value_dim, stores);
    dq_scaled_ = sums("dq_scaled", dim, stores + 1);
  }

  /// Begins a round; zeroes its gradient of the bias, unless its units are known to store all of it: not in a ring,
  /// whose steps store at the place of a rank that the program does not know.
  void begin_round(Round const& round) {
    for (PairTiles* pairs : {&bias_, &kept_}) pairs->begin_round(round);
    if (mask_->form() != BoundsForm::none || builder_->program().ranks > 1) bias_.clear_gradient(round);
  }

  /// Buffers of which each unit makes a tile.
  static constexpr char const* tiles_of_units = "probabilities, slopes, transposed_slopes";
  Index units_made() const { return probabilities_.made(); }  ///< so far

  void begin_step(int step, std::vector<RowTile> const& tiles, BoundsTiles const& bounds, Index bounds_number,
                  RowStatistics const& statistics) {
    step_ = step;
    tiles_ = &tiles;
    bounds_ = &bounds;
    bounds_number_ = bounds_number;
    statistics_ = &statistics;
  }

  /// Starts to load the operands of the pairs of a unit that slot() will weigh soon.
  void load_pairs(BackwardUnit const& unit, BackwardStep const& step) {
    auto const load = [&](PairTiles& pairs) {
      pairs.make();
      return pairs.load(step_, step.sections[unit.section].head, tile(unit.tile), step.key_tiles[unit.key_tile].rows,
                        0);
    };
    flights_[&unit] = {.bias = load(bias_), .kept = load(kept_)};
  }

  void begin_section(QuerySection& section) {
    for (OperandTiles* operand : {&q_, &dout_}) section.operands = operand->make();
    section.sums = dq_sums_.make();
  }

  /// Starts to load q and dout of a row tile of a section, in the layout that HBM has.
  void load_rows(QuerySection const& section, RowTile const& rows, Index number, HeadRows const& queries,
                 HeadRows const& dout) {
    Layout const first{section.operands, number, number - section.first_tile};
    load(row_layouts_, q_, queries, rows.begin, rows.count, first, factors_.query_factor);
    load(row_layouts_, dout_, dout, rows.begin, rows.count, first);
  }

  /// Starts to load k and v of a key tile, in the layouts that HBM has. They are complete after complete_keys().
  void load_keys(KeyTile& keys, HeadRows const& k, HeadRows const& v) {
    keys.operands = k_.make();
    v_.make();
    load(key_layouts_, k_, k, keys.rows.begin, keys.rows.size(), {.number = keys.operands});
    load(key_layouts_, v_, v, keys.rows.begin, keys.rows.size(), {.number = keys.operands});
  }

  /// Lets TensorE begin to transpose the operands loaded so far to the layout that HBM does not have: one block in each
  /// slot, so that the pipeline keeps running.
  void begin_layouts() {
    for (LayoutQueue* layouts : {&key_layouts_, &row_layouts_}) layouts->ready = layouts->waiting.size();
  }
  /// Completes both layouts of a key tile, as far as slots have not.
  void complete_keys(KeyTile const& keys) { key_layouts_.complete(keys.operands, 0); }
  /// The same for the rows of a section up to and including a row tile.
  void complete_rows(QuerySection const& section, Index tile) { row_layouts_.complete(section.operands, tile); }

  /// One slot of the pipeline: the units that are in its stages, in the order of the stages; each may be null.
  void slot(BackwardUnit const* weighed, BackwardUnit const* sloped, BackwardUnit const* summed,
            BackwardUnit const* finished, BackwardStep& step) {
    auto const call = [&](auto stage, BackwardUnit const* unit) {
      if (unit) (this->*stage)(*unit, step.sections[unit->section], step.key_tiles[unit->key_tile]);
    };
    call(&BackwardPipeline::weigh, weighed);
    call(&BackwardPipeline::slope, sloped);
    if (LayoutQueue& layouts = key_layouts_.ready > 0 ? key_layouts_ : row_layouts_; layouts.ready > 0)
      layouts.make_next();
    call(&BackwardPipeline::sum, summed);
    call(&BackwardPipeline::add_to_queries, finished);
  }

  /// dk and dv of a key tile, scaled, in SBUF; after its last unit has been summed. With halves that are chosen the
  /// part that is of early, or of late, keys, which is zero if these are not chosen.
  std::pair<TileHandle, TileHandle> key_gradients(KeyTile const& keys, bool late = false) const {
    return {dk_scaled_[keys.gradients + late], dv_copied_[keys.gradients + late]};
  }

  /// Copies the dq of a row tile of a section, scaled, to another SBUF tile; zeros unless a unit touched it. In a
  /// chosen section the part of early, or of late, rows.
  TileHandle query_gradient(QuerySection const& section, Index number, bool touched, bool late = false) {
    TileHandle const scaled = dq_scaled_.make_tile();
    Index const dim = spec_->shape.head_dim, rows = tile(number).count;
    Access const to = scaled.part(0, rows, 0, dim);
    if (!touched)
      builder_->emit(Memset{to, 0.0f, Engine::gpsimd});
    else
      builder_->emit(Activation{to, Function::copy,
                                dq_sums_[section.sums].part(0, rows, (number - section.first_tile) * dim, dim), 0.0f,
                                factor(section, late, dq_factor, to)});
    return scaled;
  }

  /// Factors of dv, dk and dq, which BoundsTiles takes.
  std::vector<float> gradient_factors() const { return {1, product_slope(), product_slope() * factors_.query_factor}; }

 private:
  static constexpr Index dv_factor = 0, dk_factor = 1, dq_factor = 2;  ///< places in gradient_factors()

  /// The layout of a block of rows that TensorE has yet to make.
  struct Layout {
    Index number = 0;  ///< of the tile of the operand
    Index tile = 0;    ///< row tile
    Index block = 0;   ///< of 128 rows in the tile of the operand
    std::function<void()> make{};
  };

  /// Layouts in the order in which they are needed.
  struct LayoutQueue {
    std::deque<Layout> waiting;
    std::size_t ready = 0;  ///< of these, the first ones whose data should have arrived

    void make_next() {
      waiting.front().make();
      waiting.pop_front();
      ready -= ready > 0;
    }
    void complete(Index number, Index tile) {
      while (!waiting.empty() && std::pair{waiting.front().number, waiting.front().tile} <= std::pair{number, tile})
        make_next();
    }
  };

  /// Loads `count` rows of an operand, and queues their other layouts; `layout`: that of the first block.
  static void load(LayoutQueue& layouts, OperandTiles& of, HeadRows const& source, Affine const& begin, Index count,
                   Layout layout, float factor = 1) {
    of.load(source, begin, count, layout.number, layout.block);
    for (; count > 0; count -= tile_rows, ++layout.block) {
      Index const rows = std::min(tile_rows, count), number = layout.number, block = layout.block;
      layout.make = [=, &of] { of.other_layout(rows, number, block, factor); };
      layouts.waiting.push_back(layout);
    }
  }

  RowTile const& tile(Index number) const { return nth(*tiles_, number); }

  /// d logit / d (q . k), without the derivative of the soft cap.
  float product_slope() const { return factors_.multiplier * factors_.before_bias * factors_.inner; }

  /// The factor of a gradient by place, and in a chosen section the choice of early, or of late, rows.
  Scalar factor(QuerySection const& section, bool late, Index place, Access const& like) const {
    if (section.chosen) return bounds_->choice(late, bounds_number_, like, place);
    return gradient_factors()[static_cast<std::size_t>(place)];
  }

  /// Tiles of a unit in the pipeline, by number.
  struct InFlight {
    Index weights = -1, tangents = -1, slopes = -1, transposed = -1, bias = -1, kept = -1, kept_weights = -1;
  };

  Access unit_part(TileHandle const& tile_of_unit, BackwardUnit const& unit, KeyTile const& keys) const {
    return tile_of_unit.part(0, tile(unit.tile).count, 0, keys.rows.size());
  }

  /// Products of the query rows with the keys, summed over the features.
  Access product(RotatingTile& sums, OperandTiles const& queries, OperandTiles const& of_keys, Index dim,
                 BackwardUnit const& unit, QuerySection const& section, KeyTile const& keys) {
    Access const to = unit_part(sums.make_tile(), unit, keys);
    Chunks const chunks{dim};
    Index const place = unit.tile - section.first_tile;
    for (Index c = 0; c < chunks.count(); ++c)
      builder_->emit(MatMul{to,
                            queries.features[section.operands].part(
                                0, chunks.size(c), (c * section_tiles + place) * tile_rows, to.partitions()),
                            of_keys.features[keys.operands].part(0, chunks.size(c), c * key_rows, to.elements()),
                            c > 0});
    return to;
  }

  Access number_of(RotatingTile const& numbers, BackwardUnit const& unit, QuerySection const& section) const {
    return numbers[section.numbers].part(0, tile(unit.tile).count, unit.tile, 1);
  }

  void weigh(BackwardUnit const& unit, QuerySection const& section, KeyTile& keys) {
    InFlight& now = flights_[&unit];
    Access source = product(raw_scores_, q_, k_, spec_->shape.head_dim, unit, section, keys);
    bias_.add_to_product(source, now.bias, 0);
    if (factors_.capped) {
      now.tangents = tangents_.make();
      Access const tangent = unit_part(tangents_.newest(), unit, keys);
      builder_->emit(Activation{tangent, Function::tanh, source, 0.0f, factors_.inner});
      source = tangent;
    }
    Access selected;
    if (unit.select || bias_.adds()) selected = unit_part(scores_.make_tile(), unit, keys);
    if (bias_.add(selected, source, factors_.before_bias, now.bias, 0)) source = selected;
    if (unit.select) {
      builder_->emit(RangeSelect{.dst = selected,
                                 .on_true_tile = source,
                                 .bound0 = bounds_->bound(false, bounds_number_, unit.piece, unit.tile),
                                 .bound1 = bounds_->bound(true, bounds_number_, unit.piece, unit.tile),
                                 .range_start = keys.rows.begin});
      source = selected;
    }
    now.weights = probabilities_.make();
    Access const weights = unit_part(probabilities_.newest(), unit, keys);
    builder_->emit(Activation{weights, Function::exp, source, number_of(statistics_->negated_lse, unit, section),
                              factors_.multiplier});
  }

  void slope(BackwardUnit const& unit, QuerySection const& section, KeyTile& keys) {
    InFlight& now = flights_[&unit];
    Access raw = product(raw_slopes_, dout_, v_, spec_->shape.value_dim, unit, section, keys);
    // A weight exceeds 1 by rounding only, unless lse is of other scores: then it may be infinite, and 0 times it NaN.
    Access const weights = unit_part(probabilities_[now.weights], unit, keys);
    builder_->emit(TensorScalar{.dst = weights, .data = weights, .op0 = Operator::minimum, .operand0 = 2.0f});
    now.kept_weights = now.weights;
    if (kept_.given()) {
      now.kept_weights = kept_weights_.make();
      Access const kept = kept_.part(now.kept, raw, 0), slopes = unit_part(kept_slopes_.make_tile(), unit, keys);
      builder_->emit(TensorTensor{unit_part(kept_weights_.newest(), unit, keys), weights, kept, Operator::multiply,
                                  Engine::gpsimd});
      builder_->emit(ScalarTensorTensor{slopes, raw, Operator::multiply, static_cast<float>(spec_->keep_scale),
                                        Operator::multiply, kept});
      raw = slopes;
    }
    now.slopes = slopes_.make();
    Access const slope = unit_part(slopes_.newest(), unit, keys);
    TileHandle const of_logits = bias_.has_gradient() ? logit_slopes_.make_tile() : slopes_.newest();
    Access const logit_slope = unit_part(of_logits, unit, keys);
    builder_->emit(ScalarTensorTensor{logit_slope, raw, Operator::subtract,
                                      number_of(statistics_->delta, unit, section), Operator::multiply, weights});
    if (bias_.has_gradient()) {
      // The keys of another piece of the mask are another unit's.
      RowRange const own = detail::intersection(keys.rows, mask_->pieces()[unit.piece]);
      bias_.store_gradient(step_, section.head, tile(unit.tile), own, of_logits, own.begin - keys.rows.begin);
      builder_->emit(TensorCopy{slope, logit_slope, Engine::gpsimd});
    }
    if (factors_.capped) {
      Access const of_cap = unit_part(cap_slopes_.make_tile(), unit, keys),
                   tangent = unit_part(tangents_[now.tangents], unit, keys);
      builder_->emit(TensorTensor{of_cap, tangent, tangent, Operator::multiply, Engine::gpsimd});
      builder_->emit(TensorScalar{of_cap, of_cap, Operator::multiply, -1.0f, Operator::add, 1.0f, Engine::scalar});
      builder_->emit(TensorTensor{slope, slope, of_cap, Operator::multiply});
    }
  }

  void sum(BackwardUnit const& unit, QuerySection const& section, KeyTile& keys) {
    InFlight& now = flights_[&unit];
    Index const rows = tile(unit.tile).count, count = keys.rows.size();
    bool const drops = kept_.given();
    TileHandle const probabilities = (drops ? kept_weights_ : probabilities_)[now.kept_weights],
                     slopes = slopes_[now.slopes];
    if (unit.first) {
      keys.sums = dk_sums_.make();
      dv_sums_.make();
    }
    for (int late = 0; unit.last && late <= section.chosen; ++late) {
      keys.gradients = dk_scaled_.make() - late;
      dv_copied_.make();
    }
    add_products(unit, section, keys, {dv_sums_, probabilities, dout_, spec_->shape.value_dim, dv_copied_},
                 [&](bool late, Access const& like) {
                   return drops ? static_cast<float>(spec_->keep_scale) : factor(section, late, dv_factor, like);
                 });
    add_products(unit, section, keys, {dk_sums_, slopes, q_, spec_->shape.head_dim, dk_scaled_},
                 [&](bool late, Access const& like) { return factor(section, late, dk_factor, like); });

    now.transposed = transposed_.make();
    TileHandle const transposed = transposed_.newest();
    for_row_blocks(count, [&](Index first, Index size, Index blocks) {
      transpose_slopes(slopes, rows, first, size, blocks, transposed);
    });
  }

  /// Sums over queries that become a gradient of the keys: weights^T * queries, `width` columns.
  struct KeySums {
    RotatingTile const& sums;
    TileHandle const& weights;
    OperandTiles const& queries;
    Index width;
    RotatingTile const& scaled;  ///< the sums times a factor, once they are complete
  };

  /// Adds the products of a unit to the sums; after the last unit scales them by factor_of(late, like an access).
  template <class FactorOf>
  void add_products(BackwardUnit const& unit, QuerySection const& section, KeyTile const& keys, KeySums const& of,
                    FactorOf&& factor_of) {
    Index const rows = tile(unit.tile).count, count = keys.rows.size(), place = unit.tile - section.first_tile;
    for (Index begin = 0; begin < count; begin += tile_rows) {
      Index const block = begin / tile_rows, size = std::min(tile_rows, count - begin);
      Access const total = of.sums[keys.sums].part(0, size, block * of.width, of.width);
      builder_->emit(MatMul{total, of.weights.part(0, rows, begin, size),
                            of.queries.tokens[section.operands].part(0, rows, place * of.width, of.width),
                            !unit.first});
    }
    if (!unit.last) return;
    for (int late = 0; late <= section.chosen; ++late)
      for_row_blocks(count, [&](Index first, Index size, Index blocks) {
        Index const begin = first * of.width, elements = blocks * of.width;
        Access const scaled = of.scaled[keys.gradients + late].part(0, size, begin, elements),
                     sums = of.sums[keys.sums].part(0, size, begin, elements);
        builder_->emit(Activation{scaled, Function::copy, sums, 0.0f, factor_of(late, scaled)});
      });
  }

  /// Transposes `blocks` blocks of slopes [rows][size], the first of which is block `first`.
  void transpose_slopes(TileHandle const& slopes, Index rows, Index first, Index size, Index blocks,
                        TileHandle const& transposed) {
    loads_.transpose(
        rows, size, blocks, [&](Index block) { return slopes.part(0, rows, (first + block) * tile_rows, size); },
        transposed.pattern(0, size, first * tile_rows, {{tile_rows, blocks}, {1, rows}}), Engine::scalar);
  }

  void add_to_queries(BackwardUnit const& unit, QuerySection const& section, KeyTile& keys) {
    Index const rows = tile(unit.tile).count, count = keys.rows.size(), dim = spec_->shape.head_dim;
    TileHandle const transposed = transposed_[flights_.extract(&unit).mapped().transposed];
    Access const step = dq_product_.make_tile().part(0, rows, 0, dim),
                 total = dq_sums_[section.sums].part(0, rows, (unit.tile - section.first_tile) * dim, dim);
    for (Index begin = 0; begin < count; begin += tile_rows) {
      Index const size = std::min(tile_rows, count - begin);
      builder_->emit(MatMul{step, transposed.part(0, size, begin, rows),
                            k_.tokens[keys.operands].part(0, size, begin / tile_rows * dim, dim), begin > 0});
    }
    if (unit.first_of_tile)
      builder_->emit(TensorCopy{total, step});
    else
      builder_->emit(TensorTensor{total, total, step, Operator::add});
  }

  Builder* builder_;
  KernelSpec const* spec_;
  RingMask const* mask_;
  OperandLoads loads_;
  LogitFactors factors_;
  PairTiles bias_, kept_;
  int step_ = 0;
  OperandTiles q_, dout_, k_, v_;
  RotatingTile dq_sums_, raw_scores_, raw_slopes_, dq_product_, dk_sums_, dv_sums_, scores_, tangents_, cap_slopes_,
      probabilities_, slopes_, logit_slopes_, kept_weights_, kept_slopes_, transposed_, dk_scaled_, dv_copied_,
      dq_scaled_;
  std::vector<RowTile> const* tiles_ = nullptr;
  BoundsTiles const* bounds_ = nullptr;
  Index bounds_number_ = -1;
  RowStatistics const* statistics_ = nullptr;
  LayoutQueue key_layouts_, row_layouts_;
  std::map<BackwardUnit const*, InFlight> flights_;
};

}  // namespace annulus::nki
