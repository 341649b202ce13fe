#pragma once
// Backward attention kernels: the whole SPMD ring, and one step that adds an owner's contribution to the gradients.

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/backward_rows.hpp"
#include "annulus/nki/kernels/backward_units.hpp"
#include "annulus/nki/kernels/rotating_buffers.hpp"

namespace annulus::nki {

/// Inputs and outputs of a backward kernel: either output or delta; old_dq, old_dk, old_dv in a step kernel only.
struct BackwardTensors : KernelInputs {
  TensorHandle dout, output, lse, delta;
  TensorHandle dq, dk, dv, old_dq, old_dk, old_dv;
};

/// Tiles and loaders that the rounds of a kernel share, and the extents of its sections and key tiles.
struct BackwardParts {
  Transposer transposer;
  OperandLoads loads;
  BackwardUnits units;
  GradientRows gradients;
  RowStatistics numbers;
  Index section_tiles, key_rows;

  BackwardParts(Builder& builder, KernelSpec const& spec, Index tiles_of_section, Index rows_of_key_tile)
      : transposer(builder, spec.type),
        loads(builder, transposer, spec),
        units(builder, spec, transposer, loads, tiles_of_section, rows_of_key_tile),
        gradients(builder, spec.widest(), rows_of_key_tile / tile_rows),
        numbers(builder, spec),
        section_tiles(tiles_of_section),
        key_rows(rows_of_key_tile) {}
};

/// Writes one round to a program.
class BackwardRound {
 public:
  BackwardRound(Builder& builder, KernelSpec const& spec, RingMask const& mask, BackwardTensors const& tensors,
                BackwardParts& parts, Round round)
      : builder_(&builder),
        spec_(&spec),
        mask_(&mask),
        tensors_(&tensors),
        parts_(&parts),
        round_(std::move(round)),
        adds_(tensors.old_dq.buffer >= 0),
        queries_travel_(spec.travels == RotatingSide::queries),
        tiles_(row_tiles(spec.local_queries, round_.kind.shared)),
        own_(backward_step(spec, mask, tiles_, parts.section_tiles, parts.key_rows, true)),
        others_(backward_step(spec, mask, tiles_, parts.section_tiles, parts.key_rows, false)) {
    RoundKind const kind = round_.kind;
    int const ranks = builder.program().ranks;
    steps_ = ranks > 1 && !others_.units.empty() ? ranks : 1;
    std::vector<RotatingBuffers::Operand> travelling{{"k", key_size(0), spec.type}, {"v", key_size(1), spec.type}};
    if (queries_travel_)
      travelling = {{"q", query_size(spec.shape.head_dim), spec.type},
                    {"dout", query_size(spec.shape.value_dim), spec.type},
                    {"lse", heads() * column_size(), ElementType::float32},
                    {"delta", heads() * column_size(), ElementType::float32}};
    travel_ = RotatingBuffers(builder, spec, kind, std::move(travelling), steps_);
    if (queries_travel_)
      carried_[0] = CarriedGradient(builder, spec, kind, "dq", query_size(spec.shape.head_dim), steps_);
    else
      for (std::size_t side : {0, 1})
        carried_[side] = CarriedGradient(builder, spec, kind, side == 0 ? "dk" : "dv", key_size(side), steps_);
    // Cores that share an item sum the gradients of keys separately; end_keys() adds the two parts.
    for (std::size_t side : {0, 1})
      if (kind.shared)
        key_parts_[side] =
            builder.tensor(side == 0 ? "dk_parts" : "dv_parts", {2, key_size(side)}, ElementType::float32);
    if (tensors.delta.buffer < 0 && !queries_carried())
      own_delta_ = builder.tensor("own_delta" + kind.suffix(), {kind.parts(spec), heads() * column_size()},
                                  ElementType::float32);
  }

  /// Writes all ring steps.
  void write() {
    BoundsTiles bounds(*builder_, *mask_, tensors_->mask, tiles_, round_.bounds_name);
    prepare(bounds);
    int const owner = builder_->program().ranks > 1 ? builder_->make_register() : -1;
    touched_keys_.assign(static_cast<std::size_t>(ceil_divide(spec_->local_keys, parts_->key_rows)),
                         adds_ && !round_.kind.shared);
    Roller steps(*builder_, "steps", 2);
    for (int step = 0; step < steps_; ++step)
      steps.add(builder_->collect([&] {
        builder_->section("step", step);
        travel_.send(step);
        for (std::size_t i = 0; i < carried_count(); ++i) carried_[i].begin_step(step);
        if (owner >= 0 && bounds.needed()) builder_->emit(ProcessingRank{owner, step, 0});
        Index const bounds_number = bounds.needed() ? bounds.load(owner, batch_of(*spec_, *mask_, round_.item)) : -1;
        parts_->units.begin_step(tiles_, bounds, bounds_number, parts_->numbers.negated_lse(), parts_->numbers.delta());
        if (keys_carried()) begin_keys(step);
        work(step);
        if (keys_carried() || step + 1 == steps_) end_keys(step);
        for (std::size_t i = 0; i < carried_count(); ++i) carried_[i].send(step);
      }));
    steps.flush();
    if (steps_ > 1) return_gradients();
  }

 private:
  Index heads() const { return spec_->query_heads_per_item(); }
  Index column_size() const { return tile_rows * spec_->columns(); }
  Index query_size(Index dim) const { return heads() * spec_->local_queries * dim; }
  Index key_dim(std::size_t side) const { return side == 0 ? spec_->shape.head_dim : spec_->shape.value_dim; }
  Index key_size(std::size_t side) const { return spec_->local_keys * key_dim(side); }
  bool queries_carried() const { return queries_travel_ && steps_ > 1; }
  bool keys_carried() const { return !queries_travel_ && steps_ > 1; }
  std::size_t carried_count() const { return queries_travel_ ? 1 : 2; }

  // Location of operands at a step: in the kernel's arguments, or in the buffers that rotate.

  std::pair<TensorHandle, Affine> place(bool travels, std::size_t operand, int step, TensorHandle const& argument,
                                        Index item_size) const {
    if (travels && step > 0) return {travel_.at(operand, step), travel_.offset(operand)};
    return {argument, round_.item * item_size};
  }
  HeadSource query_rows(int step, std::size_t operand, Index head) const {
    Index const dim = key_dim(operand), rows = spec_->local_queries;
    auto const [tensor, offset] =
        place(queries_travel_, operand, step, operand == 0 ? tensors_->q : tensors_->dout, query_size(dim));
    return {tensor, offset + head * rows * dim, rows, dim, operand == 0 ? spec_->queries_by_token : true};
  }
  HeadSource key_rows(int step, std::size_t side) const {
    auto const [tensor, offset] =
        place(!queries_travel_, side, step, side == 0 ? tensors_->k : tensors_->v, key_size(side));
    return {tensor, offset, spec_->local_keys, key_dim(side), side == 0 ? spec_->keys_by_token : true};
  }
  ColumnSource lse(int step, Index head) const {
    auto const [tensor, offset] = place(queries_travel_, 2, step, tensors_->lse, heads() * column_size());
    return {tensor, offset + head * column_size(), spec_->columns()};
  }
  ColumnSource delta(int step, Index head) const {
    if (queries_carried()) return {travel_.at(3, step), travel_.offset(3) + head * column_size(), spec_->columns()};
    if (tensors_->delta.buffer >= 0)
      return {tensors_->delta, round_.item * (heads() * column_size()) + head * column_size(), spec_->columns()};
    return {own_delta_, round_.kind.part(*spec_) * (heads() * column_size()) + head * column_size(), spec_->columns()};
  }

  // Destinations of gradients.

  GradientTarget query_target(int step, Index head) const {
    Index const rows = spec_->local_queries, dim = spec_->shape.head_dim;
    if (queries_carried()) return {carried_[0].target(step), carried_[0].offset() + head * rows * dim, rows, dim};
    return {tensors_->dq, round_.item * query_size(dim) + head * rows * dim, rows, dim};
  }
  GradientTarget key_total(int step, std::size_t side) const {
    if (keys_carried()) return {carried_[side].target(step), carried_[side].offset(), spec_->local_keys, key_dim(side)};
    return {side == 0 ? tensors_->dk : tensors_->dv, round_.item * key_size(side), spec_->local_keys, key_dim(side)};
  }
  GradientTarget key_part(std::size_t side, Affine const& core) const {
    return {key_parts_[side], core * key_size(side), spec_->local_keys, key_dim(side)};
  }
  GradientTarget key_target(int step, std::size_t side) const {
    return round_.kind.shared ? key_part(side, Affine::of(core_variable)) : key_total(step, side);
  }

  void prepare(BoundsTiles& bounds) {
    if (adds_) copy_old();
    bounds.prepare();
    travel_.before_filling();
    if (tensors_->delta.buffer < 0) {
      parts_->numbers.write_delta(tensors_->dout, tensors_->output, round_.item, round_.kind, tiles_,
                                  queries_carried() ? travel_.at(3, 0) : own_delta_);
      // A row that both cores compute is stored by only one of them.
      if (round_.kind.shared && !queries_carried()) builder_->emit(CoreBarrier{own_delta_.whole()});
    }
    if (queries_travel_) {
      for (std::size_t operand : {0, 1})
        travel_.fill(operand, operand == 0 ? tensors_->q : tensors_->dout, round_.item * query_size(key_dim(operand)),
                     key_dim(operand), 0, heads() * spec_->local_queries);
      travel_.fill(2, tensors_->lse, round_.item * (heads() * column_size()), spec_->columns(), 0, heads() * tile_rows);
    } else {
      for (std::size_t side : {0, 1})
        travel_.fill(side, side == 0 ? tensors_->k : tensors_->v, round_.item * key_size(side), key_dim(side), 0,
                     spec_->local_keys);
    }
  }

  void begin_keys(int step) {
    std::ranges::fill(touched_keys_, false);
    // The other core may still be reading the parts of the previous step.
    if (round_.kind.shared && step > 0) synchronize_parts();
  }

  /// Clears the gradients of keys that no unit touched, and adds up the parts of cores that share an item.
  void end_keys(int step) {
    for (std::size_t i = 0; i < touched_keys_.size(); ++i) {
      if (touched_keys_[i]) continue;
      Index const begin = static_cast<Index>(i) * parts_->key_rows,
                  count = std::min(parts_->key_rows, spec_->local_keys - begin);
      for (std::size_t side : {0, 1}) parts_->gradients.clear(key_target(step, side), begin, count);
    }
    if (!round_.kind.shared) return;
    synchronize_parts();
    for (std::size_t side : {0, 1})
      parts_->gradients.join(key_total(step, side), key_part(side, 0), key_part(side, 1), adds_);
  }

  void synchronize_parts() {
    for (TensorHandle const& part : key_parts_) builder_->emit(CoreBarrier{part.whole()});
  }

  void work(int number) {
    BackwardStep step = number == 0 ? own_ : others_;
    bool const query_gradients_add = !queries_carried() && (adds_ || number > 0);
    auto& units = parts_->units;
    std::size_t unit = 0, visit = 0;
    Index numbers = -1;
    for (std::size_t s = 0; s < step.sections.size(); ++s) {
      QuerySection& section = step.sections[s];
      if (s == 0 || step.sections[s - 1].head != section.head)
        numbers = parts_->numbers.load(tiles_, lse(number, section.head), delta(number, section.head));
      section.numbers = numbers;
      std::size_t unit_end = unit, visit_end = visit;
      for (; unit_end < step.units.size() && step.units[unit_end].section == s; ++unit_end)
        visit_end = step.units[unit_end].key_tile + 1;
      if (unit == unit_end && query_gradients_add) continue;
      units.load_section(section, query_rows(number, 0, section.head), query_rows(number, 1, section.head));
      auto const load_keys = [&](std::size_t place) {
        if (place < visit_end) units.load_keys(step.key_tiles[place], key_rows(number, 0), key_rows(number, 1));
      };
      load_keys(visit);
      BackwardUnit const* before = nullptr;
      auto const advance = [&](BackwardUnit const* next) {
        units.slot(next, before, step.sections, step.key_tiles);
        if (before && before->last) store_keys(step, before->key_tile, number);
        before = next;
      };
      std::vector<Body> visits;
      for (; visit < visit_end; ++visit)
        visits.push_back(builder_->collect([&] {
          load_keys(visit + 1);
          std::vector<Body> slots;
          for (; unit < unit_end && step.units[unit].key_tile == visit; ++unit)
            slots.push_back(builder_->collect([&] { advance(&step.units[unit]); }));
          append_rolled(*builder_, "query_tile", std::move(slots));
        }));
      append_rolled(*builder_, "key_tile", std::move(visits));
      advance(nullptr);
      std::vector<Body> rows;
      for (std::size_t tile = section.first_tile; tile < section.last_tile; ++tile)
        rows.push_back(builder_->collect([&] {
          parts_->gradients.store(query_target(number, section.head), tiles_[tile], units.query_gradient(section, tile),
                                  query_gradients_add);
        }));
      append_rolled(*builder_, "row_tile", std::move(rows));
    }
  }

  void store_keys(BackwardStep const& step, std::size_t visit, int number) {
    KeyTile const& keys = step.key_tiles[visit];
    char& touched = touched_keys_[step.key_tile_of_rows[visit]];
    auto const [dk, dv] = parts_->units.key_gradients(keys);
    parts_->gradients.store(key_target(number, 0), keys.rows.begin, keys.rows.size(), dk, touched);
    parts_->gradients.store(key_target(number, 1), keys.rows.begin, keys.rows.size(), dv, touched);
    touched = true;
  }

  /// Copies a gradient of the item from one tensor to another; cores that share the item copy half each.
  void copy_item(TensorHandle const& from, Affine const& from_offset, TensorHandle const& to, Index rows, Index dim) {
    auto const copy = [&](Index first, Index count) {
      builder_->emit(DmaCopy{rows_at(to, round_.item * (rows * dim) + first * dim, count, dim),
                             rows_at(from, from_offset + first * dim, count, dim)});
    };
    if (!round_.kind.shared) {
      copy(0, rows);
      return;
    }
    Index const half = ceil_divide(rows, 2);
    builder_->on_core(0, [&] { copy(0, half); });
    if (rows > half) builder_->on_core(1, [&] { copy(half, rows - half); });
  }

  void copy_old() {
    auto const copy = [&](TensorHandle const& from, TensorHandle const& to, Index rows, Index dim) {
      copy_item(from, round_.item * (rows * dim), to, rows, dim);
      if (round_.kind.shared) builder_->emit(CoreBarrier{to.whole()});
    };
    copy(tensors_->old_dq, tensors_->dq, heads() * spec_->local_queries, spec_->shape.head_dim);
    copy(tensors_->old_dk, tensors_->dk, spec_->local_keys, spec_->shape.head_dim);
    copy(tensors_->old_dv, tensors_->dv, spec_->local_keys, spec_->shape.value_dim);
  }

  void return_gradients() {
    if (queries_travel_)
      copy_item(carried_[0].home(), carried_[0].offset(), tensors_->dq, heads() * spec_->local_queries,
                spec_->shape.head_dim);
    else
      for (std::size_t side : {0, 1})
        copy_item(carried_[side].home(), carried_[side].offset(), side == 0 ? tensors_->dk : tensors_->dv,
                  spec_->local_keys, key_dim(side));
  }

  Builder* builder_;
  KernelSpec const* spec_;
  RingMask const* mask_;
  BackwardTensors const* tensors_;
  BackwardParts* parts_;
  Round round_;
  bool adds_, queries_travel_;
  std::vector<RowTile> tiles_;
  BackwardStep own_, others_;
  int steps_ = 1;
  RotatingBuffers travel_;
  std::array<CarriedGradient, 2> carried_;
  std::array<TensorHandle, 2> key_parts_;
  TensorHandle own_delta_;
  std::vector<char> touched_keys_;
};

/// Builds backward programs. `mask` must outlive the kernel; it covers all ranks for ring(), one rank for step().
class BackwardKernel {
 public:
  /// Throws UnsupportedError if the spec is not supported, ShapeError if its extents are invalid or do not fit SBUF.
  BackwardKernel(KernelSpec spec, RingMask const& mask) : spec_(std::move(spec)), mask_(&mask) {
    check_spec(spec_);
    check<UnsupportedError>(spec_.training, "nki: a backward kernel needs the forward kernel's lse: set training");
    fit();
  }

  /// The kernel of a whole ring. Inputs: q, k, v and the mask input as for ForwardKernel::ring(); dout and output
  /// [batch, query_heads, rows, value_dim]; lse [batch, query_heads, 128, columns] float32. Outputs, float32: dq
  /// [batch, query_heads, rows, head_dim], dk [batch, kv_heads, keys, head_dim], dv [batch, kv_heads, keys, value_dim].
  /// A row that sees no key gets a zero gradient and contributes nothing. Throws ShapeError if the mask does not match
  /// the spec.
  Program ring() && {
    Builder builder("ring_attention_bwd", spec_.target, spec_.cores, spec_.ranks);
    declare_inputs(builder);
    auto const& shape = spec_.shape;
    tensors_.output = builder.tensor("output", {shape.batch, shape.query_heads, spec_.local_queries, shape.value_dim},
                                     spec_.output_type, Role::input);
    tensors_.lse = builder.tensor("lse", {shape.batch, shape.query_heads, tile_rows, spec_.columns()},
                                  ElementType::float32, Role::input);
    auto const gradient = [&](char const* name, Index heads, Index rows, Index dim) {
      return builder.tensor(name, {shape.batch, heads, rows, dim}, ElementType::float32, Role::output);
    };
    tensors_.dq = gradient("dq", shape.query_heads, spec_.local_queries, shape.head_dim);
    tensors_.dk = gradient("dk", shape.kv_heads, spec_.local_keys, shape.head_dim);
    tensors_.dv = gradient("dv", shape.kv_heads, spec_.local_keys, shape.value_dim);
    return finish(builder);
  }

  /// The kernel of one step: the keys of one owner, no collectives. Inputs: q, k, v, dout and the mask input as for
  /// ring(); lse and delta [batch * query_heads, 128, columns]; dq, dk, dv with the shapes of ring(); all float32 but
  /// q, k, v, dout. Outputs: new_dq, new_dk, new_dv, the sums with this step's contribution. Throws as ring() does.
  Program step() && {
    Builder builder("attention_step_bwd", spec_.target, spec_.cores, 1);
    declare_inputs(builder);
    auto const& shape = spec_.shape;
    Index const heads = shape.batch * shape.query_heads;
    tensors_.lse = builder.tensor("lse", {heads, tile_rows, spec_.columns()}, ElementType::float32, Role::input);
    tensors_.delta = builder.tensor("delta", {heads, tile_rows, spec_.columns()}, ElementType::float32, Role::input);
    auto const gradient = [&](std::string const& name, Index head_count, Index rows, Index dim, TensorHandle& old) {
      old = builder.tensor(name, {shape.batch, head_count, rows, dim}, ElementType::float32, Role::input);
      return builder.tensor("new_" + name, {shape.batch, head_count, rows, dim}, ElementType::float32, Role::output);
    };
    tensors_.dq = gradient("dq", shape.query_heads, spec_.local_queries, shape.head_dim, tensors_.old_dq);
    tensors_.dk = gradient("dk", shape.kv_heads, spec_.local_keys, shape.head_dim, tensors_.old_dk);
    tensors_.dv = gradient("dv", shape.kv_heads, spec_.local_keys, shape.value_dim, tensors_.old_dv);
    return finish(builder);
  }

 private:
  void fit() {
    Index const widest = spec_.widest();
    // Sums of dK and dV of a key tile take a PSUM bank each.
    key_rows_ =
        std::min(std::clamp(widest_dim / widest, Index{1}, Index{4}), ceil_divide(spec_.local_keys, tile_rows)) *
        tile_rows;
    Index const budget = hardware_of(spec_.target).limits.sbuf_bytes - 48 * 1024, element = bytes_of(spec_.type);
    Index const features =
        (Chunks{spec_.shape.head_dim}.count() + Chunks{spec_.shape.value_dim}.count()) * tile_rows * element;
    Index const tokens = (spec_.shape.head_dim + spec_.shape.value_dim) * element, sums = spec_.shape.head_dim * 4;
    Index const fixed = spec_.columns() * 4 * 2 * (3 + 4 * static_cast<Index>(mask_->pieces().size())) +
                        key_rows_ / tile_rows * widest * 4 * 8;
    section_tiles_ = std::min(spec_.columns(), (budget - fixed) / (2 * (features + tokens + sums)));
    check<ShapeError>(section_tiles_ >= 1, "nki: the backward pass for head_dim ", spec_.shape.head_dim, ", value_dim ",
                      spec_.shape.value_dim, ", ", spec_.local_queries, " queries of ", name_of(spec_.type),
                      " does not fit ", budget, " bytes of each SBUF partition");
  }

  void declare_inputs(Builder& builder) {
    static_cast<KernelInputs&>(tensors_) = declare_operands(builder, spec_);
    auto const& shape = spec_.shape;
    tensors_.dout = builder.tensor("dout", {shape.batch, shape.query_heads, spec_.local_queries, shape.value_dim},
                                   spec_.type, Role::input);
    tensors_.mask = declare_mask(builder, spec_, *mask_);
  }

  Program finish(Builder& builder) {
    BackwardParts parts(builder, spec_, section_tiles_, key_rows_);
    for_each_round(builder, spec_,
                   [&](Round const& round) { BackwardRound(builder, spec_, *mask_, tensors_, parts, round).write(); });
    return std::move(builder).finish();
  }

  KernelSpec spec_;
  RingMask const* mask_;
  Index section_tiles_ = 1, key_rows_ = tile_rows;
  BackwardTensors tensors_;
};

}  // namespace annulus::nki
