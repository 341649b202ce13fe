#pragma once
// Writer of forward kernels: finds what fits SBUF, and emits the rounds.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/forward_epilogue.hpp"
#include "annulus/nki/kernels/forward_schedule.hpp"
#include "annulus/nki/kernels/stationary_pipeline.hpp"

namespace annulus::nki {

/// Writes the programs of ForwardKernel.
class ForwardWriter {
 public:
  /// Throws as ForwardKernel's constructor does.
  ForwardWriter(KernelSpec spec, RingMask const& mask, ForwardTuning tuning)
      : spec_(std::move(spec)), mask_(mask, spec_, tuning.least_half), dma_transposed_(tuning.dma_transposed) {
    check_spec(spec_);
    detail::check<UnsupportedError>(dma_transposed_ >= 0 && dma_transposed_ <= 16,
                                    "nki: dma_transposed, which counts of 16 blocks, is ", dma_transposed_,
                                    "; 0 to 16");
    find_budgets();
  }

  Program ring() && { return first_fit(true); }  ///< the program of ForwardKernel::ring
  /// The program of ForwardKernel::step.
  Program step() && {
    detail::check<UnsupportedError>(!spec_.keys_stationary,
                                    "nki: a step kernel with stationary keys; accepted: ring()");
    return first_fit(false);
  }

 private:
  /// The state of a step kernel in HBM: one head per query head of all batch items.
  struct StateTensors {
    HeadRows negated_maximum, sum, accumulator;
  };

  StateTensors declare_state_tensors(Builder& builder, std::string const& prefix, Role role) const {
    auto const tensor = [&](char const* name, Index rows, Index dim) {
      Index const heads = spec_.shape.batch * spec_.shape.query_heads;
      return HeadRows{builder.tensor(prefix + name, {heads, rows, dim}, ElementType::float32, role), 0, rows, dim};
    };
    return {tensor("negated_maximum", tile_rows, spec_.columns()), tensor("sum", tile_rows, spec_.columns()),
            tensor("accumulator", spec_.local_queries, spec_.shape.value_dim)};
  }

  ForwardOutputs declare_outputs(Builder& builder) const {
    ForwardOutputs outputs;
    if (spec_.sinks > 0)
      outputs.sinks = builder.tensor("sinks", {spec_.shape.batch, spec_.shape.query_heads, spec_.sinks},
                                     ElementType::float32, Role::input);
    outputs.output = builder.tensor("output", spec_.output_shape(), spec_.output_type, Role::output);
    if (spec_.training) outputs.lse = builder.tensor("lse", spec_.lse_shape(), spec_.lse_type, Role::output);
    if (spec_.keys_stationary)
      outputs.beyond_range = builder.tensor("beyond_range", spec_.lse_shape(), ElementType::float32, Role::output);
    return outputs;
  }

  /// Estimated bytes per partition; the exact rotation of each tile is known only after the program is written.
  Index sbuf_bytes(SbufPlan const& plan) const {
    Index const element = bytes_of(spec_.type), dim = spec_.shape.value_dim,
                head_chunks = Chunks{spec_.shape.head_dim}.count();
    Index const keys = 2 * head_chunks * plan.section * element,
                values = 2 * detail::ceil_divide(plan.section, tile_rows) * dim * element;
    Index const queries =
        2 * head_chunks * (spec_.keys_stationary ? 4 : ForwardTuning::query_tiles) * tile_rows * element;
    Index const working = plan.group * (spec_.keys_stationary ? 2 * 4 * element : 2 * 4 + 5 * element) + queries,
                small = 16 * 1024;
    Index const of_pairs =
        3 * plan.group * (spec_.bias.given * bytes_of(spec_.bias.type) + (spec_.keep_scale > 0) * 2 * element);
    Index const results = 3 * ForwardEpilogue::batched_tiles * dim * bytes_of(spec_.output_type);
    Index const state = spec_.query_heads_per_item() * mask_->row_tile_count() * (plan.resident ? dim + 2 : 2) * 4 +
                        (plan.resident ? 0 : 15 * dim * 4);
    Index const bounds = std::ssize(mask_->pieces()) * mask_->row_tile_count() * 4 * 4 *
                         (spec_.cores == 2 && spec_.items() % 2 == 1 ? 2 : 1);
    return keys + values + working + of_pairs + results + state + (mask_->form() == BoundsForm::none ? 0 : bounds) +
           small;
  }

  Index budget() const { return hardware_of(spec_.target).limits.sbuf_bytes; }

  /// Lists the SBUF plans, best first: resident accumulators, then long groups, then long sections.
  void find_budgets() {
    if (spec_.keys_stationary) check_stationary(spec_, *mask_);
    Index const longest_group = spec_.keys_stationary ? StationaryPipeline::longest_group : ForwardTuning::group_keys,
                shortest_group = 512;
    Index keys = 0;
    for (RowRange part : mask_->key_parts()) keys += detail::ceil_divide(part.size(), tile_rows) * tile_rows;
    for (bool resident : {true, false})
      for (Index group = longest_group; group >= shortest_group; group /= 2)
        for (Index section = keys;; section = detail::ceil_divide(section / 2, group) * group) {
          SbufPlan const plan{std::min(group, section), section, resident};
          bool const may_spill = !spec_.keys_stationary && !mask_->chooses_halves();
          if (sbuf_bytes(plan) <= budget() && (resident || may_spill)) sbuf_plans_.push_back(plan);
          if (section <= group) break;
        }
    if (sbuf_plans_.empty() && mask_.give_up_halves()) return find_budgets();
    if (sbuf_plans_.empty()) refuse(sbuf_bytes({shortest_group, shortest_group, false}));
  }

  /// The program of the first SBUF plan whose tiles fit; throws ShapeError if none does.
  Program first_fit(bool ring) {
    Index needed = 0;
    for (SbufPlan const& plan : sbuf_plans_) {
      Program program = write(plan, ring);
      needed = sbuf_bytes_of(program);
      if (needed <= budget()) return program;
    }
    if (!mask_.give_up_halves()) refuse(needed);
    sbuf_plans_.clear();
    find_budgets();
    return first_fit(ring);
  }

  [[noreturn]] void refuse(Index needed) const {
    throw ShapeError(detail::message_of("nki: head_dim ", spec_.shape.head_dim, ", value_dim ", spec_.shape.value_dim,
                                        ", ", spec_.local_queries, " queries and ", spec_.local_keys, " keys of ",
                                        name_of(spec_.type), " need ", needed,
                                        " bytes of each SBUF partition at least; ", budget(), " are usable"));
  }

  /// What the rounds of a program share.
  struct Parts {
    SbufPlan const& plan;
    bool ring;
    KernelInputs inputs;
    ForwardOutputs outputs{};                   ///< of a whole ring
    StateTensors before{}, after{};             ///< of a step
    std::optional<ForwardPipeline> pipeline{};  ///< one of these is made
    std::optional<StationaryPipeline> stationary{};
    ForwardState state{};
    std::optional<ForwardEpilogue> epilogue{};  ///< made for the first row tiles that are finished
  };

  Program write(SbufPlan const& plan, bool ring) const {
    Builder builder(!ring                   ? "attention_step_fwd"
                    : spec_.keys_stationary ? "ring_attention_fwd_stationary"
                                            : "ring_attention_fwd",
                    spec_.target, spec_.cores, ring ? spec_.ranks : 1);
    Parts parts{.plan = plan, .ring = ring, .inputs = declare_inputs(builder, spec_, *mask_, false)};
    if (ring) {
      parts.outputs = declare_outputs(builder);
    } else {
      parts.before = declare_state_tensors(builder, "old_", Role::input);
      parts.after = declare_state_tensors(builder, "new_", Role::output);
    }
    if (spec_.keys_stationary)
      parts.stationary.emplace(builder, spec_, *mask_, plan);
    else
      parts.pipeline.emplace(builder, spec_, *mask_, plan, dma_transposed_, parts.inputs);
    parts.state = declare_state(builder, plan.resident);
    for_each_round(builder, spec_, mask_->tile_pieces(),
                   [&](Round const& round) { write_round(builder, parts, round); });
    return std::move(builder).finish();
  }

  void write_round(Builder& builder, Parts& parts, Round const& round) const {
    ForwardState const& state = parts.state;
    for (TileHandle const& tile : {state.negated_maximum, state.sum}) builder.allocate(tile);
    if (state.resident) builder.allocate(state.accumulator);
    std::vector<RowTile> const key_tiles = row_tiles(mask_->key_parts(), false);
    BoundsTiles bounds(builder, *mask_, parts.inputs.mask, round, parts.stationary ? &key_tiles : nullptr);
    parts.ring ? clear(builder, state) : move(builder, state, round, parts.before, true);
    HeadRows const queries = round.in_argument(parts.inputs.q, spec_.queries_by_token);
    if (parts.pipeline) {
      parts.pipeline->begin_round(state, round, bounds, queries);
      write_steps(builder, parts, round, *parts.pipeline, round.tiles, bounds, [](RowRange range) { return range; });
    } else {
      std::vector<QueryBlock> const blocks = query_blocks(round.tiles, *mask_);
      std::vector<RowTile> rows;
      for (QueryBlock const& block : blocks) rows.push_back(block.rows);
      parts.stationary->begin_round(state, round.tiles, blocks, bounds, queries);
      write_steps(builder, parts, round, *parts.stationary, rows, bounds, [&](RowRange range) {
        QueryBlock const& last = nth(blocks, range.end - 1);
        return RowRange{nth(blocks, range.begin).first_tile, last.first_tile + last.count};
      });
    }
    if (!parts.ring) move(builder, state, round, parts.after, false);
  }

  /// Writes the steps of a round. `tiles`: the rows of the units; tiles_of(range): the row tiles of a range of them.
  template <class Stages, class TilesOf>
  void write_steps(Builder& builder, Parts& parts, Round const& round, Stages& stages,
                   std::vector<RowTile> const& tiles, BoundsTiles& bounds, TilesOf&& tiles_of) const {
    ForwardSchedule steps(spec_, *mask_, tiles, parts.plan, builder.program().ranks);
    std::vector<RotatingRows> const operands{{round, "k", parts.inputs.k, steps.steps(), spec_.keys_by_token},
                                             {round, "v", parts.inputs.v, steps.steps()}};
    steps.note_work(builder, tiles, {round, stages.tiles_of_slots, stages.slots_made(), spec_.query_heads_per_item()});
    steps.write(builder, stages, operands, bounds, [&](Index head, RowRange range, bool drained) {
      if (!parts.ring) return;
      if (!parts.epilogue) parts.epilogue.emplace(builder, spec_, parts.state, parts.outputs);
      parts.epilogue->finish(round, head, tiles_of(range), drained);
    });
  }

  ForwardState declare_state(Builder& builder, bool resident) const {
    Index const heads = spec_.query_heads_per_item(), columns = heads * mask_->row_tile_count(),
                queries = spec_.local_queries, dim = spec_.shape.value_dim;
    auto const running = [&](char const* name, Index elements) {
      return builder.declare(name, Memory::sbuf, tile_rows, elements, ElementType::float32);
    };
    ForwardState state;
    state.resident = resident;
    state.pitch = dim + spec_.keys_stationary;
    state.negated_maximum = running("running_negated_maximum", columns);
    state.sum = running("running_sum", columns);
    if (resident)
      state.accumulator = running("running_accumulator", columns * state.pitch);
    else
      state.spilled = {builder.tensor("spilled_accumulator", {heads, queries, dim}, ElementType::float32,
                                      Role::internal, Memory::private_hbm),
                       0, queries, dim};
    return state;
  }

  void clear(Builder& builder, ForwardState const& state) const {
    builder.emit(Memset{state.negated_maximum.whole(), empty_negated_maximum, Engine::gpsimd});
    builder.emit(Memset{state.sum.whole(), 0.0f, Engine::gpsimd});
    if (state.resident) {
      builder.emit(Memset{state.accumulator.whole(), 0.0f, Engine::gpsimd});
      return;
    }
    Index const dim = spec_.shape.value_dim, rows = spec_.query_heads_per_item() * spec_.local_queries;
    TileHandle const zeros = builder.tile("zeros", Memory::sbuf, tile_rows, dim, ElementType::float32);
    builder.emit(Memset{zeros.whole(), 0.0f, Engine::gpsimd});
    emit_rolled(builder, "row_block", 0, detail::ceil_divide(rows, tile_rows), [&](Index block) {
      Index const count = std::min(tile_rows, rows - block * tile_rows);
      builder.emit(DmaCopy{state.spilled.block(block * tile_rows, count), zeros.part(0, count, 0, dim)});
    });
  }

  /// Moves the state of a round between HBM and SBUF, or its accumulators in HBM.
  void move(Builder& builder, ForwardState const& state, Round const& round, StateTensors const& hbm, bool in) const {
    Affine const first_head = round.item * spec_.query_heads_per_item();
    move_columns(builder, state.negated_maximum, hbm.negated_maximum.head(first_head), round, in);
    move_columns(builder, state.sum, hbm.sum.head(first_head), round, in);
    move_accumulator(builder, state, hbm.accumulator.head(first_head), round, in);
  }

  /// Copies columns of all heads of the round between HBM and SBUF. Places beyond the last row are zeroed.
  void move_columns(Builder& builder, TileHandle const& columns, HeadRows const& hbm, Round const& round,
                    bool in) const {
    Index const count = std::ssize(round.tiles), heads = spec_.query_heads_per_item();
    if (in) builder.emit(Memset{columns.whole(), 0.0f, Engine::gpsimd});
    for (Index head = 0; head < heads; ++head)
      in ? load_columns(builder, hbm.head(head), round.tiles, columns, head * count)
         : store_columns(builder, columns, round.tiles, hbm.head(head), head * count);
    if (in || spec_.local_queries % tile_rows == 0) return;
    std::string const name = "padding_" + std::to_string(columns.buffer) + round.suffix();
    pad_columns(builder, builder.tile(name, Memory::sbuf, tile_rows, 1, ElementType::float32), hbm, heads,
                spec_.local_queries, round.shared);
  }

  void move_accumulator(Builder& builder, ForwardState const& state, HeadRows const& hbm, Round const& round,
                        bool in) const {
    Index const tiles = std::ssize(round.tiles);
    for (Index head = 0; head < spec_.query_heads_per_item(); ++head)
      emit_rolled(builder, "row_tile", 0, tiles, [&](Index i) {
        move_accumulator(builder, state, hbm, nth(round.tiles, i), head, head * tiles + i, in);
      });
  }

  /// The same for a row tile of a head, of which the accumulator is number `place` of those in SBUF.
  void move_accumulator(Builder& builder, ForwardState const& state, HeadRows const& hbm, RowTile const& tile,
                        Index head, Index place, bool in) const {
    auto const move = [&](Index first, Index rows) {
      Access const far = hbm.head(head).block(tile.begin + first, rows);
      Access const near = state.resident ? state.accumulator.part(first, rows, place * hbm.dim, hbm.dim)
                                         : state.spilled.head(head).block(tile.begin + first, rows);
      builder.emit(in ? DmaCopy{near, far} : DmaCopy{far, near});
    };
    in ? move(0, tile.count) : store_once(builder, tile, move);
  }

  KernelSpec spec_;
  FittingMask mask_;
  Index dma_transposed_;
  std::vector<SbufPlan> sbuf_plans_;
};

}  // namespace annulus::nki
