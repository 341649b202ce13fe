#pragma once
// Backward pass of one query tile over one tile of keys, in two stages that run concurrently in a pipeline:
//   slopes      S = Q K^T, P = exp(S - lse), dP = dO V^T, dS = P (dP - delta)
//   gradients   dV += P^T dO and dK += dS^T Q in PSUM, dQ += dS K in SBUF
// (Dao, arXiv 2307.08691, section 3.1.2.) No quadratic intermediate is stored.

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/operand_loads.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"

namespace annulus::nki {

/// Query rows that are in SBUF together, by feature and by token, with the sums of their gradients.
struct QuerySection {
  Index head = 0;
  std::size_t first_tile = 0, last_tile = 0;
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
  std::size_t tile = 0;                   ///< row tile
  std::size_t piece = 0;
  bool select = false;
  bool first = false, last = false;  ///< unit of its key tile in its section
};

/// Emits the loads, pipeline stages and gradient results of backward units.
class BackwardUnits {
 public:
  BackwardUnits(Builder& builder, KernelSpec const& spec, OperandLoads& loads, Index section_tiles, Index key_rows)
      : builder_(&builder), spec_(&spec), loads_(&loads), factors_(logit_factors(spec)), section_tiles_(section_tiles),
        key_rows_(key_rows) {
    Index const dim = spec.shape.head_dim, value_dim = spec.shape.value_dim, blocks = ceil_divide(key_rows, tile_rows);
    Chunks const chunks{dim}, value_chunks{value_dim};
    auto const operand = [&](char const* name, Index elements, Index partitions = tile_rows) {
      return RotatingTile(builder, name, elements, spec.type, 2, Memory::sbuf, partitions);
    };
    auto const sums = [&](char const* name, Index elements, int rotation = 2, Memory memory = Memory::sbuf) {
      return RotatingTile(builder, name, elements, ElementType::float32, rotation, memory);
    };
    q_features_ = operand("q_features", chunks.count() * section_tiles * tile_rows, chunks.largest());
    q_tokens_ = operand("q_tokens", section_tiles * dim);
    dout_features_ = operand("dout_features", value_chunks.count() * section_tiles * tile_rows, value_chunks.largest());
    dout_tokens_ = operand("dout_tokens", section_tiles * value_dim);
    k_features_ = operand("k_features", chunks.count() * key_rows, chunks.largest());
    k_tokens_ = operand("k_tokens", blocks * dim);
    v_features_ = operand("v_features", value_chunks.count() * key_rows, value_chunks.largest());
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

  /// Sets what later units refer to; negated_lse and delta hold a column per row tile of a head.
  void begin_step(std::vector<RowTile> const& tiles, BoundsTiles const& bounds, Index bounds_number,
                  RotatingTile const& negated_lse, RotatingTile const& delta) {
    tiles_ = &tiles;
    bounds_ = &bounds;
    bounds_number_ = bounds_number;
    negated_lse_ = &negated_lse;
    delta_ = &delta;
  }

  /// Loads q and dout of a section in both layouts, and zeroes its sums of dq.
  void load_section(QuerySection& section, HeadSource const& queries, HeadSource const& dout) {
    section.operands = q_features_.make();
    for (RotatingTile* tile : {&q_tokens_, &dout_features_, &dout_tokens_}) tile->make();
    section.sums = dq_sums_.make();
    builder_->emit(Memset{dq_sums_.newest().whole(), 0.0f, Engine::gpsimd});
    for (std::size_t i = section.first_tile; i < section.last_tile; ++i) {
      auto const place = static_cast<Index>(i - section.first_tile);
      RowTile const& tile = (*tiles_)[i];
      both_forms(queries, tile.begin, tile.count, q_features_.newest(), section_tiles_ * tile_rows, place,
                 q_tokens_.newest(), factors_.query_factor);
      both_forms(dout, tile.begin, tile.count, dout_features_.newest(), section_tiles_ * tile_rows, place,
                 dout_tokens_.newest(), 1);
    }
  }

  /// Loads k of a key tile in both layouts, and v by feature.
  void load_keys(KeyTile& keys, HeadSource const& k, HeadSource const& v) {
    keys.operands = k_features_.make();
    k_tokens_.make();
    v_features_.make();
    for (Index begin = 0; begin < keys.rows.size(); begin += tile_rows) {
      Index const count = std::min(tile_rows, keys.rows.size() - begin);
      both_forms(k, keys.rows.begin + begin, count, k_features_.newest(), key_rows_, begin / tile_rows,
                 k_tokens_.newest(), 1);
    }
    loads_->by_feature(v, keys.rows.begin, keys.rows.size(), v_features_.newest(), key_rows_);
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
  TileHandle query_gradient(QuerySection const& section, std::size_t tile) {
    TileHandle const scaled = dq_scaled_.make_tile();
    Index const dim = spec_->shape.head_dim, rows = (*tiles_)[tile].count;
    builder_->emit(TensorScalar{
        .dst = scaled.part(0, rows, 0, dim),
        .data = dq_sums_[section.sums].part(0, rows, static_cast<Index>(tile - section.first_tile) * dim, dim),
        .operand0 = product_slope() * factors_.query_factor,
        .engine = Engine::gpsimd});
    return scaled;
  }

 private:
  /// d logit / d (q . k), without the derivative of the soft cap.
  float product_slope() const { return factors_.multiplier * factors_.inner; }

  /// Loads rows in the layout that HBM has (by feature or by token) and transposes them to the other with TensorE.
  void both_forms(HeadSource const& source, Affine const& begin, Index rows, TileHandle const& features, Index pitch,
                  Index block, TileHandle const& tokens, float factor) {
    Chunks const chunks{source.dim};
    auto const feature = [&](Index c) { return features.part(0, chunks.size(c), c * pitch + block * tile_rows, rows); };
    auto const token = [&](Index c) {
      return tokens.part(0, rows, block * source.dim + c * tile_rows, chunks.size(c));
    };
    auto const scale = [&](Access const& part) {
      if (factor != 1)
        builder_->emit(TensorScalar{.dst = part, .data = part, .operand0 = factor, .engine = Engine::gpsimd});
    };
    if (source.by_token) {
      loads_->by_token(source, begin, rows, tokens, block);
      scale(tokens.part(0, rows, block * source.dim, source.dim));
      for (Index c = 0; c < chunks.count(); ++c)
        loads_->transposer.run(
            rows, chunks.size(c), 1, [&](Index) { return token(c); }, feature(c), Engine::scalar);
    } else {
      loads_->by_feature(source, begin, rows, features, pitch, block * tile_rows);
      for (Index c = 0; c < chunks.count(); ++c) {
        scale(feature(c));
        loads_->transposer.run(
            chunks.size(c), rows, 1, [&](Index) { return feature(c); }, token(c), Engine::scalar);
      }
    }
  }

  void slope(BackwardUnit const& unit, QuerySection const& section, KeyTile const& keys) {
    Index const rows = (*tiles_)[unit.tile].count, count = keys.rows.size();
    Index const place = static_cast<Index>(unit.tile - section.first_tile), pitch = section_tiles_ * tile_rows;
    auto const part = [&](TileHandle const& tile) { return tile.part(0, rows, 0, count); };
    TileHandle const raw_scores = raw_scores_.make_tile();
    product(raw_scores, rows, count, {spec_->shape.head_dim}, q_features_[section.operands], pitch, place,
            k_features_[keys.operands]);
    TileHandle const raw_slopes = raw_slopes_.make_tile();
    product(raw_slopes, rows, count, {spec_->shape.value_dim}, dout_features_[section.operands], pitch, place,
            v_features_[keys.operands]);

    Access source = part(raw_scores), tangent;
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
    auto const number = [&](RotatingTile const& of) {
      return of[section.numbers].part(0, rows, static_cast<Index>(unit.tile), 1);
    };
    Access const weights = part(probabilities_.make_tile());
    builder_->emit(Activation{weights, Function::exp, source, number(*negated_lse_), factors_.multiplier});
    Access const slope = part(slopes_.make_tile());
    builder_->emit(ScalarTensorTensor{slope, part(raw_slopes), Operator::subtract, number(*delta_), Operator::multiply,
                                      weights, false, false});
    if (factors_.capped) {
      Access const of_cap = part(cap_slopes_.make_tile());
      builder_->emit(TensorTensor{of_cap, tangent, tangent, Operator::multiply, Engine::gpsimd});
      builder_->emit(
          TensorScalar{of_cap, of_cap, Operator::multiply, -1.0f, false, Operator::add, 1.0f, false, Engine::gpsimd});
      builder_->emit(TensorTensor{slope, slope, of_cap, Operator::multiply, Engine::vector});
    }
    flights_[&unit] = {probabilities_.newest_number(), slopes_.newest_number()};
  }

  /// to[rows, count] = queries (tile `place`) . keys, summed over the features.
  void product(TileHandle const& to, Index rows, Index count, Chunks const& chunks, TileHandle const& queries,
               Index pitch, Index place, TileHandle const& keys) {
    for (Index c = 0; c < chunks.count(); ++c)
      builder_->emit(MatMul{to.part(0, rows, 0, count),
                            queries.part(0, chunks.size(c), c * pitch + place * tile_rows, rows),
                            keys.part(0, chunks.size(c), c * key_rows_, count), c > 0});
  }

  void sum(BackwardUnit const& unit, QuerySection const& section, KeyTile& keys) {
    Index const rows = (*tiles_)[unit.tile].count, count = keys.rows.size(), blocks = ceil_divide(count, tile_rows);
    Index const dim = spec_->shape.head_dim, value_dim = spec_->shape.value_dim,
                place = static_cast<Index>(unit.tile - section.first_tile);
    auto const in_block = [&](Index block) { return std::min(tile_rows, count - block * tile_rows); };
    InFlight const now = flights_[&unit];
    flights_.erase(&unit);
    TileHandle const probabilities = probabilities_[now.probabilities], slopes = slopes_[now.slopes];
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
    add_products(dv_sums_, probabilities, dout_tokens_, value_dim);
    add_products(dk_sums_, slopes, q_tokens_, dim);

    TileHandle const transposed = transposed_.make_tile();
    Index const whole = count / tile_rows;
    if (whole > 0)
      loads_->transposer.run(
          rows, tile_rows, whole, [&](Index block) { return slopes.part(0, rows, block * tile_rows, tile_rows); },
          rows == tile_rows ? transposed.part(0, tile_rows, 0, whole * tile_rows)
                            : transposed.pattern(0, tile_rows, 0, {{tile_rows, whole}, {1, rows}}),
          Engine::scalar);
    if (whole < blocks)
      loads_->transposer.run(
          rows, in_block(whole), 1, [&](Index) { return slopes.part(0, rows, whole * tile_rows, in_block(whole)); },
          transposed.part(0, in_block(whole), whole * tile_rows, rows), Engine::scalar);
    Access const step = dq_product_.make_tile().part(0, rows, 0, dim),
                 total = dq_sums_[section.sums].part(0, rows, place * dim, dim);
    for (Index block = 0; block < blocks; ++block)
      builder_->emit(MatMul{step, transposed.part(0, in_block(block), block * tile_rows, rows),
                            k_tokens_[keys.operands].part(0, in_block(block), block * dim, dim), block > 0});
    builder_->emit(TensorTensor{total, total, step, Operator::add, Engine::vector});
  }

  struct InFlight {
    Index probabilities = -1, slopes = -1;
  };

  Builder* builder_;
  KernelSpec const* spec_;
  OperandLoads* loads_;
  LogitFactors factors_;
  Index section_tiles_, key_rows_;
  RotatingTile q_features_, q_tokens_, dout_features_, dout_tokens_, k_features_, k_tokens_, v_features_, dq_sums_,
      raw_scores_, raw_slopes_, dq_product_, dk_sums_, dv_sums_, scores_, tangents_, cap_slopes_, probabilities_,
      slopes_, transposed_, dk_scaled_, dv_copied_, dq_scaled_;
  std::vector<RowTile> const* tiles_ = nullptr;
  BoundsTiles const* bounds_ = nullptr;
  Index bounds_number_ = -1;
  RotatingTile const* negated_lse_ = nullptr;
  RotatingTile const* delta_ = nullptr;
  std::map<BackwardUnit const*, InFlight> flights_;
};

/// Work list of one backward step.
struct BackwardStep {
  std::vector<QuerySection> sections;
  std::vector<KeyTile> key_tiles;             ///< one entry per visit by a section
  std::vector<BackwardUnit> units;            ///< by section, then key tile
  std::vector<std::size_t> key_tile_of_rows;  ///< by visit: number of the key tile in the shard
};

/// Lists the units with at least one visible pair; `own`: of the rank's own keys, else of any other rank's keys.
inline BackwardStep backward_step(KernelSpec const& spec, RingMask const& mask, std::vector<RowTile> const& tiles,
                                  Index section_tiles, Index key_rows, bool own) {
  BackwardStep step;
  for (Index head = 0; head < spec.query_heads_per_item(); ++head)
    for (std::size_t first = 0; first < tiles.size(); first += static_cast<std::size_t>(section_tiles)) {
      QuerySection section{.head = head, .first_tile = first,
                           .last_tile = std::min(tiles.size(), first + static_cast<std::size_t>(section_tiles))};
      for (Index begin = 0; begin < spec.local_keys; begin += key_rows) {
        RowRange const keys{begin, std::min(begin + key_rows, spec.local_keys)};
        std::size_t const before = step.units.size();
        for (std::size_t tile = section.first_tile; tile < section.last_tile; ++tile)
          for (std::size_t piece = 0; piece < mask.pieces().size(); ++piece) {
            Cover const cover = mask.cover(own, tiles[tile].rows_of_all_cores, piece);
            if (intersection(cover.by_any, keys).empty()) continue;
            step.units.push_back({.section = step.sections.size(), .key_tile = step.key_tiles.size(), .tile = tile,
                                  .piece = piece, .select = !cover.full(keys)});
          }
        check_units(step.units.size());
        if (step.units.size() == before) continue;
        step.units[before].first = true;
        step.units.back().last = true;
        step.key_tiles.push_back({.rows = keys});
        step.key_tile_of_rows.push_back(static_cast<std::size_t>(begin / key_rows));
      }
      step.sections.push_back(section);
    }
  return step;
}

}  // namespace annulus::nki
