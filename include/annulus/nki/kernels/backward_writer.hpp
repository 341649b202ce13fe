#pragma once
// Writer of backward kernels: finds what fits SBUF, and emits the rounds.

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/backward_pipeline.hpp"
#include "annulus/nki/kernels/work_notes.hpp"

namespace annulus::nki {

/// Inputs and outputs of a backward kernel: either output or delta; old gradients in a step kernel only.
struct BackwardTensors : KernelInputs {
  TensorHandle output, lse, delta;                       ///< of the forward pass; delta: rowsum(dout * output)
  std::array<TensorHandle, 3> gradients, old_gradients;  ///< dq, dk, dv
  TensorHandle dbias;                                    ///< without buffer: not requested
};

/// What the rounds of a kernel share.
struct BackwardParts {
  KernelSpec const& spec;
  RingMask const& mask;
  BackwardTensors tensors;
  BackwardPipeline pipeline;  ///< of work
  GradientRows gradients;     ///< sums
  RowStatistics numbers;      ///< per row
};

/// Writes one round to a program.
class BackwardRound {
 public:
  /// Refers to its arguments.
  BackwardRound(BackwardParts& parts, Round const& round)
      : builder_(round.builder),
        parts_(&parts),
        round_(&round),
        adds_(parts.tensors.old_gradients[0].buffer >= 0),
        computes_delta_(parts.tensors.delta.buffer < 0) {
    auto const& [spec, mask, tensors, pipeline, sums, numbers] = parts;
    others_ = backward_step(spec, mask, round.tiles, pipeline.section_tiles, pipeline.key_rows, false);
    step_ = backward_step(spec, mask, round.tiles, pipeline.section_tiles, pipeline.key_rows, true);
    key_tiles_ = key_tiles_of(spec, mask, pipeline.key_rows);
    touched_keys_.assign(key_tiles_.size(), adds_ && !round.shared);
    int const ranks = builder_->program().ranks;
    steps_ = ranks > 1 && !others_.units.empty() ? ranks : 1;
    bool const queries_travel = spec.travels == RotatingSide::queries;
    int const query_steps = queries_travel ? steps_ : 1, key_steps = queries_travel ? 1 : steps_;
    operands_ = {{round, "q", tensors.q, query_steps, spec.queries_by_token},
                 {round, "dout", tensors.dout, query_steps},
                 {round, "lse", tensors.lse, query_steps},
                 {round, "delta", tensors.delta, query_steps},
                 {round, "k", tensors.k, key_steps, spec.keys_by_token},
                 {round, "v", tensors.v, key_steps}};
    auto const& [dq, dk, dv] = tensors.gradients;
    gradients_ = {{round, "dq", dq, query_steps}, {round, "dk", dk, key_steps}, {round, "dv", dv, key_steps}};
    // Cores that share an item sum the gradients of keys separately; end_keys() adds the two parts.
    auto const part_of = [&, keys = spec.local_keys](char const* name, Index width) {
      return HeadRows{builder_->tensor(name, {2, keys * width}, ElementType::float32), 0, keys, width};
    };
    if (round.shared)
      key_parts_ = {part_of("dk_parts", spec.shape.head_dim), part_of("dv_parts", spec.shape.value_dim)};
    RotatingRows& own_delta = operands_[delta];
    if (computes_delta_ && !own_delta.travels()) own_delta.argument = own_delta.buffer("own_delta" + round.suffix());
  }

  void write() {
    auto const& [spec, mask, tensors, pipeline, sums, numbers] = *parts_;
    for (std::size_t i = 0; adds_ && i < gradients_.size(); ++i) {
      gradients_[i].copy_argument(tensors.old_gradients[i]);
      if (round_->shared) builder_->emit(CoreBarrier{tensors.gradients[i].whole()});
    }
    BoundsTiles bounds(*builder_, mask, tensors.mask, *round_, nullptr, pipeline.gradient_factors());
    parts_->pipeline.begin_round(*round_);
    prepare_operands();
    note_work();
    bounds_ = &bounds;
    auto const load_bounds = [&](int step) { nth(bounds_numbers_, step % 2) = bounds.load(step); };
    Roller steps(*builder_, "steps", 2);
    for (int step = 0; step < steps_; ++step)
      steps.add(builder_->collect([&] {
        builder_->section("step", step);
        for (RotatingRows const& operand : operands_) operand.send(step);
        for (CarriedGradient const& gradient : gradients_) gradient.begin_step(step);
        bool const halves = parts_->mask.chooses_halves();
        if (step == 0 || !halves) load_bounds(step);
        // What is loaded in advance is also chosen in advance.
        if (step + 1 < steps_ && halves) load_bounds(step + 1);
        if (step + 2 < steps_ && halves) bounds.prefetch(step + 2);
        parts_->pipeline.begin_step(step, round_->tiles, bounds, bounds_number(step), parts_->numbers);
        if (keys_travel()) begin_keys(step);
        work(step);
        if (keys_travel() || step + 1 == steps_) end_keys(step);
        for (CarriedGradient const& gradient : gradients_) gradient.send(step);
      }));
    steps.flush();
    for (CarriedGradient const& gradient : gradients_) gradient.finish();
  }

 private:
  enum Operand : std::size_t { q, dout, lse, delta, k, v };  ///< in operands_

  bool queries_travel() const { return operands_[q].travels(); }
  bool keys_travel() const { return operands_[k].travels(); }
  /// One head of an operand at a step, with the chosen half in place of the late one if `chosen`.
  HeadRows operand(std::size_t which, int step, Index head, bool chosen) const {
    HeadRows const rows = operands_[which].head(step, head);
    return chosen ? bounds_->chosen(step, rows) : rows;
  }
  Index bounds_number(int step) const { return nth(bounds_numbers_, step % 2); }

  /// Target of the gradients of the keys (side 0: k, side 1: v): of the item, or the part of a core that shares it.
  HeadRows key_target(int step, std::size_t side) const {
    return round_->shared ? key_parts_[side].head(Affine::of(core_variable)) : gradients_[side + 1].target(step);
  }

  void prepare_operands() {
    before_filling(operands_);
    if (computes_delta_) {
      HeadRows const own_delta = operands_[delta].head(0);
      parts_->numbers.write_delta(*round_, parts_->tensors.dout, parts_->tensors.output, own_delta);
      // A row that both cores compute is stored by only one of them.
      if (round_->shared && !queries_travel()) builder_->emit(CoreBarrier{own_delta.tensor.whole()});
    }
    fill_buffers(operands_);
  }

  void note_work() const {
    WorkNotes notes(*round_, parts_->pipeline.tiles_of_units, parts_->pipeline.units_made(),
                    parts_->spec.query_heads_per_item());
    for (int number = 0; number < steps_; ++number) {
      BackwardStep const& step = number == 0 ? step_ : others_;
      notes.begin_step();
      for (BackwardUnit const& unit : step.units) {
        auto const& section = step.sections[unit.section];
        notes.add({{section.head, section.head + 1},
                   nth(round_->tiles, unit.tile).rows_of_all_cores,
                   step.key_tiles[unit.key_tile].rows,
                   section.chosen});
      }
    }
    notes.write(*builder_);
  }

  void begin_keys(int step) {
    std::ranges::fill(touched_keys_, false);
    // The other core may still be reading the parts of the previous step.
    if (round_->shared && step > 0) synchronize_parts();
  }

  /// Clears the gradients of keys that no unit touched, and adds up the parts of cores that share an item.
  void end_keys(int step) {
    for (std::size_t i = 0; i < touched_keys_.size(); ++i) {
      if (touched_keys_[i]) continue;
      for (std::size_t side : {0, 1})
        parts_->gradients.clear(key_target(step, side), key_tiles_[i].begin, key_tiles_[i].size());
    }
    if (!round_->shared) return;
    synchronize_parts();
    for (std::size_t side : {0, 1})
      parts_->gradients.join(gradients_[side + 1].target(step), key_parts_[side], key_parts_[side].head(1), adds_);
  }

  void synchronize_parts() {
    for (HeadRows const& part : key_parts_) builder_->emit(CoreBarrier{part.tensor.whole()});
  }

  /// The work of a step, and the loads of the first section and keys of the next one.
  void work(int number) {
    auto& pipeline = parts_->pipeline;
    if (number > 0) step_ = std::move(next_step_);
    next_step_ = number + 1 < steps_ ? others_ : BackwardStep{};
    // Keys of the next two visits are being loaded to SBUF.
    for (std::size_t visit : {0, 1}) load_keys(number, visit);
    if (number == 0) load_section(step_.sections[0], number, 0, 1);
    for (std::size_t first : {0, 1}) load_pairs(first);

    std::size_t unit = 0, visit = 0;
    for (std::size_t s = 0; s < step_.sections.size(); ++s) {
      QuerySection& section = step_.sections[s];
      parts_->numbers.complete();
      std::size_t unit_end = unit, visit_end = visit;
      for (; unit_end < step_.units.size() && step_.units[unit_end].section == s; ++unit_end)
        visit_end = step_.units[unit_end].key_tile + 1;
      // Not earlier than in the second half, when a permute should have brought them.
      auto const [next, next_number] = at_step(number, &BackwardStep::sections, s + 1);
      Index const first_part = static_cast<Index>(visit + (visit_end - visit) / 2),
                  parts = static_cast<Index>(visit_end) - first_part;
      std::vector<Body> visits;
      for (; visit < visit_end; ++visit)
        visits.push_back(builder_->collect([&, next = next, next_number = next_number] {
          pipeline.begin_layouts();
          load_keys(number, visit + 1);
          load_keys(number, visit + 2);
          if (auto const part = static_cast<Index>(visit) - first_part; next && part >= 0)
            load_section(*next, next_number, part, parts);
          pipeline.complete_keys(step_.key_tiles[visit]);
          append_rolled(*builder_, "query_tile", slots_of_visit(section, number, visit, unit, unit_end));
        }));
      append_rolled(*builder_, "key_tile", std::move(visits));
      for (std::size_t stage = 0; stage + 1 < in_stages_.size(); ++stage) advance(nullptr, number);
      if (next && parts == 0) load_section(*next, next_number, 0, 1);
      store_untouched_queries(section, number);
    }
  }

  /// Element `at` of a list of this step or, counted on, of the next one, and its step; null behind both lists.
  template <class Element>
  std::pair<Element*, int> at_step(int number, std::vector<Element> BackwardStep::*list, std::size_t at) {
    auto &here = step_.*list, &next = next_step_.*list;
    if (at < here.size()) return {&here[at], number};
    at -= here.size();
    return {at < next.size() ? &next[at] : nullptr, number + 1};
  }

  /// Loads the keys of a visit of this step or, counted on, of the next one, unless they are loaded.
  void load_keys(int number, std::size_t visit) {
    auto const [keys, step] = at_step(number, &BackwardStep::key_tiles, visit);
    bool const chosen = keys && chooses(step, keys->rows);
    if (keys && keys->operands < 0)
      parts_->pipeline.load_keys(*keys, operand(k, step, 0, chosen), operand(v, step, 0, chosen));
  }

  void load_pairs(std::size_t unit) {
    if (unit < step_.units.size()) parts_->pipeline.load_pairs(step_.units[unit], step_);
  }

  /// A slot for each unit of a visit: those from `unit` on, which is advanced, below `unit_end`.
  std::vector<Body> slots_of_visit(QuerySection& section, int number, std::size_t visit, std::size_t& unit,
                                   std::size_t unit_end) {
    std::vector<Body> slots;
    for (; unit < unit_end && step_.units[unit].key_tile == visit; ++unit)
      slots.push_back(builder_->collect([&] {
        parts_->pipeline.complete_rows(section, step_.units[unit].tile);
        load_pairs(unit + 2);
        advance(&step_.units[unit], number);
      }));
    return slots;
  }

  /// Loads part `part` of `parts` of the rows of a section; part 0 must come first, as it makes the tiles.
  void load_section(QuerySection& section, int step, Index part, Index parts) {
    parts_->numbers.complete();
    if (part == 0) {
      std::tuple const wanted{step, section.head, section.chosen};
      if (numbered_ != wanted)
        numbers_ = parts_->numbers.load(round_->tiles, operands_[lse].head(step, section.head),
                                        operands_[delta].head(step, section.head), section.chosen ? bounds_ : nullptr,
                                        bounds_number(step));
      numbered_ = wanted;
      section.numbers = numbers_;
      parts_->pipeline.begin_section(section);
    }
    Index const tiles = section.last_tile - section.first_tile;
    for (Index i = tiles * part / parts; i < tiles * (part + 1) / parts; ++i) {
      Index const tile = section.first_tile + i;
      parts_->pipeline.load_rows(section, nth(round_->tiles, tile), tile,
                                 operand(q, step, section.head, section.chosen),
                                 operand(dout, step, section.head, section.chosen));
    }
  }

  /// Moves the pipeline on by one slot; `next` enters it, null: nothing.
  void advance(BackwardUnit const* next, int number) {
    std::rotate(in_stages_.begin(), in_stages_.end() - 1, in_stages_.end());
    in_stages_[0] = next;
    auto const& [weighed, sloped, summed, finished] = in_stages_;
    parts_->pipeline.slot(weighed, sloped, summed, finished, step_);
    if (summed && summed->last) store_keys(step_.key_tiles[summed->key_tile], number);
    if (finished && finished->last_of_tile) store_queries(step_.sections[finished->section], finished->tile, number);
  }

  bool query_gradients_add(int number) const { return !queries_travel() && (adds_ || number > 0); }

  void store_queries(QuerySection const& section, Index tile, int number, bool touched = true) {
    HeadRows const to = gradients_[0].target(number).head(section.head);
    if (!section.chosen)
      return parts_->gradients.store(to, nth(round_->tiles, tile),
                                     parts_->pipeline.query_gradient(section, tile, touched),
                                     query_gradients_add(number));
    for (bool late : {false, true})
      parts_->gradients.store(to, nth(round_->tiles, late ? tile : tile - std::ssize(round_->tiles) / 2),
                              parts_->pipeline.query_gradient(section, tile, touched, late),
                              late || query_gradients_add(number));
  }

  /// These keys of a step are chosen, as RingMask::with_chosen_halves() describes.
  bool chooses(int step, RowRange keys) const {
    return step > 0 && parts_->mask.chooses_halves() && keys.begin >= parts_->spec.local_keys / 2;
  }

  /// Stores the zero gradients of row tiles without a unit.
  void store_untouched_queries(QuerySection const& section, int number) {
    if (query_gradients_add(number)) return;
    std::vector<char> touched(round_->tiles.size(), false);
    for (BackwardUnit const& unit : step_.units)
      if (&step_.sections[unit.section] == &section) nth(touched, unit.tile) = true;
    for (Index tile = section.first_tile; tile < section.last_tile; ++tile)
      if (!nth(touched, tile)) store_queries(section, tile, number, false);
  }

  void store_keys(KeyTile const& keys, int number) {
    auto const store = [&](Index tile, bool late) {
      auto const [dk, dv] = parts_->pipeline.key_gradients(keys, late);
      char& touched = nth(touched_keys_, tile);
      RowRange const rows = nth(key_tiles_, tile);
      parts_->gradients.store(key_target(number, 0), rows.begin, rows.size(), dk, touched);
      parts_->gradients.store(key_target(number, 1), rows.begin, rows.size(), dv, touched);
      touched = true;
    };
    if (!chooses(number, keys.rows)) return store(keys.number, false);
    store(keys.number - std::ssize(key_tiles_) / 2, false);
    store(keys.number, true);
  }

  Builder* builder_;
  BackwardParts* parts_;
  Round const* round_;
  bool adds_, computes_delta_;
  BackwardStep others_;            // template of all steps but the first
  BackwardStep step_, next_step_;  // the step that is being written, and the one after it
  int steps_ = 1;
  std::vector<RotatingRows> operands_;      // by Operand
  std::vector<CarriedGradient> gradients_;  // dq, dk, dv
  std::array<HeadRows, 2> key_parts_;
  BoundsTiles const* bounds_ = nullptr;
  std::array<Index, 2> bounds_numbers_{-1, -1};  // of even and odd steps
  std::vector<RowRange> key_tiles_;
  std::vector<char> touched_keys_;                        // of key_tiles_
  std::array<BackwardUnit const*, 4> in_stages_{};        // units in the stages
  std::tuple<int, Index, bool> numbered_{-1, -1, false};  // step, head and choice of numbers_
  Index numbers_ = -1;                                    // tiles of lse and delta
};

/// Writes the programs of BackwardKernel.
class BackwardWriter {
 public:
  /// Throws as BackwardKernel's constructor does.
  BackwardWriter(KernelSpec spec, RingMask const& mask) : spec_(std::move(spec)), mask_(mask, spec_, least_half) {
    check_spec(spec_);
    detail::check<UnsupportedError>(spec_.training,
                                    "nki: a backward kernel needs the forward kernel's lse: set training");
    fit();
  }

  Program ring() && { return write_fitting(true); }   ///< the program of BackwardKernel::ring
  Program step() && { return write_fitting(false); }  ///< the program of BackwardKernel::step

 private:
  Program write_fitting(bool ring) {
    Program program = write(ring);
    bool const fits = sbuf_bytes_of(program) <= hardware_of(spec_.target).limits.sbuf_bytes;
    if (fits || !mask_.give_up_halves()) return program;
    fit();
    return write(ring);
  }

  void fit() {
    Index const widest = spec_.widest();
    // Sums of dK and dV of a key tile take a PSUM bank each. With three blocks of 128 keys these are six accumulation
    // groups, and that of dQ is a seventh; eight may be open.
    key_rows_ = std::min(std::clamp(widest_dim / widest, Index{1}, Index{3}),
                         detail::ceil_divide(spec_.local_keys, tile_rows)) *
                tile_rows;
    Index const budget = hardware_of(spec_.target).limits.sbuf_bytes - 48 * 1024, element = bytes_of(spec_.type);
    Index const features =
        (Chunks{spec_.shape.head_dim}.count() + Chunks{spec_.shape.value_dim}.count()) * tile_rows * element;
    Index const tokens = (spec_.shape.head_dim + spec_.shape.value_dim) * element, sums = spec_.shape.head_dim * 4;
    bool const halves = mask_->chooses_halves();
    Index const tiles = mask_->row_tile_count(), gradient_bytes = key_rows_ / tile_rows * widest * 4;
    Index const fixed = tiles * 4 * 2 * (3 + 4 * std::ssize(mask_->pieces())) + (halves ? 0 : 8 * gradient_bytes) +
                        (spec_.bias.given ? 3 * key_rows_ * bytes_of(spec_.bias.type) : 0) +
                        (spec_.keep_scale > 0 ? key_rows_ * (8 * element + 8) : 0) +
                        (spec_.bias.gradient ? 2 * key_rows_ * 4 + 8192 : 0);
    // The more gradients are on their way to HBM, the less GpSimdE waits for those to which it adds them.
    for (stores_ = halves ? 12 : 2;; stores_ /= 2) {
      Index const left = budget - fixed - (halves ? 5 * stores_ * gradient_bytes : 0);
      section_tiles_ = std::min(tiles, left / (2 * (features + tokens + sums)));
      if (section_tiles_ >= tiles / 2 || stores_ <= 3) break;
    }
    if (section_tiles_ < 1 && mask_.give_up_halves()) return fit();
    detail::check<ShapeError>(section_tiles_ >= 1, "nki: the backward pass for head_dim ", spec_.shape.head_dim,
                              ", value_dim ", spec_.shape.value_dim, ", ", spec_.local_queries, " queries of ",
                              name_of(spec_.type), " does not fit ", budget, " bytes of each SBUF partition");
  }

  Program write(bool ring) {
    Builder builder(ring ? "ring_attention_bwd" : "attention_step_bwd", spec_.target, spec_.cores,
                    ring ? spec_.ranks : 1);
    auto const tensor = [&](std::string name, std::vector<Index> extents, Role role) {
      return builder.tensor(std::move(name), std::move(extents), ElementType::float32, role);
    };
    auto const& shape = spec_.shape;
    Index const queries = spec_.local_queries, keys = spec_.local_keys, heads = shape.batch * shape.query_heads;
    BackwardTensors tensors;
    static_cast<KernelInputs&>(tensors) = declare_inputs(builder, spec_, *mask_, true);
    if (ring) {
      tensors.output = builder.tensor("output", spec_.output_shape(), spec_.output_type, Role::input);
      tensors.lse = tensor("lse", spec_.lse_shape(), Role::input);
      tensors.delta = {-1, spec_.lse_shape()};
    } else {
      for (auto [name, values] : {std::pair{"lse", &tensors.lse}, {"delta", &tensors.delta}})
        *values = tensor(name, {heads, tile_rows, spec_.columns()}, Role::input);
    }
    std::pair<std::string, std::vector<Index>> const gradients[] = {
        {"dq", {shape.batch, shape.query_heads, queries, shape.head_dim}},
        {"dk", {shape.batch, shape.kv_heads, keys, shape.head_dim}},
        {"dv", {shape.batch, shape.kv_heads, keys, shape.value_dim}}};
    for (std::size_t i : {0, 1, 2}) {
      auto const& [name, extents] = gradients[i];
      if (!ring) tensors.old_gradients[i] = tensor(name, extents, Role::input);
      tensors.gradients[i] = tensor(ring ? name : "new_" + name, extents, Role::output);
    }
    if (spec_.bias.given && spec_.bias.gradient)
      tensors.dbias = tensor("dbias", {tensors.bias.shape[0], heads, queries, keys}, Role::output);
    BackwardParts parts{spec_,
                        *mask_,
                        tensors,
                        {builder, spec_, *mask_, tensors, tensors.dbias, section_tiles_, key_rows_, stores_},
                        {builder, spec_.widest(), key_rows_ / tile_rows, mask_->chooses_halves() ? 2 * stores_ : 3},
                        {builder, spec_, mask_->row_tile_count()}};
    for_each_round(builder, spec_, mask_->tile_pieces(),
                   [&](Round const& round) { BackwardRound(parts, round).write(); });
    return std::move(builder).finish();
  }

  KernelSpec spec_;
  FittingMask mask_;
  Index section_tiles_ = 1, key_rows_ = tile_rows;
  int stores_ = 2;  ///< gradients that are on their way to HBM
};

}  // namespace annulus::nki
