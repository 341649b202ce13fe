#pragma once
// Units of work of a forward pass, the keys that they refer to, what they hold in the pipeline, and the running softmax
// state that they update.

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/operand_loads.hpp"

namespace annulus::nki {

/// A partition of SBUF by a forward kernel.
struct SbufPlan {
  Index group = 0;       ///< most keys between two corrections of the accumulator
  Index section = 0;     ///< most keys that are in SBUF together
  bool resident = true;  ///< accumulators stay in SBUF
};

/// Unit of work: a query row tile with a group of keys.
struct ForwardUnit {
  Index head = 0;  ///< query head within the item's group
  Index tile = 0;  ///< row tile
  RowRange keys;   ///< rows of the shard
  std::size_t piece = 0;
  bool chosen = false;               ///< halves that RingMask::with_chosen_halves() describes; `tile` is a late one
  bool select = false;               ///< some row does not see some key: mask by range_select
  Index visible = 0;                 ///< keys, the first ones, that all rows see although others need the mask
  bool first = false, last = false;  ///< unit of this head and tile in this section
  std::size_t section = 0;
  Index column = 0;  ///< column of its first key in the tiles of its slot; a multiple of 128
};

/// Units that pass the pipeline stages together.
using ForwardSlot = std::span<ForwardUnit const>;

/// A run of key rows that is in SBUF together, and the numbers of its tiles.
struct KeySection {
  RowRange rows;
  RowRange late{};  ///< not empty: late keys that stand behind `rows`, or early ones if these are `chosen`
  bool chosen = false;
  int step = 0;                ///< of the ring
  std::size_t first_slot = 0;  ///< of the schedule
  Index number = -1, bounds_number = -1;

  /// Place of a row of the shard.
  Index place(Index row) const {
    if (row < rows.end) return row - rows.begin;
    return row - late.begin + detail::ceil_divide(rows.size(), tile_rows) * tile_rows;
  }
};

/// Keys of a section by feature, and its values by token.
class SectionTiles {
 public:
  /// section_keys: most keys of a section; ones: a column of ones stands next to the values.
  SectionTiles(Builder& builder, OperandLoads& loads, KernelSpec const& spec, Index section_keys, bool ones)
      : builder_(&builder),
        loads_(&loads),
        chunks_{spec.shape.head_dim},
        section_keys_(section_keys),
        ones_(ones),
        width_(spec.shape.value_dim + ones),
        keys_(builder, "keys", chunks_.count() * section_keys, spec.type, 2, Memory::sbuf, chunks_.largest()),
        values_(builder, ones ? "values_and_ones" : "values", detail::ceil_divide(section_keys, tile_rows) * width_,
                spec.type) {}

  /// Loads part `part` of `parts` of a section; part 0 must come first, as it allocates the tiles.
  void load(KeySection& section, HeadRows const& keys, HeadRows const& values, BoundsTiles const& bounds, Index part,
            Index parts) {
    if (part == 0) {
      section.number = keys_.make();
      TileHandle const tile = values_.make_tile();
      if (ones_)
        builder_->emit(
            Memset{tile.pattern(0, tile_rows, width_ - 1, {{width_, tile.elements / width_}}), 1.0f, Engine::gpsimd});
    }
    constexpr Index most = ForwardTuning::load_keys;
    Index const loads = detail::ceil_divide(section.rows.size(), most);
    for (Index i = loads * part / parts; i < loads * (part + 1) / parts; ++i) {
      Index const begin = i * most, count = std::min(most, section.rows.size() - begin);
      auto const load_from = [&](RowRange rows, HeadRows const& of_keys, HeadRows const& of_values) {
        Index const first = rows.begin + begin, place = section.place(first);
        loads_->by_feature(of_keys, first, count, keys_.newest(), section_keys_, place);
        loads_->by_token(of_values, first, count, values_.newest(), place / tile_rows, width_);
      };
      load_from(section.rows, keys, values);
      auto const late = [&](HeadRows const& of) { return section.chosen ? bounds.chosen(section.step, of) : of; };
      if (!section.late.empty()) load_from(section.late, late(keys), late(values));
    }
  }

  /// Chunk c of the features of `count` keys, from key `begin` of the section on.
  Access keys(KeySection const& section, Index c, Index begin, Index count) const {
    return keys_[section.number].part(0, chunks_.size(c), c * section_keys_ + begin, count);
  }
  /// Values of the first `count` rows of a block of 128, and their ones.
  Access values(KeySection const& section, Index block, Index count) const {
    return values_[section.number].part(0, count, block * width_, width_);
  }

 private:
  Builder* builder_;
  OperandLoads* loads_;
  Chunks chunks_;
  Index section_keys_;
  bool ones_;
  Index width_;  ///< columns of a row of values
  RotatingTile keys_, values_;
};

/// A column of a tile of raised maxima, by number; -1: that of the state.
struct MaximumInFlight {
  Index number = -1, column = 0;
};
/// Tile numbers of a unit in the pipeline.
struct ForwardInFlight {
  QueryPanels::Place queries;
  std::array<MaximumInFlight, 2> maximum_before{};  ///< of the unit's rows and, if it is chosen, of the early ones
  Index accumulator = -1, scores = -1, score_maximum = -1, negated_maximum = -1, correction = -1, row_sum = -1,
        probabilities = -1, transposed = -1, bias = -1, kept = -1;
};
/// State of row tiles that units in the pipeline hold: tiles by number.
struct StateInFlight {
  MaximumInFlight negated_maximum;  ///< not yet saved
  Index accumulator = -1;           ///< in SBUF, with `unstored` pending stores
  int unstored = 0;
};

/// Keys [begin, begin + count) of a unit, which one instruction moves out of PSUM.
struct KeySpan {
  Index begin, count;
  bool first, last;
  ReduceCommand command() const { return first ? ReduceCommand::reset_reduce : ReduceCommand::reduce; }
};
/// Cuts a unit into spans; one ends where the mask is needed.
inline std::vector<KeySpan> spans_of(ForwardUnit const& unit) {
  std::vector<KeySpan> spans;
  Index const keys = unit.keys.size();
  for (Index begin = 0, end = 0; begin < keys; begin = end) {
    end = std::min(begin + ForwardTuning::span_keys, unit.select && begin < unit.visible ? unit.visible : keys);
    spans.push_back({begin, end - begin, begin == 0, end == keys});
  }
  return spans;
}

/// A block of up to 128 x 128 elements of P.
struct ProbabilityBlock {
  Index rows, keys, column;

  bool whole() const { return rows == tile_rows && keys == tile_rows; }
  bool continues(ProbabilityBlock const& before) const {
    return whole() && before.whole() && column == before.column + tile_rows;
  }
};

/// Running softmax state of a round.
struct ForwardState {
  bool resident = true;
  TileHandle negated_maximum, sum;  ///< [128, heads * tiles]
  Index pitch = 0;                  ///< columns of the accumulator of a row tile: value_dim, or more
  TileHandle accumulator;           ///< resident: [128, heads * tiles * pitch]
  HeadRows spilled;                 ///< not resident: in private HBM [heads, rows, value_dim]

  /// The accumulator rows of a tile in HBM.
  Access in_hbm(Index head, RowTile const& tile) const { return spilled.head(head).block(tile.begin, tile.count); }
};

/// What forward units of both forms refer to, and the interleaving of their pipeline stages.
class ForwardStages {
 public:
  /// Sets the state, row tiles, bounds and queries (of the item's first head) that later units refer to.
  void begin_round(ForwardState const& state, std::vector<RowTile> const& tiles, BoundsTiles const& bounds,
                   HeadRows queries) {
    state_ = state;
    tiles_ = &tiles;
    bounds_ = &bounds;
    queries_.begin_round(std::move(queries), tiles, bounds);
  }

 protected:
  using Parts = std::vector<std::function<void()>>;  ///< of a stage, in order

  /// `banks`: of PSUM for transposes; query_tiles: of a panel of queries.
  ForwardStages(Builder& builder, KernelSpec const& spec, int banks, Index query_tiles)
      : builder_(&builder),
        spec_(&spec),
        loads_(builder, spec, banks),
        factors_(logit_factors(spec)),
        queries_(builder, loads_, spec, query_tiles, factors_.query_factor) {}

  KeySection const& section(ForwardUnit const& unit) const { return (*sections_)[unit.section]; }

  /// Engines execute in program order and would otherwise wait for a long run of another stage.
  static void interleave(std::vector<Parts> const& stages) {
    std::size_t const most = std::ranges::max(stages, {}, &Parts::size).size();
    for (std::size_t part = 0; part < most; ++part)
      for (Parts const& parts : stages)
        if (part < parts.size()) parts[part]();
  }

  Builder* builder_;
  KernelSpec const* spec_;
  OperandLoads loads_;
  LogitFactors factors_;
  QueryPanels queries_;
  ForwardState state_;
  std::vector<RowTile> const* tiles_ = nullptr;
  std::vector<KeySection> const* sections_ = nullptr;
  BoundsTiles const* bounds_ = nullptr;
};

}  // namespace annulus::nki
