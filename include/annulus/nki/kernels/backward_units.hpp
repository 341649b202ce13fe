#pragma once
// Backward pass of one query tile over one tile of keys, in two stages that run concurrently in a pipeline:
//   slopes      S = Q K^T, P = exp(S - lse), dP = dO V^T, dS = P (dP - delta)
//   gradients   dV += P^T dO and dK += dS^T Q in PSUM, dQ += dS K in SBUF
// (Dao, arXiv 2307.08691, section 3.1.2.) No quadratic intermediate is stored.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/backward_rows.hpp"
#include "annulus/nki/kernels/operand_loads.hpp"

namespace annulus::nki {

/// Query rows that are in SBUF together, by feature and by token, with the sums of their gradients.
struct QuerySection {
  Index head = 0;
  Index first_tile = 0, last_tile = 0;
  Index operands = -1, sums = -1, numbers = -1;  ///< tiles by number
};

/// Keys whose gradients are summed in PSUM over the query tiles of a section.
struct KeyTile {
  RowRange rows;
  Index operands = -1, sums = -1;
};

/// Unit of work: one query tile with one key tile and one key piece of the mask.
struct BackwardUnit {
  std::size_t section = 0, key_tile = 0;  ///< indices into the lists of the step
  Index tile = 0;                         ///< row tile
  std::size_t piece = 0;
  bool select = false;
  bool first = false, last = false;  ///< unit of its key tile in its section
};

/// Emits the loads, pipeline stages and gradient results of backward units.
class BackwardUnits {
 public:
  Index const section_tiles, key_rows;  ///< most row tiles of a section, and keys of a key tile

  BackwardUnits(Builder& builder, KernelSpec const& spec, Index most_tiles, Index most_keys)
      : section_tiles(most_tiles),
        key_rows(most_keys),
        builder_(&builder),
        spec_(&spec),
        loads_(builder, spec),
        factors_(logit_factors(spec)) {
    Index const dim = spec.shape.head_dim, value_dim = spec.shape.value_dim,
                blocks = annulus::detail::ceil_divide(key_rows, tile_rows);
    auto const operand = [&](std::string name, Index elements, Index partitions = tile_rows) {
      return RotatingTile(builder, std::move(name), elements, spec.type, 2, Memory::sbuf, partitions);
    };
    auto const features = [&](std::string const& name, Chunks const& chunks, Index rows) {
      return operand(name + "_features", chunks.count() * rows, chunks.largest());
    };
    auto const both = [&](std::string const& name, Index width, Index rows) {
      return OperandTiles{features(name, {width}, rows), operand(name + "_tokens", rows / tile_rows * width)};
    };
    auto const sums = [&](char const* name, Index elements, int rotation = 2, Memory memory = Memory::sbuf) {
      return RotatingTile(builder, name, elements, ElementType::float32, rotation, memory);
    };
    q_ = both("q", dim, section_tiles * tile_rows);
    dout_ = both("dout", value_dim, section_tiles * tile_rows);
    k_ = both("k", dim, key_rows);
    v_features_ = features("v", {value_dim}, key_rows);
    dq_sums_ = sums("dq_sums", section_tiles * dim);
    raw_scores_ = sums("raw_scores", key_rows, 2, Memory::psum);
    raw_slopes_ = sums("raw_slopes", key_rows, 1, Memory::psum);
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
    transposed_ = operand("transposed_slopes", blocks * tile_rows);
    dk_scaled_ = sums("dk_scaled", blocks * dim);
    dv_copied_ = sums("dv_copied", blocks * value_dim);
    dq_scaled_ = sums("dq_scaled", dim, 3);
  }

  /// Sets what later units refer to.
  void begin_step(std::vector<RowTile> const& tiles, BoundsTiles const& bounds, Index bounds_number,
                  RowStatistics const& statistics) {
    tiles_ = &tiles;
    bounds_ = &bounds;
    bounds_number_ = bounds_number;
    statistics_ = &statistics;
  }

  /// Loads q and dout of a section in both layouts, and zeroes its sums of dq.
  void load_section(QuerySection& section, HeadRows const& queries, HeadRows const& dout) {
    for (OperandTiles* operand : {&q_, &dout_}) section.operands = operand->make();
    section.sums = dq_sums_.make();
    builder_->emit(Memset{dq_sums_.newest().whole(), 0.0f, Engine::gpsimd});
    for (Index i = section.first_tile; i < section.last_tile; ++i) {
      RowTile const& rows = tile(i);
      both_forms(queries, rows.begin, rows.count, q_, i - section.first_tile, factors_.query_factor);
      both_forms(dout, rows.begin, rows.count, dout_, i - section.first_tile, 1);
    }
  }

  /// Loads k of a key tile in both layouts, and v by feature.
  void load_keys(KeyTile& keys, HeadRows const& k, HeadRows const& v) {
    keys.operands = k_.make();
    v_features_.make();
    Index const count = keys.rows.size();
    for (Index begin = 0; begin < count; begin += tile_rows)
      both_forms(k, keys.rows.begin + begin, std::min(tile_rows, count - begin), k_, begin / tile_rows, 1);
    loads_.by_feature(v, keys.rows.begin, count, v_features_.newest(), key_rows);
  }

  /// One slot of the pipeline: the first stage of `sloped` and the second of `summed`; either may be null.
  void slot(BackwardUnit const* sloped, BackwardUnit const* summed, std::vector<QuerySection> const& sections,
            std::vector<KeyTile>& keys) {
    if (sloped) slope(*sloped, sections[sloped->section], keys[sloped->key_tile]);
    if (summed) sum(*summed, sections[summed->section], keys[summed->key_tile]);
  }

  /// Copies the gradients of a key tile, scaled, to SBUF; call after its last unit. Returns dk and dv.
  std::pair<TileHandle, TileHandle> key_gradients(KeyTile const& keys) {
    TileHandle const dk = dk_scaled_.make_tile(), dv = dv_copied_.make_tile();
    auto const copy = [&](TileHandle const& to, RotatingTile const& sums, Index block, Index dim, float factor) {
      Index const rows = std::min(tile_rows, keys.rows.size() - block * tile_rows);
      builder_->emit(Activation{to.part(0, rows, block * dim, dim), Function::copy,
                                sums[keys.sums].part(0, rows, block * dim, dim), 0.0f, factor});
    };
    for (Index block = 0; block * tile_rows < keys.rows.size(); ++block) {
      copy(dk, dk_sums_, block, spec_->shape.head_dim, product_slope());
      copy(dv, dv_sums_, block, spec_->shape.value_dim, 1);
    }
    return {dk, dv};
  }

  /// Copies the dq of a row tile of a section, scaled, to another SBUF tile.
  TileHandle query_gradient(QuerySection const& section, Index number) {
    TileHandle const scaled = dq_scaled_.make_tile();
    Index const dim = spec_->shape.head_dim, rows = tile(number).count;
    builder_->emit(TensorScalar{.dst = scaled.part(0, rows, 0, dim),
                                .data = dq_sums_[section.sums].part(0, rows, (number - section.first_tile) * dim, dim),
                                .operand0 = product_slope() * factors_.query_factor});
    return scaled;
  }

 private:
  /// The two layouts of an operand, by feature and by token.
  struct OperandTiles {
    RotatingTile features, tokens;

    /// Allocates both tiles and returns their number.
    Index make() {
      features.make();
      return tokens.make();
    }
  };

  RowTile const& tile(Index number) const { return (*tiles_)[static_cast<std::size_t>(number)]; }

  /// d logit / d (q . k), without the derivative of the soft cap.
  float product_slope() const { return factors_.multiplier * factors_.inner; }

  /// Loads rows in the layout that HBM has (by feature or by token) and transposes them to the other with TensorE.
  void both_forms(HeadRows const& source, Affine const& begin, Index rows, OperandTiles const& to, Index block,
                  float factor) {
    Chunks const chunks{source.dim};
    TileHandle const features = to.features.newest(), tokens = to.tokens.newest();
    Index const pitch = features.elements / chunks.count();
    auto const feature = [&](Index c) { return features.part(0, chunks.size(c), c * pitch + block * tile_rows, rows); };
    auto const token = [&](Index c) {
      return tokens.part(0, rows, block * source.dim + c * tile_rows, chunks.size(c));
    };
    auto const scale = [&](Access const& part) {
      if (factor != 1) builder_->emit(TensorScalar{.dst = part, .data = part, .operand0 = factor});
    };
    if (source.by_token) {
      loads_.by_token(source, begin, rows, tokens, block);
      scale(tokens.part(0, rows, block * source.dim, source.dim));
      for (Index c = 0; c < chunks.count(); ++c)
        loads_.transpose(
            rows, chunks.size(c), 1, [&](Index) { return token(c); }, feature(c), Engine::scalar);
    } else {
      loads_.by_feature(source, begin, rows, features, pitch, block * tile_rows);
      for (Index c = 0; c < chunks.count(); ++c) {
        scale(feature(c));
        loads_.transpose(
            chunks.size(c), rows, 1, [&](Index) { return feature(c); }, token(c), Engine::scalar);
      }
    }
  }

  void slope(BackwardUnit const& unit, QuerySection const& section, KeyTile const& keys) {
    Index const rows = tile(unit.tile).count, count = keys.rows.size(), place = unit.tile - section.first_tile;
    auto const part = [&](TileHandle const& tile) { return tile.part(0, rows, 0, count); };
    // Products of the query rows with the keys, summed over the features.
    auto const product = [&](RotatingTile& sums, Chunks const& chunks, RotatingTile const& queries,
                             RotatingTile const& of_keys) {
      Access const to = part(sums.make_tile());
      for (Index c = 0; c < chunks.count(); ++c)
        builder_->emit(
            MatMul{to, queries[section.operands].part(0, chunks.size(c), (c * section_tiles + place) * tile_rows, rows),
                   of_keys[keys.operands].part(0, chunks.size(c), c * key_rows, count), c > 0});
      return to;
    };
    Access source = product(raw_scores_, {spec_->shape.head_dim}, q_.features, k_.features), tangent;
    Access const raw_slopes = product(raw_slopes_, {spec_->shape.value_dim}, dout_.features, v_features_);
    if (factors_.capped) {
      tangent = part(tangents_.make_tile());
      builder_->emit(Activation{tangent, Function::tanh, source, 0.0f, factors_.inner});
      source = tangent;
    }
    if (unit.select) {
      Access const selected = part(scores_.make_tile());
      builder_->emit(RangeSelect{selected, source, Operator::greater_equal, Operator::less,
                                 bounds_->bound(false, bounds_number_, unit.piece, unit.tile),
                                 bounds_->bound(true, bounds_number_, unit.piece, unit.tile),
                                 ReduceCommand::reset_reduce, std::nullopt, Operator::maximum, keys.rows.begin});
      source = selected;
    }
    auto const number = [&](RotatingTile const& of) { return of[section.numbers].part(0, rows, unit.tile, 1); };
    Access const weights = part(probabilities_.make_tile());
    builder_->emit(Activation{weights, Function::exp, source, number(statistics_->negated_lse), factors_.multiplier});
    Access const slope = part(slopes_.make_tile());
    builder_->emit(ScalarTensorTensor{slope, raw_slopes, Operator::subtract, number(statistics_->delta),
                                      Operator::multiply, weights, false, false});
    if (factors_.capped) {
      Access const of_cap = part(cap_slopes_.make_tile());
      builder_->emit(TensorTensor{of_cap, tangent, tangent, Operator::multiply, Engine::gpsimd});
      builder_->emit(
          TensorScalar{of_cap, of_cap, Operator::multiply, -1.0f, false, Operator::add, 1.0f, false, Engine::scalar});
      builder_->emit(TensorTensor{slope, slope, of_cap, Operator::multiply, Engine::vector});
    }
    weights_[&unit] = probabilities_.newest_number();
  }

  void sum(BackwardUnit const& unit, QuerySection const& section, KeyTile& keys) {
    Index const rows = tile(unit.tile).count, count = keys.rows.size(),
                blocks = annulus::detail::ceil_divide(count, tile_rows), dim = spec_->shape.head_dim,
                value_dim = spec_->shape.value_dim, place = unit.tile - section.first_tile;
    auto const in_block = [&](Index block) { return std::min(tile_rows, count - block * tile_rows); };
    Index const number = weights_.extract(&unit).mapped();
    TileHandle const probabilities = probabilities_[number], slopes = slopes_[number];
    if (unit.first) {
      keys.sums = dk_sums_.make();
      dv_sums_.make();
    }
    auto const add_products = [&](RotatingTile const& sums, TileHandle const& weights, RotatingTile const& queries,
                                  Index width) {
      for (Index block = 0; block < blocks; ++block)
        builder_->emit(MatMul{sums[keys.sums].part(0, in_block(block), block * width, width),
                              weights.part(0, rows, block * tile_rows, in_block(block)),
                              queries[section.operands].part(0, rows, place * width, width), !unit.first});
    };
    add_products(dv_sums_, probabilities, dout_.tokens, value_dim);
    add_products(dk_sums_, slopes, q_.tokens, dim);

    TileHandle const transposed = transposed_.make_tile();
    Index const whole = count / tile_rows;
    if (whole > 0)
      loads_.transpose(
          rows, tile_rows, whole, [&](Index block) { return slopes.part(0, rows, block * tile_rows, tile_rows); },
          rows == tile_rows ? transposed.part(0, tile_rows, 0, whole * tile_rows)
                            : transposed.pattern(0, tile_rows, 0, {{tile_rows, whole}, {1, rows}}),
          Engine::scalar);
    if (whole < blocks)
      loads_.transpose(
          rows, in_block(whole), 1, [&](Index) { return slopes.part(0, rows, whole * tile_rows, in_block(whole)); },
          transposed.part(0, in_block(whole), whole * tile_rows, rows), Engine::scalar);
    Access const step = dq_product_.make_tile().part(0, rows, 0, dim),
                 total = dq_sums_[section.sums].part(0, rows, place * dim, dim);
    for (Index block = 0; block < blocks; ++block)
      builder_->emit(MatMul{step, transposed.part(0, in_block(block), block * tile_rows, rows),
                            k_.tokens[keys.operands].part(0, in_block(block), block * dim, dim), block > 0});
    builder_->emit(TensorTensor{total, total, step, Operator::add, Engine::vector});
  }

  Builder* builder_;
  KernelSpec const* spec_;
  OperandLoads loads_;
  LogitFactors factors_;
  OperandTiles q_, dout_, k_;
  RotatingTile v_features_, dq_sums_, raw_scores_, raw_slopes_, dq_product_, dk_sums_, dv_sums_, scores_, tangents_,
      cap_slopes_, probabilities_, slopes_, transposed_, dk_scaled_, dv_copied_, dq_scaled_;
  std::vector<RowTile> const* tiles_ = nullptr;
  BoundsTiles const* bounds_ = nullptr;
  Index bounds_number_ = -1;
  RowStatistics const* statistics_ = nullptr;
  std::map<BackwardUnit const*, Index> weights_;  // of units between the stages: numbers in probabilities_ and slopes_
};

/// Work list of one backward step.
struct BackwardStep {
  std::vector<QuerySection> sections;
  std::vector<KeyTile> key_tiles;   ///< one entry per visit by a section
  std::vector<BackwardUnit> units;  ///< by section, then key tile
};

/// Lists the units with at least one visible pair; `own`: of the rank's own keys, else of any other rank's keys.
inline BackwardStep backward_step(KernelSpec const& spec, RingMask const& mask, std::vector<RowTile> const& tiles,
                                  Index section_tiles, Index key_rows, bool own) {
  BackwardStep step;
  for (Index head = 0; head < spec.query_heads_per_item(); ++head)
    for (Index first = 0; first < std::ssize(tiles); first += section_tiles) {
      QuerySection const section{
          .head = head, .first_tile = first, .last_tile = std::min(std::ssize(tiles), first + section_tiles)};
      for (Index begin = 0; begin < spec.local_keys; begin += key_rows) {
        RowRange const keys{begin, std::min(begin + key_rows, spec.local_keys)};
        std::size_t const before = step.units.size();
        for (Index tile = section.first_tile; tile < section.last_tile; ++tile)
          for (std::size_t piece = 0; piece < mask.pieces().size(); ++piece) {
            Cover const cover = mask.cover(own, tiles[static_cast<std::size_t>(tile)].rows_of_all_cores, piece);
            if (annulus::detail::intersection(cover.by_any, keys).empty()) continue;
            step.units.push_back({.section = step.sections.size(),
                                  .key_tile = step.key_tiles.size(),
                                  .tile = tile,
                                  .piece = piece,
                                  .select = !cover.full(keys)});
          }
        check_units(step.units.size());
        if (step.units.size() == before) continue;
        step.units[before].first = true;
        step.units.back().last = true;
        step.key_tiles.push_back({.rows = keys});
      }
      step.sections.push_back(section);
    }
  return step;
}

}  // namespace annulus::nki
