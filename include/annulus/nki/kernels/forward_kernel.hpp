#pragma once
// Forward attention kernels: the whole SPMD ring, and one step that folds an owner's keys into a running state.

#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/kernels/forward_finish.hpp"
#include "annulus/nki/kernels/ring_schedule.hpp"
#include "annulus/nki/kernels/rotating_buffers.hpp"
#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// Builds forward programs. `mask` must outlive the kernel; it covers all ranks for ring(), one rank for step().
class ForwardKernel {
 public:
  /// Throws UnsupportedError if the spec is not supported, ShapeError if its extents are invalid or do not fit SBUF.
  ForwardKernel(KernelSpec spec, RingMask const& mask, ForwardTuning tuning = {})
      : spec_(std::move(spec)), mask_(&mask), tuning_(tuning) {
    check_spec(spec_);
    check_tuning(tuning_);
    find_budgets();
  }

  /// The kernel of a whole ring. Inputs: q [batch, query_heads, head_dim, rows] (queries_by_token: [.., rows,
  /// head_dim]), k [batch, kv_heads, head_dim, keys] (keys_by_token: [.., keys, head_dim]), v [batch, kv_heads, keys,
  /// value_dim], the mask input if there is one, and sink logits `sinks` [batch, query_heads, n], the same for each
  /// batch item. Outputs: output [batch, query_heads, rows, value_dim] and, in training, lse [batch, query_heads, 128,
  /// columns], row c * 128 + p at (p, c), natural logarithm, 0 beyond the last row. Throws ShapeError if the mask
  /// does not match the spec or SBUF is exceeded.
  Program ring() && {
    return first_fit([this] { return write_ring(); });
  }

  /// The kernel of one step: the keys of one owner, no collectives. Inputs: q, k, v and the mask input as for ring(),
  /// and the running state, float32: old_negated_maximum and old_sum [batch * query_heads, 128, columns],
  /// old_accumulator [batch * query_heads, rows, value_dim]. Outputs: new_negated_maximum, new_sum, new_accumulator. A
  /// row that has seen no key has negated maximum 1e30, sum 0 and an accumulator of zeros. Throws as ring() does.
  Program step() && {
    return first_fit([this] { return write_step(); });
  }

 private:
  /// A partition of SBUF.
  struct SbufPlan {
    Index group = 0;       ///< keys between two corrections of the accumulator
    Index section = 0;     ///< keys that are in SBUF together
    bool resident = true;  ///< accumulators stay in SBUF
  };

  Program write_ring() {
    Builder builder("ring_attention_fwd", spec_.target, spec_.cores, spec_.ranks);
    inputs_ = declare_inputs(builder, spec_, *mask_, false);
    ForwardOutputs outputs;
    auto const& shape = spec_.shape;
    if (spec_.sinks > 0)
      outputs.sinks =
          builder.tensor("sinks", {shape.batch, shape.query_heads, spec_.sinks}, ElementType::float32, Role::input);
    outputs.output = builder.tensor("output", {shape.batch, shape.query_heads, spec_.local_queries, shape.value_dim},
                                    spec_.output_type, Role::output);
    if (spec_.training)
      outputs.lse = builder.tensor("lse", {shape.batch, shape.query_heads, tile_rows, spec_.columns()}, spec_.lse_type,
                                   Role::output);
    ForwardFinish finish(builder, spec_);
    write(
        builder, [&](ForwardState& state, Round const&) { clear(builder, state); },
        [&](ForwardState& state, Round const& round, Index head, RowRange tiles, bool drained) {
          finish.finish(state, round.tiles, round.item, head, tiles, round.kind.shared, outputs, drained);
        },
        [](ForwardState&, Round const&) {});
    return std::move(builder).finish();
  }

  Program write_step() {
    Builder builder("attention_step_fwd", spec_.target, spec_.cores, 1);
    inputs_ = declare_inputs(builder, spec_, *mask_, false);
    // Before and after the step.
    struct StateTensors {
      TensorHandle maximum, sum, accumulator;
    };
    auto const declare = [&](std::string const& prefix, Role role) {
      Index const heads = spec_.shape.batch * spec_.shape.query_heads;
      auto const tensor = [&](char const* name, Index rows, Index elements) {
        return builder.tensor(prefix + name, {heads, rows, elements}, ElementType::float32, role);
      };
      TensorHandle maximum = tensor("negated_maximum", tile_rows, spec_.columns());
      TensorHandle sum = tensor("sum", tile_rows, spec_.columns());
      return StateTensors{std::move(maximum), std::move(sum),
                          tensor("accumulator", spec_.local_queries, spec_.shape.value_dim)};
    };
    StateTensors const before = declare("old_", Role::input), after = declare("new_", Role::output);
    auto const move = [&](ForwardState& state, Round const& round, StateTensors const& hbm, bool in) {
      move_columns(builder, state.negated_maximum, hbm.maximum, round, in);
      move_columns(builder, state.sum, hbm.sum, round, in);
      move_accumulator(builder, state, hbm.accumulator, round, in);
    };
    write(
        builder, [&](ForwardState& state, Round const& round) { move(state, round, before, true); },
        [](ForwardState&, Round const&, Index, RowRange, bool) {},
        [&](ForwardState& state, Round const& round) { move(state, round, after, false); });
    return std::move(builder).finish();
  }

  /// Estimated bytes per partition; the exact rotation of each tile is known only after the program is written.
  Index sbuf_bytes(SbufPlan const& plan) const {
    Index const element = bytes_of(spec_.type), dim = spec_.shape.value_dim,
                head_chunks = Chunks{spec_.shape.head_dim}.count();
    Index const keys = 2 * head_chunks * plan.section * element,
                values = 2 * ceil_divide(plan.section, tile_rows) * dim * element;
    Index const queries = 2 * head_chunks * tuning_.query_tiles * tile_rows * element;
    Index const working = plan.group * (2 * 4 + 5 * element) + queries, small = 16 * 1024;
    Index const results = 3 * ForwardFinish::batched_tiles * dim * bytes_of(spec_.output_type);
    Index const state = spec_.query_heads_per_item() * spec_.columns() * (plan.resident ? dim + 2 : 2) * 4 +
                        (plan.resident ? 0 : 15 * dim * 4);
    Index const bounds =
        std::ssize(mask_->pieces()) * spec_.columns() * 4 * 4 * (spec_.cores == 2 && spec_.items() % 2 == 1 ? 2 : 1);
    return keys + values + working + results + state + (mask_->form() == BoundsForm::none ? 0 : bounds) + small;
  }

  /// Tuning with the group size of the current SBUF plan.
  ForwardTuning tuning() const {
    ForwardTuning tuned = tuning_;
    tuned.group_keys = sbuf_plan_.group;
    return tuned;
  }

  Index budget() const { return hardware_of(spec_.target).limits.sbuf_bytes; }

  /// Lists the SBUF plans, best first: resident accumulators, then long groups, then long sections.
  void find_budgets() {
    Index const keys = ceil_divide(spec_.local_keys, tile_rows) * tile_rows,
                shortest_group = std::min(tuning_.group_keys, Index{512});
    for (bool resident : {true, false})
      for (Index group = tuning_.group_keys; group >= shortest_group; group /= 2)
        for (Index section = keys;; section = ceil_divide(section / 2, group) * group) {
          SbufPlan const plan{std::min(group, section), section, resident};
          if (sbuf_bytes(plan) <= budget()) sbuf_plans_.push_back(plan);
          if (section <= group) break;
        }
    if (sbuf_plans_.empty()) refuse(sbuf_bytes({shortest_group, shortest_group, false}));
    sbuf_plan_ = sbuf_plans_.front();
  }

  /// The program of the first SBUF plan whose tiles fit; throws ShapeError if none does.
  template <class Write>
  Program first_fit(Write&& write_program) {
    Index needed = 0;
    for (SbufPlan const& plan : sbuf_plans_) {
      sbuf_plan_ = plan;
      Program program = write_program();
      needed = 0;
      for (Buffer const& buffer : program.buffers)
        if (buffer.memory == Memory::sbuf) needed += bytes_per_partition(buffer);
      if (needed <= budget()) return program;
    }
    refuse(needed);
  }

  [[noreturn]] void refuse(Index needed) const {
    throw ShapeError(message_of("nki: head_dim ", spec_.shape.head_dim, ", value_dim ", spec_.shape.value_dim, ", ",
                                spec_.local_queries, " queries and ", spec_.local_keys, " keys of ",
                                name_of(spec_.type), " need ", needed, " bytes of each SBUF partition at least; ",
                                budget(), " are usable"));
  }

  template <class Begin, class Finish, class End>
  void write(Builder& builder, Begin&& begin, Finish&& finish, End&& end) {
    OperandLoads loads(builder, spec_);
    ForwardUnits units(builder, spec_, tuning(), loads, sbuf_plan_.section);
    ForwardState state;
    Index const state_columns = spec_.query_heads_per_item() * spec_.columns(), dim = spec_.shape.value_dim;
    state.resident = sbuf_plan_.resident;
    state.negated_maximum =
        builder.declare("running_negated_maximum", Memory::sbuf, tile_rows, state_columns, ElementType::float32);
    state.sum = builder.declare("running_sum", Memory::sbuf, tile_rows, state_columns, ElementType::float32);
    if (sbuf_plan_.resident)
      state.accumulator =
          builder.declare("running_accumulator", Memory::sbuf, tile_rows, state_columns * dim, ElementType::float32);
    else
      state.spilled = builder.tensor("spilled_accumulator", {spec_.query_heads_per_item(), spec_.local_queries, dim},
                                     ElementType::float32, Role::internal, Memory::private_hbm);

    for_each_round(builder, spec_, [&](Round const& round) {
      for (TileHandle const& tile : {state.negated_maximum, state.sum}) builder.allocate(tile);
      if (sbuf_plan_.resident) builder.allocate(state.accumulator);
      BoundsTiles bounds(builder, *mask_, inputs_.mask, round.tiles, round.bounds_name);
      bounds.prepare();
      begin(state, round);
      units.begin_round(
          state, round.tiles, bounds,
          {inputs_.q, round.item * (spec_.query_heads_per_item() * spec_.local_queries * spec_.shape.head_dim),
           spec_.local_queries, spec_.shape.head_dim, spec_.queries_by_token});
      ring(builder, units, bounds, round,
           [&](Index head, RowRange tiles, bool drained) { finish(state, round, head, tiles, drained); });
      end(state, round);
    });
  }

  template <class Finish>
  void ring(Builder& builder, ForwardUnits& units, BoundsTiles& bounds, Round const& round, Finish&& finish) {
    RingSchedule schedule(spec_, *mask_, round.tiles, sbuf_plan_.section, tuning(), builder.program().ranks);
    int const steps = schedule.steps(), owner = builder.program().ranks > 1 ? builder.make_register() : -1;
    Index const dim = spec_.shape.head_dim, value_dim = spec_.shape.value_dim;
    RotatingBuffers travel(builder, spec_, round,
                           {{"k", inputs_.k, 1, spec_.local_keys, dim, spec_.type, spec_.keys_by_token},
                            {"v", inputs_.v, 1, spec_.local_keys, value_dim, spec_.type}},
                           steps);
    std::vector<KeySection>& sections = schedule.sections();
    Index bounds_number = -1;
    auto const load = [&](std::size_t index, Index part, Index parts) {
      KeySection& section = sections[index];
      int const step = schedule.step_of(index);
      if (part == 0 && bounds.needed() && (index == 0 || schedule.step_of(index - 1) != step)) {
        if (owner >= 0) builder.emit(ProcessingRank{owner, step, 0});
        bounds_number = bounds.load(owner, batch_of(spec_, *mask_, round.item));
      }
      section.bounds_number = bounds_number;
      units.load_section(section, travel.head(0, step), travel.head(1, step), part, parts);
    };
    auto const copy = [&](Index part, Index parts) {
      if (part == 0) travel.before_filling();
      Index const first = spec_.local_keys * part / parts, count = spec_.local_keys * (part + 1) / parts - first;
      for (std::size_t operand : {0, 1}) travel.fill(operand, first, count);
    };
    schedule.write(
        builder, units, copy, [&](int step, Index operand) { travel.send(step, static_cast<std::size_t>(operand)); },
        load, finish);
  }

  void clear(Builder& builder, ForwardState& state) {
    builder.emit(Memset{state.negated_maximum.whole(), empty_negated_maximum, Engine::gpsimd});
    builder.emit(Memset{state.sum.whole(), 0.0f, Engine::gpsimd});
    if (state.resident) {
      builder.emit(Memset{state.accumulator.whole(), 0.0f, Engine::gpsimd});
      return;
    }
    Index const dim = spec_.shape.value_dim, rows = spec_.query_heads_per_item() * spec_.local_queries;
    TileHandle const zeros = builder.tile("zeros", Memory::sbuf, tile_rows, dim, ElementType::float32);
    builder.emit(Memset{zeros.whole(), 0.0f, Engine::gpsimd});
    std::vector<Body> bodies;
    for (Index begin = 0; begin < rows; begin += tile_rows)
      bodies.push_back(builder.collect([&] {
        Index const count = std::min(tile_rows, rows - begin);
        builder.emit(DmaCopy{rows_at(state.spilled, begin * dim, count, dim), zeros.part(0, count, 0, dim)});
      }));
    append_rolled(builder, "row_block", std::move(bodies));
  }

  /// Copies columns of all heads of the round between HBM and SBUF. Places beyond the last row are zeroed.
  void move_columns(Builder& builder, TileHandle const& columns_tile, TensorHandle const& tensor, Round const& round,
                    bool in) {
    Index const count = std::ssize(round.tiles), heads = spec_.query_heads_per_item();
    auto const far = [&](Index head) {
      return ColumnSource{tensor, (round.item * heads + head) * (tile_rows * spec_.columns()), spec_.columns()};
    };
    if (in) builder.emit(Memset{columns_tile.whole(), 0.0f, Engine::gpsimd});
    for (Index head = 0; head < heads; ++head)
      in ? load_columns(builder, far(head), round.tiles, columns_tile, head * count)
         : store_columns(builder, columns_tile, head * count, round.tiles, far(head));
    if (in || spec_.local_queries % tile_rows == 0) return;
    TileHandle const padding =
        builder.tile(columns_tile.buffer == 0
                         ? "padding"
                         : "padding_" + std::to_string(columns_tile.buffer) + (round.kind.shared ? "_shared" : ""),
                     Memory::sbuf, tile_rows, 1, ElementType::float32);
    builder.emit(Memset{padding.whole(), 0.0f, Engine::gpsimd});
    for (Index head = 0; head < heads; ++head)
      pad_columns(builder, far(head), spec_.local_queries, padding, round.kind.shared);
  }

  void move_accumulator(Builder& builder, ForwardState& state, TensorHandle const& tensor, Round const& round,
                        bool in) {
    Index const dim = spec_.shape.value_dim, queries = spec_.local_queries, heads = spec_.query_heads_per_item();
    for (Index head = 0; head < heads; ++head) {
      std::vector<Body> bodies;
      for (std::size_t i = 0; i < round.tiles.size(); ++i)
        bodies.push_back(builder.collect([&] {
          RowTile const& tile = round.tiles[i];
          Index const column = head * std::ssize(round.tiles) + static_cast<Index>(i);
          auto const move = [&](Index first, Index rows) {
            Affine const begin = (tile.begin + first + head * queries) * dim;
            Access const far = rows_at(tensor, begin + round.item * (heads * queries * dim), rows, dim);
            Access const near = state.resident ? state.accumulator.part(first, rows, column * dim, dim)
                                               : rows_at(state.spilled, begin, rows, dim);
            builder.emit(in ? DmaCopy{near, far} : DmaCopy{far, near});
          };
          in ? move(0, tile.count) : store_once(builder, tile, move);
        }));
      append_rolled(builder, "row_tile", std::move(bodies));
    }
  }

  KernelSpec spec_;
  RingMask const* mask_;
  ForwardTuning tuning_;
  std::vector<SbufPlan> sbuf_plans_;
  SbufPlan sbuf_plan_;
  KernelInputs inputs_;
};

}  // namespace annulus::nki
