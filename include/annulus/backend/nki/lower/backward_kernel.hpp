#pragma once
// Backward attention kernels: the whole SPMD ring, and the step that adds one owner's share to gradients.

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "annulus/backend/nki/lower/backward_schedule.hpp"
#include "annulus/backend/nki/lower/gradient_rows.hpp"
#include "annulus/backend/nki/lower/row_numbers.hpp"
#include "annulus/backend/nki/lower/travel_buffers.hpp"

namespace annulus::nki {

class BackwardKernel {
 public:
  /// Throws UnsupportedError or ShapeError where no kernel can be built. `mask` knows the rows of all ranks of the ring.
  BackwardKernel(KernelSpec spec, RingMask const& mask) : spec_(std::move(spec)), mask_(&mask) {
    check_spec(spec_);
    fit();
  }

  /// Operands as the forward kernel's; dout and output [batch, query_heads, rows, value_dim]; lse [batch, query_heads, 128, columns]
  /// float32; the mask's input -> dq [batch, query_heads, rows, head_dim], dk [batch, kv_heads, keys, head_dim], dv [batch, kv_heads,
  /// keys, value_dim], float32. Rows that saw nothing get and give zeros.
  Program ring() && {
    Builder builder("ring_attention_bwd", spec_.target, spec_.cores, spec_.ranks);
    declare_operands(builder);
    auto const& shape = spec_.shape;
    output_ = builder.tensor("output", {shape.batch, shape.query_heads, spec_.local_queries, shape.value_dim},
                             spec_.output_type, Role::input);
    lse_ = builder.tensor("lse", {shape.batch, shape.query_heads, tile_rows, columns()}, ElementType::float32,
                          Role::input);
    dq_ = builder.tensor("dq", {shape.batch, shape.query_heads, spec_.local_queries, shape.head_dim},
                         ElementType::float32, Role::output);
    dk_ = builder.tensor("dk", {shape.batch, shape.kv_heads, spec_.local_keys, shape.head_dim}, ElementType::float32,
                         Role::output);
    dv_ = builder.tensor("dv", {shape.batch, shape.kv_heads, spec_.local_keys, shape.value_dim}, ElementType::float32,
                         Role::output);
    write(builder, false);
    return std::move(builder).finish();
  }

  /// As ring(), for one owner's keys, without collectives: inputs q, k, v, dout, lse and delta [batch * query_heads, 128, columns],
  /// dq, dk, dv, float32, by token, which come back as new_dq, new_dk, new_dv with this step's share added.
  Program step() && {
    Builder builder("attention_step_bwd", spec_.target, spec_.cores, 1);
    declare_operands(builder);
    auto const& shape = spec_.shape;
    Index const heads = shape.batch * shape.query_heads;
    lse_ = builder.tensor("lse", {heads, tile_rows, columns()}, ElementType::float32, Role::input);
    delta_ = builder.tensor("delta", {heads, tile_rows, columns()}, ElementType::float32, Role::input);
    auto const gradient = [&](std::string const& name, Index head_count, Index rows, Index dim, TensorHandle& old) {
      old = builder.tensor(name, {shape.batch, head_count, rows, dim}, ElementType::float32, Role::input);
      return builder.tensor("new_" + name, {shape.batch, head_count, rows, dim}, ElementType::float32, Role::output);
    };
    dq_ = gradient("dq", shape.query_heads, spec_.local_queries, shape.head_dim, old_dq_);
    dk_ = gradient("dk", shape.kv_heads, spec_.local_keys, shape.head_dim, old_dk_);
    dv_ = gradient("dv", shape.kv_heads, spec_.local_keys, shape.value_dim, old_dv_);
    write(builder, true);
    return std::move(builder).finish();
  }

 private:
  struct Round {
    Affine item;
    RoundKind kind;
    std::vector<RowTile> tiles;
  };

  /// Everything that one kernel's rounds share.
  struct Parts {
    Transposer transposer;
    OperandLoads loads;
    BackwardUnits units;
    GradientRows gradients;
    RowNumbers numbers;

    Parts(Builder& builder, KernelSpec const& spec, Index section_tiles, Index key_rows, Index columns)
        : transposer(builder, spec.type),
          loads(builder, transposer, spec.type, std::max(spec.shape.head_dim, spec.shape.value_dim)),
          units(builder, spec, transposer, loads, section_tiles, key_rows),
          gradients(builder, std::max(spec.shape.head_dim, spec.shape.value_dim), key_rows / tile_rows),
          numbers(builder, spec, columns) {}
  };

  bool queries_travel() const { return spec_.travels == Travels::queries; }
  Index columns() const { return ceil_divide(spec_.local_queries, tile_rows); }
  Index heads() const { return spec_.query_heads_per_item(); }
  Index column_size() const { return heads() * tile_rows * columns(); }

  void fit() {
    Index const widest = std::max(spec_.shape.head_dim, spec_.shape.value_dim);
    // Sums of dK and dV of a key tile take a PSUM bank each.
    key_rows_ =
        std::min(std::clamp(widest_dim / widest, Index{1}, Index{4}), ceil_divide(spec_.local_keys, tile_rows)) *
        tile_rows;
    Index const budget = hardware_of(spec_.target).limits.sbuf_bytes - 48 * 1024, element = bytes_of(spec_.type);
    Index const features =
        (Chunks{spec_.shape.head_dim}.count() + Chunks{spec_.shape.value_dim}.count()) * tile_rows * element;
    Index const tokens = (spec_.shape.head_dim + spec_.shape.value_dim) * element, sums = spec_.shape.head_dim * 4;
    Index const fixed = columns() * 4 * 2 * (3 + 4 * static_cast<Index>(mask_->pieces().size())) +
                        key_rows_ / tile_rows * widest * 4 * 8;
    section_tiles_ = std::min(columns(), (budget - fixed) / (2 * (features + tokens + sums)));
    check<ShapeError>(section_tiles_ >= 1, "nki: the backward pass for head_dim ", spec_.shape.head_dim, ", value_dim ",
                      spec_.shape.value_dim, ", ", spec_.local_queries, " queries of ", name_of(spec_.type),
                      " does not fit ", budget, " bytes of each SBUF partition");
  }

  void declare_operands(Builder& builder) {
    auto const& shape = spec_.shape;
    mask_->check_for(spec_, builder.program().ranks);
    auto const operand = [&](char const* name, Index head_count, Index rows, bool by_token) {
      return builder.tensor(
          name, {shape.batch, head_count, by_token ? rows : shape.head_dim, by_token ? shape.head_dim : rows},
          spec_.type, Role::input);
    };
    q_ = operand("q", shape.query_heads, spec_.local_queries, spec_.queries_by_token);
    k_ = operand("k", shape.kv_heads, spec_.local_keys, spec_.keys_by_token);
    v_ = builder.tensor("v", {shape.batch, shape.kv_heads, spec_.local_keys, shape.value_dim}, spec_.type, Role::input);
    dout_ = builder.tensor("dout", {shape.batch, shape.query_heads, spec_.local_queries, shape.value_dim}, spec_.type,
                           Role::input);
    mask_input_ = declare_mask_input(builder, *mask_, spec_.local_queries,
                                     builder.program().ranks == 1 ? 1 : spec_.ranks * spec_.groups);
  }

  void write(Builder& builder, bool adds) {
    Parts parts(builder, spec_, section_tiles_, key_rows_, columns());
    Index const paired = spec_.items() / spec_.cores;
    if (paired > 0)
      builder.loop("round", paired, [&](Affine const& round) {
        Affine const item = round * spec_.cores + (spec_.cores == 2 ? Affine::of(core_variable) : Affine(0));
        run(builder, parts, {item, {false, paired > 1}, row_tiles(spec_.local_queries, false)}, adds, "bounds");
      });
    if (spec_.items() % spec_.cores == 1)
      run(builder, parts, {spec_.items() - 1, {true, false}, row_tiles(spec_.local_queries, true)}, adds,
          "shared_bounds");
  }

  GradientTarget home(TensorHandle const& tensor, Round const& round, Index head, Index rows, Index dim,
                      Index heads_per_item) const {
    return {tensor, round.item * (heads_per_item * rows * dim) + head * rows * dim, rows, dim};
  }

  void run(Builder& builder, Parts& parts, Round const& round, bool adds, char const* bounds_name) {
    BackwardStep own = backward_step(spec_, *mask_, round.tiles, section_tiles_, key_rows_, true);
    BackwardStep others = backward_step(spec_, *mask_, round.tiles, section_tiles_, key_rows_, false);
    int const steps = builder.program().ranks > 1 && !others.units.empty() ? builder.program().ranks : 1;
    auto const& shape = spec_.shape;
    Index const q_size = heads() * spec_.local_queries * shape.head_dim,
                dout_size = heads() * spec_.local_queries * shape.value_dim;
    Index const k_size = spec_.local_keys * shape.head_dim, v_size = spec_.local_keys * shape.value_dim;
    std::vector<TravelBuffers::Operand> travelling;
    if (queries_travel())
      travelling = {{"q", q_size, spec_.type},
                    {"dout", dout_size, spec_.type},
                    {"lse", column_size(), ElementType::float32},
                    {"delta", column_size(), ElementType::float32}};
    else
      travelling = {{"k", k_size, spec_.type}, {"v", v_size, spec_.type}};
    TravelBuffers travel(builder, spec_, round.kind, travelling, steps);
    std::vector<CarriedGradient> carried;
    if (queries_travel())
      carried.emplace_back(builder, spec_, round.kind, "dq", q_size, steps);
    else {
      carried.emplace_back(builder, spec_, round.kind, "dk", k_size, steps);
      carried.emplace_back(builder, spec_, round.kind, "dv", v_size, steps);
    }
    // Cores that share an item sum the gradients of keys apart and join them.
    TensorHandle dk_parts, dv_parts;
    if (round.kind.shared) {
      dk_parts = builder.tensor("dk_parts", {2, k_size}, ElementType::float32);
      dv_parts = builder.tensor("dv_parts", {2, v_size}, ElementType::float32);
    }
    TensorHandle own_delta;
    if (delta_.buffer < 0)
      own_delta = builder.tensor("own_delta" + round.kind.suffix(), {round.kind.parts(spec_), column_size()},
                                 ElementType::float32);

    if (adds) copy_old(builder, round);
    BoundsTiles bounds(builder, *mask_, mask_input_, round.tiles, bounds_name);
    bounds.prepare();
    travel.before_filling();
    if (own_delta.buffer >= 0)
      parts.numbers.write_delta(dout_, output_, round.item, round.kind, round.tiles,
                                travel.travels() && queries_travel() ? travel.at(3, 0) : own_delta);
    // A row that both cores compute was stored by one.
    if (own_delta.buffer >= 0 && round.kind.shared && !(travel.travels() && queries_travel()))
      builder.emit(CoreBarrier{own_delta.whole()});
    fill(travel, round);
    int const owner = builder.program().ranks > 1 ? builder.make_register() : -1;

    std::vector<char> touched_keys(static_cast<std::size_t>(ceil_divide(spec_.local_keys, key_rows_)), adds);
    bool touched_queries = adds;
    std::vector<Body> bodies;
    for (int step = 0; step < steps; ++step)
      bodies.push_back(builder.collect([&] {
        builder.section("step", step);
        travel.send(step);
        for (CarriedGradient& gradient : carried) gradient.begin_step(step);
        if (owner >= 0 && bounds.needed()) builder.emit(ProcessingRank{owner, step, 0});
        Index const bounds_number = bounds.needed() ? bounds.load(owner, batch_of(round.item)) : -1;
        bool const from_buffers = step > 0 && steps > 1;

        StepContext context{round, step, bounds, bounds_number};
        auto const travelled = [&](std::size_t operand, Index head_size, Index head) {
          return std::pair{travel.at(operand, step), travel.offset(operand) + head * head_size};
        };
        context.queries = [&](Index head) {
          auto const [tensor, offset] =
              queries_travel() && from_buffers
                  ? travelled(0, spec_.local_queries * shape.head_dim, head)
                  : std::pair{q_, round.item * q_size + head * spec_.local_queries * shape.head_dim};
          return HeadSource{tensor, offset, spec_.local_queries, shape.head_dim, spec_.queries_by_token};
        };
        context.dout = [&](Index head) {
          auto const [tensor, offset] =
              queries_travel() && from_buffers
                  ? travelled(1, spec_.local_queries * shape.value_dim, head)
                  : std::pair{dout_, round.item * dout_size + head * spec_.local_queries * shape.value_dim};
          return HeadSource{tensor, offset, spec_.local_queries, shape.value_dim, true};
        };
        context.lse = [&](Index head) {
          auto const [tensor, offset] =
              queries_travel() && from_buffers
                  ? travelled(2, tile_rows * columns(), head)
                  : std::pair{lse_, round.item * column_size() + head * tile_rows * columns()};
          return ColumnSource{tensor, offset, columns()};
        };
        context.delta = [&](Index head) {
          if (queries_travel() && steps > 1) {
            auto const [tensor, offset] = travelled(3, tile_rows * columns(), head);
            return ColumnSource{tensor, offset, columns()};
          }
          if (delta_.buffer >= 0)
            return ColumnSource{delta_, round.item * column_size() + head * tile_rows * columns(), columns()};
          return ColumnSource{own_delta, round.kind.part(spec_) * column_size() + head * tile_rows * columns(),
                              columns()};
        };
        bool const keys_from_buffers = !queries_travel() && from_buffers;
        context.keys = {keys_from_buffers ? travel.at(0, step) : k_,
                        keys_from_buffers ? travel.offset(0) : round.item * k_size, spec_.local_keys, shape.head_dim,
                        spec_.keys_by_token};
        context.values = {keys_from_buffers ? travel.at(1, step) : v_,
                          keys_from_buffers ? travel.offset(1) : round.item * v_size, spec_.local_keys, shape.value_dim,
                          true};

        bool const carries = steps > 1;
        bool const dq_carried = carries && queries_travel(), keys_carried = carries && !queries_travel();
        context.dq = [&](Index head) {
          return dq_carried ? GradientTarget{carried[0].target(step),
                                             carried[0].offset() + head * spec_.local_queries * shape.head_dim,
                                             spec_.local_queries, shape.head_dim}
                            : home(dq_, round, head, spec_.local_queries, shape.head_dim, heads());
        };
        context.dk =
            round.kind.shared
                ? GradientTarget{dk_parts, Affine::of(core_variable) * k_size, spec_.local_keys, shape.head_dim}
            : keys_carried
                ? GradientTarget{carried[0].target(step), carried[0].offset(), spec_.local_keys, shape.head_dim}
                : home(dk_, round, 0, spec_.local_keys, shape.head_dim, 1);
        context.dv =
            round.kind.shared
                ? GradientTarget{dv_parts, Affine::of(core_variable) * v_size, spec_.local_keys, shape.value_dim}
            : keys_carried
                ? GradientTarget{carried[1].target(step), carried[1].offset(), spec_.local_keys, shape.value_dim}
                : home(dv_, round, 0, spec_.local_keys, shape.value_dim, 1);
        context.dq_adds = !dq_carried && touched_queries;
        bool const fresh_keys = keys_carried || (step == 0 && (round.kind.shared || !adds));
        if (fresh_keys) std::ranges::fill(touched_keys, false);
        context.touched_keys = &touched_keys;
        // The other core may still be joining what the last step summed.
        if (round.kind.shared && keys_carried && step > 0) {
          builder.emit(CoreBarrier{dk_parts.whole()});
          builder.emit(CoreBarrier{dv_parts.whole()});
        }
        work(builder, parts, step == 0 ? own : others, context);
        touched_queries = true;

        if (keys_carried || step + 1 == steps) clear_untouched(parts, context);
        if (round.kind.shared && (keys_carried || step + 1 == steps)) {
          builder.emit(CoreBarrier{dk_parts.whole()});
          builder.emit(CoreBarrier{dv_parts.whole()});
          GradientTarget const dk = keys_carried ? GradientTarget{carried[0].target(step), carried[0].offset(),
                                                                  spec_.local_keys, shape.head_dim}
                                                 : home(dk_, round, 0, spec_.local_keys, shape.head_dim, 1);
          GradientTarget const dv = keys_carried ? GradientTarget{carried[1].target(step), carried[1].offset(),
                                                                  spec_.local_keys, shape.value_dim}
                                                 : home(dv_, round, 0, spec_.local_keys, shape.value_dim, 1);
          auto const part = [](TensorHandle const& tensor, Index number, Index size, GradientTarget like) {
            return GradientTarget{tensor, number * size, like.rows, like.dim};
          };
          parts.gradients.join(dk, part(dk_parts, 0, k_size, dk), part(dk_parts, 1, k_size, dk), adds);
          parts.gradients.join(dv, part(dv_parts, 0, v_size, dv), part(dv_parts, 1, v_size, dv), adds);
        }
        for (CarriedGradient& gradient : carried) gradient.send(step);
      }));
    append_rolled(builder, "steps", std::move(bodies), 2);
    if (steps > 1) bring_home(builder, round, carried);
  }

  struct StepContext {
    Round const& round;
    int step;
    BoundsTiles const& bounds;
    Index bounds_number;
    std::function<HeadSource(Index)> queries{}, dout{};
    std::function<ColumnSource(Index)> lse{}, delta{};
    HeadSource keys{}, values{};
    std::function<GradientTarget(Index)> dq{};
    GradientTarget dk{}, dv{};
    bool dq_adds = false;
    std::vector<char>* touched_keys = nullptr;
  };

  void work(Builder& builder, Parts& parts, BackwardStep step, StepContext const& context) {
    auto const& tiles = context.round.tiles;
    parts.units.begin_step(tiles, context.bounds, context.bounds_number, parts.numbers.negated_lse(),
                           parts.numbers.delta());
    std::size_t unit = 0, visit = 0;
    Index numbers = -1;
    for (std::size_t s = 0; s < step.sections.size(); ++s) {
      QuerySection& section = step.sections[s];
      if (s == 0 || step.sections[s - 1].head != section.head)
        numbers = parts.numbers.load(tiles, context.lse(section.head), context.delta(section.head));
      section.numbers = numbers;
      std::size_t unit_end = unit, visit_end = visit;
      for (; unit_end < step.units.size() && step.units[unit_end].section == s; ++unit_end)
        visit_end = step.units[unit_end].key_tile + 1;
      if (unit == unit_end && context.dq_adds) continue;
      parts.units.load_section(section, context.queries(section.head), context.dout(section.head));
      if (visit < visit_end) parts.units.load_keys(step.key_tiles[visit], context.keys, context.values);
      std::vector<Body> visits;
      BackwardUnit const* before = nullptr;
      auto const finish = [&](BackwardUnit const* summed) {
        if (summed && summed->last) store_keys(parts, step, summed->key_tile, context);
      };
      for (; visit < visit_end; ++visit)
        visits.push_back(builder.collect([&] {
          if (visit + 1 < visit_end) parts.units.load_keys(step.key_tiles[visit + 1], context.keys, context.values);
          std::vector<Body> slots;
          for (; unit < unit_end && step.units[unit].key_tile == visit; ++unit)
            slots.push_back(builder.collect([&] {
              parts.units.slot(&step.units[unit], before, step.sections, step.key_tiles);
              finish(before);
              before = &step.units[unit];
            }));
          append_rolled(builder, "query_tile", std::move(slots));
        }));
      append_rolled(builder, "key_tile", std::move(visits));
      parts.units.slot(nullptr, before, step.sections, step.key_tiles);
      finish(before);
      std::vector<Body> rows;
      for (std::size_t tile = section.first_tile; tile < section.last_tile; ++tile)
        rows.push_back(builder.collect([&] {
          parts.gradients.store(context.dq(section.head), tiles[tile], parts.units.query_gradient(section, tile),
                                context.dq_adds);
        }));
      append_rolled(builder, "row_tile", std::move(rows));
    }
  }

  void store_keys(Parts& parts, BackwardStep const& step, std::size_t visit, StepContext const& context) {
    KeyTile const& keys = step.key_tiles[visit];
    char& touched = (*context.touched_keys)[step.key_tile_of_rows[visit]];
    auto const [dk, dv] = parts.units.key_gradients(keys);
    parts.gradients.store(context.dk, keys.rows.begin, keys.rows.size(), dk, touched);
    parts.gradients.store(context.dv, keys.rows.begin, keys.rows.size(), dv, touched);
    touched = true;
  }

  void clear_untouched(Parts& parts, StepContext const& context) {
    for (std::size_t i = 0; i < context.touched_keys->size(); ++i) {
      if ((*context.touched_keys)[i]) continue;
      Index const begin = static_cast<Index>(i) * key_rows_, count = std::min(key_rows_, spec_.local_keys - begin);
      parts.gradients.clear(context.dk, begin, count);
      parts.gradients.clear(context.dv, begin, count);
    }
  }

  void fill(TravelBuffers& travel, Round const& round) {
    auto const& shape = spec_.shape;
    if (queries_travel()) {
      Index const rows = heads() * spec_.local_queries;
      travel.fill(0, q_, round.item * (rows * shape.head_dim), shape.head_dim, 0, rows);
      travel.fill(1, dout_, round.item * (rows * shape.value_dim), shape.value_dim, 0, rows);
      travel.fill(2, lse_, round.item * column_size(), columns(), 0, heads() * tile_rows);
    } else {
      travel.fill(0, k_, round.item * (spec_.local_keys * shape.head_dim), shape.head_dim, 0, spec_.local_keys);
      travel.fill(1, v_, round.item * (spec_.local_keys * shape.value_dim), shape.value_dim, 0, spec_.local_keys);
    }
  }

  /// A core's share of a whole gradient of an item, from one tensor to another.
  void copy_item(Builder& builder, Round const& round, TensorHandle const& from, Affine const& from_offset,
                 TensorHandle const& to, Index rows, Index dim) {
    Affine const to_offset = round.item * (rows * dim);
    auto const copy = [&](Affine const& first, Index count) {
      builder.emit(DmaCopy{to.pattern(to_offset + first * dim, {{dim, count}, {1, dim}}),
                           from.pattern(from_offset + first * dim, {{dim, count}, {1, dim}})});
    };
    if (!round.kind.shared) {
      copy(0, rows);
      return;
    }
    builder.on_core(0, [&] { copy(0, ceil_divide(rows, 2)); });
    if (rows > 1) builder.on_core(1, [&] { copy(ceil_divide(rows, 2), rows / 2); });
  }

  void copy_old(Builder& builder, Round const& round) {
    auto const& shape = spec_.shape;
    auto const copy = [&](TensorHandle const& from, TensorHandle const& to, Index rows, Index dim) {
      copy_item(builder, round, from, round.item * (rows * dim), to, rows, dim);
      if (round.kind.shared) builder.emit(CoreBarrier{to.whole()});
    };
    copy(old_dq_, dq_, heads() * spec_.local_queries, shape.head_dim);
    copy(old_dk_, dk_, spec_.local_keys, shape.head_dim);
    copy(old_dv_, dv_, spec_.local_keys, shape.value_dim);
  }

  void bring_home(Builder& builder, Round const& round, std::vector<CarriedGradient> const& carried) {
    auto const& shape = spec_.shape;
    if (queries_travel()) {
      copy_item(builder, round, carried[0].home(), carried[0].offset(), dq_, heads() * spec_.local_queries,
                shape.head_dim);
    } else {
      copy_item(builder, round, carried[0].home(), carried[0].offset(), dk_, spec_.local_keys, shape.head_dim);
      copy_item(builder, round, carried[1].home(), carried[1].offset(), dv_, spec_.local_keys, shape.value_dim);
    }
  }

  Affine batch_of(Affine const& item) const {
    if (!mask_->has_documents() || spec_.shape.batch == 1) return 0;
    check<UnsupportedError>(spec_.shape.kv_heads == 1, "nki: packed documents with batch ", spec_.shape.batch, " and ",
                            spec_.shape.kv_heads, " kv heads; give each batch item a call of its own");
    return item;
  }

  KernelSpec spec_;
  RingMask const* mask_;
  Index section_tiles_ = 1, key_rows_ = tile_rows;
  TensorHandle q_, k_, v_, dout_, output_, lse_, delta_, mask_input_, dq_, dk_, dv_, old_dq_, old_dk_, old_dv_;
};

}  // namespace annulus::nki
