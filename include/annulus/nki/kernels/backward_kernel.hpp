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

/// Inputs and outputs of a backward kernel: either output or delta; old gradients in a step kernel only.
struct BackwardTensors : KernelInputs {
  TensorHandle output, lse, delta;
  std::array<TensorHandle, 3> gradients, old_gradients;  ///< dq, dk, dv
};

/// Tiles and loaders that the rounds of a kernel share, and the extents of its sections and key tiles.
struct BackwardParts {
  OperandLoads loads;
  BackwardUnits units;
  GradientRows gradients;
  RowStatistics numbers;
  Index section_tiles, key_rows;

  BackwardParts(Builder& builder, KernelSpec const& spec, Index tiles_of_section, Index rows_of_key_tile)
      : loads(builder, spec), units(builder, spec, loads, tiles_of_section, rows_of_key_tile),
        gradients(builder, spec.widest(), rows_of_key_tile / tile_rows), numbers(builder, spec),
        section_tiles(tiles_of_section), key_rows(rows_of_key_tile) {}
};

/// Writes one round to a program.
class BackwardRound {
 public:
  BackwardRound(Builder& builder, KernelSpec const& spec, RingMask const& mask, BackwardTensors const& tensors,
                BackwardParts& parts, Round round)
      : builder_(&builder), spec_(&spec), mask_(&mask), tensors_(&tensors), parts_(&parts), round_(std::move(round)),
        adds_(tensors.old_gradients[0].buffer >= 0), queries_travel_(spec.travels == RotatingSide::queries),
        own_(backward_step(spec, mask, round_.tiles, parts.section_tiles, parts.key_rows, true)),
        others_(backward_step(spec, mask, round_.tiles, parts.section_tiles, parts.key_rows, false)) {
    RoundKind const kind = round_.kind;
    int const ranks = builder.program().ranks;
    steps_ = ranks > 1 && !others_.units.empty() ? ranks : 1;
    auto const& shape = spec.shape;
    Index const queries = spec.local_queries, keys = spec.local_keys;
    int const query_steps = queries_travel_ ? steps_ : 1, key_steps = queries_travel_ ? 1 : steps_;
    queries_ = RotatingBuffers(builder, spec, round_,
                               {{"q", tensors.q, heads(), queries, shape.head_dim, spec.type, spec.queries_by_token},
                                {"dout", tensors.dout, heads(), queries, shape.value_dim, spec.type},
                                {"lse", tensors.lse, heads(), tile_rows, spec.columns(), ElementType::float32},
                                {"delta", tensors.delta, heads(), tile_rows, spec.columns(), ElementType::float32}},
                               query_steps);
    keys_ = RotatingBuffers(builder, spec, round_,
                            {{"k", tensors.k, 1, keys, shape.head_dim, spec.type, spec.keys_by_token},
                             {"v", tensors.v, 1, keys, shape.value_dim, spec.type}},
                            key_steps);
    auto const& results = tensors.gradients;
    gradients_ = {
        CarriedGradient(builder, spec, round_, "dq", results[0], heads(), queries, shape.head_dim, query_steps),
        CarriedGradient(builder, spec, round_, "dk", results[1], 1, keys, shape.head_dim, key_steps),
        CarriedGradient(builder, spec, round_, "dv", results[2], 1, keys, shape.value_dim, key_steps)};
    // Cores that share an item sum the gradients of keys separately; end_keys() adds the two parts.
    for (std::size_t side : {0, 1})
      if (kind.shared)
        key_parts_[side] =
            builder.tensor(side == 0 ? "dk_parts" : "dv_parts", {2, key_size(side)}, ElementType::float32);
    if (tensors.delta.buffer < 0 && !queries_.travels())
      own_delta_ = builder.tensor("own_delta" + kind.suffix(), {kind.parts(spec), heads() * tile_rows * spec.columns()},
                                  ElementType::float32);
  }

  /// Writes all ring steps.
  void write() {
    BoundsTiles bounds(*builder_, *mask_, tensors_->mask, round_.tiles, round_.bounds_name);
    prepare(bounds);
    int const owner = builder_->program().ranks > 1 ? builder_->make_register() : -1;
    touched_keys_.assign(static_cast<std::size_t>(ceil_divide(spec_->local_keys, parts_->key_rows)),
                         adds_ && !round_.kind.shared);
    Roller steps(*builder_, "steps", 2);
    for (int step = 0; step < steps_; ++step)
      steps.add(builder_->collect([&] {
        builder_->section("step", step);
        for (RotatingBuffers* operands : {&queries_, &keys_}) operands->send(step);
        for (CarriedGradient& gradient : gradients_) gradient.begin_step(step);
        if (owner >= 0 && bounds.needed()) builder_->emit(ProcessingRank{owner, step, 0});
        Index const bounds_number = bounds.needed() ? bounds.load(owner, batch_of(*spec_, *mask_, round_.item)) : -1;
        parts_->units.begin_step(round_.tiles, bounds, bounds_number, parts_->numbers.negated_lse(),
                                 parts_->numbers.delta());
        if (keys_.travels()) begin_keys(step);
        work(step);
        if (keys_.travels() || step + 1 == steps_) end_keys(step);
        for (CarriedGradient& gradient : gradients_) gradient.send(step);
      }));
    steps.flush();
    for (CarriedGradient const& gradient : gradients_) gradient.finish();
  }

 private:
  Index heads() const { return spec_->query_heads_per_item(); }
  Index key_size(std::size_t side) const {
    return spec_->local_keys * (side == 0 ? spec_->shape.head_dim : spec_->shape.value_dim);
  }

  /// lse (operand 2) or delta (operand 3) of a head at a step.
  ColumnSource columns(std::size_t operand, int step, Index head) const {
    HeadSource rows = queries_.head(operand, step, head);
    if (operand == 3 && queries_.travels())
      rows = queries_.in_buffer(operand, step, head);
    else if (operand == 3 && tensors_->delta.buffer < 0)
      rows = {own_delta_, (round_.kind.part(*spec_) * heads() + head) * (tile_rows * rows.dim), rows.rows, rows.dim};
    return {rows.tensor, rows.offset, rows.dim};
  }

  // Gradients of the keys (side 0: k, side 1: v): of the item, and the part of a core that shares it.

  GradientTarget key_total(int step, std::size_t side) const { return gradients_[side + 1].target(step); }
  GradientTarget key_part(std::size_t side, Affine const& core) const {
    Index const rows = spec_->local_keys;
    return {key_parts_[side], core * key_size(side), rows, key_size(side) / rows};
  }
  GradientTarget key_target(int step, std::size_t side) const {
    return round_.kind.shared ? key_part(side, Affine::of(core_variable)) : key_total(step, side);
  }

  void prepare(BoundsTiles& bounds) {
    for (std::size_t i = 0; adds_ && i < gradients_.size(); ++i) {
      gradients_[i].copy(tensors_->old_gradients[i]);
      if (round_.kind.shared) builder_->emit(CoreBarrier{tensors_->gradients[i].whole()});
    }
    bounds.prepare();
    for (RotatingBuffers* operands : {&queries_, &keys_}) operands->before_filling();
    if (tensors_->delta.buffer < 0) {
      parts_->numbers.write_delta(tensors_->dout, tensors_->output, round_.item, round_.kind, round_.tiles,
                                  queries_.travels() ? queries_.at(3, 0) : own_delta_);
      // A row that both cores compute is stored by only one of them.
      if (round_.kind.shared && !queries_.travels()) builder_->emit(CoreBarrier{own_delta_.whole()});
    }
    for (std::size_t operand : {0, 1, 2}) queries_.fill(operand);
    for (std::size_t operand : {0, 1}) keys_.fill(operand);
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
    bool const query_gradients_add = !queries_.travels() && (adds_ || number > 0);
    auto& units = parts_->units;
    std::size_t unit = 0, visit = 0;
    Index numbers = -1;
    for (std::size_t s = 0; s < step.sections.size(); ++s) {
      QuerySection& section = step.sections[s];
      if (s == 0 || step.sections[s - 1].head != section.head)
        numbers =
            parts_->numbers.load(round_.tiles, columns(2, number, section.head), columns(3, number, section.head));
      section.numbers = numbers;
      std::size_t unit_end = unit, visit_end = visit;
      for (; unit_end < step.units.size() && step.units[unit_end].section == s; ++unit_end)
        visit_end = step.units[unit_end].key_tile + 1;
      if (unit == unit_end && query_gradients_add) continue;
      units.load_section(section, queries_.head(0, number, section.head), queries_.head(1, number, section.head));
      auto const load_keys = [&](std::size_t place) {
        if (place < visit_end) units.load_keys(step.key_tiles[place], keys_.head(0, number), keys_.head(1, number));
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
          parts_->gradients.store(gradients_[0].target(number, section.head), round_.tiles[tile],
                                  units.query_gradient(section, tile), query_gradients_add);
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

  Builder* builder_;
  KernelSpec const* spec_;
  RingMask const* mask_;
  BackwardTensors const* tensors_;
  BackwardParts* parts_;
  Round round_;
  bool adds_, queries_travel_;
  BackwardStep own_, others_;
  int steps_ = 1;
  RotatingBuffers queries_, keys_;
  std::array<CarriedGradient, 3> gradients_;  // dq, dk, dv
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
    static_cast<KernelInputs&>(tensors_) = declare_inputs(builder, spec_, *mask_, true);
    auto const& shape = spec_.shape;
    tensors_.output = builder.tensor("output", {shape.batch, shape.query_heads, spec_.local_queries, shape.value_dim},
                                     spec_.output_type, Role::input);
    tensors_.lse = builder.tensor("lse", {shape.batch, shape.query_heads, tile_rows, spec_.columns()},
                                  ElementType::float32, Role::input);
    for (std::size_t i : {0, 1, 2}) tensors_.gradients[i] = gradient(builder, i, "", Role::output);
    return finish(builder);
  }

  /// The kernel of one step: the keys of one owner, no collectives. Inputs: q, k, v, dout and the mask input as for
  /// ring(); lse and delta [batch * query_heads, 128, columns]; dq, dk, dv with the shapes of ring(); all float32 but
  /// q, k, v, dout. Outputs: new_dq, new_dk, new_dv, the sums with this step's contribution. Throws as ring() does.
  Program step() && {
    Builder builder("attention_step_bwd", spec_.target, spec_.cores, 1);
    static_cast<KernelInputs&>(tensors_) = declare_inputs(builder, spec_, *mask_, true);
    auto const& shape = spec_.shape;
    Index const heads = shape.batch * shape.query_heads;
    tensors_.lse = builder.tensor("lse", {heads, tile_rows, spec_.columns()}, ElementType::float32, Role::input);
    tensors_.delta = builder.tensor("delta", {heads, tile_rows, spec_.columns()}, ElementType::float32, Role::input);
    for (std::size_t i : {0, 1, 2}) {
      tensors_.old_gradients[i] = gradient(builder, i, "", Role::input);
      tensors_.gradients[i] = gradient(builder, i, "new_", Role::output);
    }
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
    Index const fixed =
        spec_.columns() * 4 * 2 * (3 + 4 * std::ssize(mask_->pieces())) + key_rows_ / tile_rows * widest * 4 * 8;
    section_tiles_ = std::min(spec_.columns(), (budget - fixed) / (2 * (features + tokens + sums)));
    check<ShapeError>(section_tiles_ >= 1, "nki: the backward pass for head_dim ", spec_.shape.head_dim, ", value_dim ",
                      spec_.shape.value_dim, ", ", spec_.local_queries, " queries of ", name_of(spec_.type),
                      " does not fit ", budget, " bytes of each SBUF partition");
  }

  /// Declares dq, dk or dv.
  TensorHandle gradient(Builder& builder, std::size_t which, std::string const& prefix, Role role) const {
    constexpr char const* names[] = {"dq", "dk", "dv"};
    auto const& shape = spec_.shape;
    return builder.tensor(
        prefix + names[which],
        {shape.batch, which == 0 ? shape.query_heads : shape.kv_heads,
         which == 0 ? spec_.local_queries : spec_.local_keys, which == 2 ? shape.value_dim : shape.head_dim},
        ElementType::float32, role);
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
