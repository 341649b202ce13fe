#pragma once
// Forward pass with stationary keys: S^T = K Q^T has the keys in partitions, so that P^T = exp(S^T) multiplies V
// without a transpose, and a column of ones next to V gives the row sums. Two stages run concurrently in a pipeline:
//   scores    S^T of 128 keys and up to four row tiles, mask, P^T = exp(S^T)
//   values    accumulator += P V, with the sums, in PSUM over the keys of a unit
// No maximum is subtracted: a weight relative to 0 instead of the row's maximum has the same relative error, as
// bfloat16 and float32 have the same exponents, within the range that ForwardKernel::ring gives.

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/forward_pipeline.hpp"

namespace annulus::nki {

/// Adjacent row tiles of a round whose scores one instruction computes.
struct QueryBlock {
  Index first_tile = 0, count = 0;
  std::size_t query_piece = 0;
  RowTile rows;  ///< of all its tiles
};

/// Cuts row tiles into blocks of up to four, which do not cross a tile piece of the mask. Where halves are chosen,
/// those of a block have equally many rows.
inline std::vector<QueryBlock> query_blocks(std::vector<RowTile> const& tiles, RingMask const& mask) {
  std::vector<QueryBlock> blocks;
  std::vector<RowRange> const pieces = mask.tile_pieces();
  for (Index i = 0; i < std::ssize(tiles); ++i) {
    RowTile const& tile = nth(tiles, i);
    auto const piece = static_cast<std::size_t>(
        std::ranges::find_if(pieces, [&](RowRange rows) { return tile.rows_of_all_cores.begin < rows.end; }) -
        pieces.begin());
    if (blocks.empty() || blocks.back().count == 4 || blocks.back().query_piece != piece ||
        (mask.chooses_halves() && blocks.back().rows.count != tile.count))
      blocks.push_back({i, 0, piece, tile});
    ++blocks.back().count;
    blocks.back().rows.rows_of_all_cores.end = tile.rows_of_all_cores.end;
  }
  return blocks;
}

/// Throws UnsupportedError unless the keys can be stationary. `mask`: with the halves that the kernel chooses.
inline void check_stationary(KernelSpec const& spec, RingMask const& mask) {
  detail::check<UnsupportedError>(spec.type == ElementType::bfloat16 && spec.shape.value_dim < widest_dim &&
                                      !spec.bias.given && spec.keep_scale == 0,
                                  "nki: stationary keys of ", name_of(spec.type), ", value_dim ", spec.shape.value_dim,
                                  spec.bias.given ? ", with a bias" : "", spec.keep_scale > 0 ? ", with dropout" : "",
                                  "; accepted: bfloat16, whose exponents are those of float32, value_dim below ",
                                  widest_dim, ", no bias or dropout");
  for (RowRange piece : mask.pieces())
    detail::check<UnsupportedError>(piece.begin % tile_rows == 0 || mask.key_parts().size() > 1,
                                    "nki: stationary keys with a key piece of the mask that begins at row ",
                                    piece.begin, "; accepted: multiples of ", tile_rows);
  for (int rank = 0; mask.form() == BoundsForm::ranges && rank < mask.ranks(); ++rank) mask.key_ranges(rank, 1);
}

/// Emits the loads and pipeline stages of forward units whose `tile` is a query block.
class StationaryPipeline : public ForwardStages {
 public:
  static constexpr std::size_t depth = 2;
  static constexpr Index finished_together = 1;  ///< blocks
  static constexpr double choose = 0;            ///< part of a step after which VectorE reads the next one's choice
  static constexpr Index longest_group = 2048;   ///< keys; longer ones keep more weights in SBUF, and are no faster

  StationaryPipeline(Builder& builder, KernelSpec const& spec, RingMask const& mask, SbufPlan const& plan)
      : ForwardStages(builder, spec, 1, 4),
        mask_(&mask),
        section_tiles_(builder, loads_, spec, plan.section, true),
        width_(spec.shape.value_dim + 1) {
    raw_scores_ = RotatingTile(builder, "raw_scores", block_rows, ElementType::float32, 3, Memory::psum);
    weights_ = RotatingTile(builder, "weights", plan.group / tile_rows * block_rows, spec.type);
    weighted_ = RotatingTile(builder, "weighted_values", 4 * bank, ElementType::float32, 1, Memory::psum);
    if (!mask.chooses_halves()) return;
    chosen_sums_ = RotatingTile(builder, "chosen_sums", 4 * width_);
    early_sums_ = RotatingTile(builder, "early_sums", 4 * width_);
    overflows_ = RotatingTile(builder, "overflows", 4);
  }

  /// Sets the state, row tiles and their blocks, bounds and queries (of the item's first head) of later units.
  void begin_round(ForwardState const& state, std::vector<RowTile> const& tiles, std::vector<QueryBlock> const& blocks,
                   BoundsTiles const& bounds, HeadRows queries) {
    ForwardStages::begin_round(state, tiles, bounds, std::move(queries));
    blocks_ = &blocks;
  }

  SectionTiles& section_tiles() { return section_tiles_; }

  static constexpr char const* tiles_of_slots = "weights";  ///< buffers of which each slot makes a tile
  Index slots_made() const { return weights_.made(); }      ///< so far

  /// Emits one slot of the pipeline, its stages interleaved by key tile. `coming` is scored in the next slot: its loads
  /// from HBM start here.
  void slot(ForwardSlot coming, ForwardSlot scored, ForwardSlot, ForwardSlot, ForwardSlot summed,
            std::vector<KeySection> const& sections) {
    sections_ = &sections;
    for (ForwardUnit const& unit : coming) fetch(unit);
    if (!scored.empty()) weights_.make();
    Parts score, sum;
    for (ForwardUnit const& unit : scored) {
      flights_[&unit].weights = weights_.newest_number();
      for (Index at = 0; at < unit.keys.size(); at += tile_rows)
        score.push_back([this, &unit, at] { weigh(unit, at); });
    }
    for (ForwardUnit const& unit : summed)
      for (Index at = 0; at < unit.keys.size(); at += tile_rows)
        sum.push_back([this, &unit, at] { multiply(unit, at); });
    interleave({std::move(score), std::move(sum)});
  }

  /// Permutes run concurrently with everything: no DMA transposes wait for them.
  void begin_permute(Index) {}

 private:
  static constexpr Index bank = 512, block_rows = 4 * tile_rows;
  /// Most keys of a chosen unit in the last step whose sums ScalarE and GpSimdE add to those of the early rows: after
  /// longer ones ScalarE has no time.
  static constexpr Index shared_keys = 1024;

  /// A row tile of a unit: the keys that its rows see, and where its queries are.
  struct TileOfUnit {
    Cover cover;
    QueryPanels::Place queries;
    bool touched = false;  ///< its products have begun
  };
  struct InFlight {
    std::vector<TileOfUnit> tiles;
    Index weights = -1;
  };

  QueryBlock const& block(ForwardUnit const& unit) const { return nth(*blocks_, unit.tile); }
  RowTile const& tile(ForwardUnit const& unit, Index i) const { return nth(*tiles_, block(unit).first_tile + i); }
  /// Keys of a key tile of a unit, rows of the shard.
  static RowRange keys_at(ForwardUnit const& unit, Index at) {
    return {unit.keys.begin + at, std::min(unit.keys.begin + at + tile_rows, unit.keys.end)};
  }
  static bool sees(TileOfUnit const& tile, RowRange keys) {
    return !detail::intersection(tile.cover.by_any, keys).empty();
  }

  void fetch(ForwardUnit const& unit) {
    InFlight& now = flights_[&unit];
    for (Index i = 0; i < block(unit).count; ++i)
      now.tiles.push_back(
          {mask_->cover(section(unit).step == 0, tile(unit, i).rows_of_all_cores, unit.piece),
           queries_.fetch(unit.head, block(unit).first_tile + i, unit.chosen ? section(unit).step : -1)});
  }

  /// Weights of one key tile, for the row tiles that see some of it.
  void weigh(ForwardUnit const& unit, Index at) {
    InFlight& now = flights_[&unit];
    RowRange const keys = keys_at(unit, at);
    TileHandle const raw = raw_scores_.make_tile();
    Index const begin = section(unit).place(keys.begin);
    for (Index first = 0, last = 0; first < block(unit).count; first = last) {
      last = first + 1;
      if (!sees(nth(now.tiles, first), keys)) continue;
      auto const continues = [&](Index i) {
        QueryPanels::Place const &before = nth(now.tiles, i - 1).queries, &here = nth(now.tiles, i).queries;
        return sees(nth(now.tiles, i), keys) && here.number == before.number &&
               here.column == before.column + tile_rows;
      };
      while (last < block(unit).count && continues(last)) ++last;
      Index const columns = (last - 1 - first) * tile_rows + tile(unit, last - 1).count;
      Access const scores = raw.part(0, keys.size(), first * tile_rows, columns);
      Chunks const chunks{spec_->shape.head_dim};
      for (Index c = 0; c < chunks.count(); ++c)
        builder_->emit(MatMul{scores, section_tiles_.keys(section(unit), c, begin, keys.size()),
                              queries_.chunk(nth(now.tiles, first).queries, c, columns), c > 0});
      if (factors_.capped) builder_->emit(Activation{scores, Function::tanh, scores, 0.0f, factors_.inner});
      for (Index i = first; i < last; ++i)
        if (!nth(now.tiles, i).cover.full(keys)) {
          auto const bound = [&](bool end) {
            return bounds_->bound_of_keys(end, section(unit).bounds_number, block(unit).query_piece, unit.piece,
                                          keys.begin);
          };
          Access const part = raw.part(0, keys.size(), i * tile_rows, tile(unit, i).count);
          builder_->emit(RangeSelect{.dst = part,
                                     .on_true_tile = part,
                                     .bound0 = bound(false),
                                     .bound1 = bound(true),
                                     .range_start = tile(unit, i).begin});
        }
      builder_->emit(
          Activation{weights(unit, at, keys.size(), first, columns), Function::exp, scores, 0.0f, factors_.multiplier});
    }
  }

  Access weights(ForwardUnit const& unit, Index at, Index keys, Index first_tile, Index columns) {
    return weights_[flights_[&unit].weights].part(
        0, keys, (unit.column + at) / tile_rows * block_rows + first_tile * tile_rows, columns);
  }

  /// Products of the weights of one key tile with the values; after the last one, adds them to the accumulators.
  void multiply(ForwardUnit const& unit, Index at) {
    InFlight& now = flights_[&unit];
    RowRange const keys = keys_at(unit, at);
    if (at == 0) weighted_.make();
    Index const value_block = section(unit).place(keys.begin) / tile_rows;
    for (Index i = 0; i < block(unit).count; ++i) {
      TileOfUnit& rows = nth(now.tiles, i);
      if (!sees(rows, keys)) continue;
      builder_->emit(MatMul{weighted_.newest().part(0, tile(unit, i).count, i * bank, width_),
                            weights(unit, at, keys.size(), i, tile(unit, i).count),
                            section_tiles_.values(section(unit), value_block, keys.size()),
                            std::exchange(rows.touched, true)});
    }
    if (keys.end < unit.keys.end) return;
    if (unit.chosen) return add_chosen(unit);
    for (Index i = 0; i < block(unit).count; ++i)
      if (nth(now.tiles, i).touched)
        builder_->emit(TensorTensor{total(unit, i), total(unit, i), product(unit, i), Operator::add});
    flights_.erase(&unit);
  }

  /// Values, weighted and summed over the keys of a unit, and the sum of the weights, of a row tile.
  Access product(ForwardUnit const& unit, Index i) const {
    return weighted_.newest().part(0, tile(unit, i).count, i * bank, width_);
  }
  /// The same of all keys, or of the row tile in its place in the early half.
  Access total(ForwardUnit const& unit, Index i, bool early = false) const {
    Index const all = std::ssize(*tiles_), column = unit.head * all + block(unit).first_tile + i - early * all / 2;
    return state_.accumulator.part(0, tile(unit, i).count, column * width_, width_);
  }

  /// Adds the sums of a chosen unit, all of whose row tiles have equally many rows, to those of its early or late rows.
  void add_chosen(ForwardUnit const& unit) {
    // TensorE needs the banks, and the additions take four times as long as copies.
    TileHandle const sums = chosen_sums_.make_tile(), early_sums = early_sums_.make_tile(),
                     overflows = overflows_.make_tile();
    Index const count = block(unit).count, rows = block(unit).rows.count;
    auto const part = [&](TileHandle const& tile, Index i) { return tile.part(0, rows, i * width_, width_); };
    // In the last step nothing else hides what VectorE does.
    bool const shared = section(unit).step + 1 == spec_->ranks && unit.keys.size() <= shared_keys;
    for (Index i = 0; i < count; ++i)
      builder_->emit(TensorCopy{part(sums, i), product(unit, i), shared ? Engine::scalar : Engine::vector});
    // Infinite weights times 0 are NaN. Their rows, and those in their place in the other half, get a large sum
    // instead.
    Access const weights = sums.pattern(0, rows, width_ - 1, {{width_, count}}),
                 large = overflows.part(0, rows, 0, count);
    builder_->emit(TensorScalar{large, weights, Operator::greater, 0x1p100f, Operator::multiply, 0x1p110f});
    builder_->emit(TensorScalar{.dst = weights, .data = weights, .op0 = Operator::minimum, .operand0 = 0x1p110f});
    for (Index i = 0; i < count; ++i)
      for (bool late : {false, true}) {
        Access const all = total(unit, i, !late), factor = bounds_->choice(late, section(unit).bounds_number, all);
        if (shared && !late) {
          builder_->emit(Activation{part(early_sums, i), Function::copy, part(sums, i), 0.0f, factor});
          builder_->emit(TensorTensor{all, all, part(early_sums, i), Operator::add, Engine::gpsimd});
        } else {
          builder_->emit(ScalarTensorTensor{all, part(sums, i), Operator::multiply, factor, Operator::add, all});
        }
      }
    for (bool late : {false, true}) {
      Access const first = total(unit, 0, !late);
      Access const totals = state_.accumulator.pattern(0, rows, first.offset + (width_ - 1), {{width_, count}});
      builder_->emit(
          TensorTensor{totals, totals, large, Operator::add, shared && !late ? Engine::gpsimd : Engine::vector});
    }
    flights_.erase(&unit);
  }

  RingMask const* mask_;
  SectionTiles section_tiles_;
  Index width_;  ///< value_dim and the column of ones
  RotatingTile raw_scores_, weights_, weighted_, chosen_sums_, early_sums_, overflows_;
  std::vector<QueryBlock> const* blocks_ = nullptr;
  std::map<ForwardUnit const*, InFlight> flights_;
};

}  // namespace annulus::nki
