#pragma once
// Base of both passes: the operands that a rank works on, sums in slots, and the steps that it hands to the backend.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "annulus/backend/open_close.hpp"
#include "annulus/ring/executor.hpp"
#include "annulus/ring/finite_results.hpp"
#include "annulus/ring/pass_operands.hpp"
#include "annulus/ring/step_places.hpp"
#include "annulus/ring/wire_rows.hpp"

namespace annulus::detail {

/// Largest number of lanes of a plan.
constexpr std::size_t max_lanes = 2;

/// Memory of a pass, kept between calls.
template <Communicator C, Backend B>
struct PassMemory {
  Slots<C, B> slots;
  StepPlaces places;
  bool reserved = false;  ///< the slots have memory for the list of the pass

  /// Allocates what a new list needs.
  void reserve(B& backend, C& ring, ActionList const& list) {
    slots.use(list);
    if (reserved) return;
    slots.reserve(backend, ring, list);
    reserved = true;
  }
};

/// Arguments of both passes. The objects referred to outlive the pass.
template <Communicator C, Backend B, class Predicate>
struct PassContext {
  RingPlan const& plan;
  ActionList const& list;
  C& ring;
  B& backend;
  Predicate const& predicate;
  PassMemory<C, B>& memory;
  IntervalRecorder const& recorder;
  std::uint64_t call;  ///< number of the call, for the checksums
  bool require_finite;
};

/// The parts of a pass that do not depend on what it sums.
template <Communicator C, Backend B, class T, class Predicate>
class SummingPass {
 public:
  using Space = typename B::memory_space;
  using A = AccumulatorOf<B, T>;
  using L = Accumulator<T>;
  using CallOperands = PassOperands<T, A, Space>;
  using Context = PassContext<C, B, Predicate>;

  void perform(Pack const& pack, Action const& action) {
    SlotView<Space> const into = slots_[pack.into];
    step_operands_[action.lane].visit([&](auto const& view, OperandAxes const& axes) {
      bool const concerned = axes.packed && axes.kind == pack.kind && into.layout().has(axes.part);
      if (concerned)
        pack_operand(heads_of(slice_of(view, axes.rows, pack.rows.begin, pack.rows.size()), axes.heads, pack.heads),
                     axes, into);
    });
  }
  void perform(Take const& take, Action const& action) {
    step_operands_[action.lane].take(take.kind, slots_[take.from]);
  }
  void perform(Delta const& delta, Action const& action) {
    CallOperands& own = step_operands_[action.lane];
    auto const rows = slots_[delta.into].template statistics<A>(Part::delta);
    backend_.row_delta(own.dout, own.output, rows);
    own_[action.lane].delta = rows;
  }
  void perform(Clear const& clear, Action const&) {
    if (slots_[clear.rows].is_state()) return backend_.reset(slots_[clear.rows].template state<A>());
    for (PartLayout const& part : parts_of(clear.rows)) backend_.clear(sum(clear.rows, part.part));
  }
  void perform(Join const& join, Action const& action) {
    if (slots_[join.into].is_state())
      backend_.merge(slots_[join.into].template state<A>(), slots_[join.from].template state<A>());
    else
      for (PartLayout const& part : parts_of(join.into))
        backend_.add(sum(join.into, part.part), constant(sum(join.from, part.part)));
    bool const travels = context_.memory.slots.slot(join.into.slot).kind == SlotKind::results &&
                         !context_.plan.transport().direct && action.step >= 0;
    if (!travels) return;
    RingPlan const& lane = lanes_[action.lane];
    inspect(join.into, {rank_, action.step, lane.owner(rank_, action.step)}, lane,
            lane.step(rank_, action.step).held.begin);
  }
  void perform(Copy const& copy, Action const&) {
    SlotView<Space> const from = slots_[copy.from], into = slots_[copy.into];
    SlotKind const kind = context_.memory.slots.slot(copy.into.slot).kind;
    if (kind == SlotKind::widened || kind == SlotKind::rounded) {
      if constexpr (std::same_as<Space, HostMemory>) widen_rows<T>(context_.plan.request().wire, from, into);
    } else {
      for (PartLayout const& part : parts_of(copy.from))
        backend_.copy(constant(from.template view<A>(part.part)), into.template view<A>(part.part));
    }
  }

 protected:
  SummingPass(Context const& context, CallOperands const& operands)
      : context_(context),
        backend_(context.backend),
        slots_(context.memory.slots),
        lanes_(context.plan.lanes()),
        rank_(context.ring.rank()) {
    RankGroups const& groups = context.plan.groups();
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      own_[l] = step_operands_[l] = operands.of_heads(heads_of_lane(l));
      if (!groups.splits_heads()) continue;
      CallOperands const of_place = own_[l].of_heads({groups.place(rank_), groups.size()});
      step_operands_[l].sinks = of_place.sinks;
      step_operands_[l].joint_keys = of_place.joint_keys;
      step_operands_[l].joint_values = of_place.joint_values;
    }
  }

  /// Heads of the call that a lane of the plan computes.
  HeadShare heads_of_lane(std::size_t lane) const {
    if (lanes_.size() == 1 || lanes_[lane].transport().halves_rows()) return {};
    return {static_cast<int>(lane), static_cast<int>(lanes_.size())};
  }

  /// Operands of a Work.
  CallOperands operands_of(Work const& work, int lane) const {
    CallOperands operands = step_operands_[static_cast<std::size_t>(lane)];
    read(operands, GroupRows::queries, work.queries.from);
    if (work.pairs == WorkPairs::joint) {
      operands.k = operands.joint_keys;
      operands.v = operands.joint_values;
    } else {
      read(operands, GroupRows::keys, work.keys.from);
    }
    return operands;
  }

  /// The step of a Work; valid until the next one is built.
  Step<T, Predicate, Space> step_of(Work const& work, Action const& action, CallOperands const& operands,
                                    Progress progress) {
    RingPlan const& lane = lanes_[action.lane];
    StepPlaces& places = context_.memory.places;
    if (work.pairs == WorkPairs::leaves)
      places.find_leaves(lane.transport().leaves->grid(), work.queries.leaf, work.keys.leaf);
    else
      places.find(lane, rank_, action.step);
    Step<T, Predicate, Space> step{.tiles = places.tiles(),
                                   .rules = lane.request().rules,
                                   .query_positions = places.query_positions(),
                                   .key_positions = places.key_positions(),
                                   .first_head = lane.groups().first_head(rank_) + lane.query_heads().begin,
                                   .predicate = &context_.predicate,
                                   .query_documents = operands.query_documents,
                                   .key_documents = operands.key_documents,
                                   .progress = progress};
    std::array<Index, 4> const pairs = pairs_of(lane, static_cast<Index>(step.query_positions.size()));
    if (operands.bias.data()) step.bias = broadcast(operands.bias, pairs);
    if (operands.mask.data()) step.boolean_mask = broadcast(operands.mask, pairs);
    return step;
  }
  /// The step of queries with the joint keys, which no rule by position restricts.
  Step<T, EveryPair, Space> joint_step(Action const& action, CallOperands const& operands, Progress progress) {
    static constexpr EveryPair every_pair;
    RingPlan const& lane = lanes_[action.lane];
    StepPlaces& places = context_.memory.places;
    places.find_joint(operands.q.extent(axis::sequence), operands.k.extent(axis::sequence), operands.query_documents);
    return {.tiles = places.tiles(),
            .rules = lane.request().rules.without_positions(),
            .query_positions = places.query_positions(),
            .key_positions = places.key_positions(),
            .first_head = lane.groups().first_head(rank_) + lane.query_heads().begin,
            .predicate = &every_pair,
            .boolean_mask = places.template joint_mask<Space>(lane.shape()),
            .progress = progress};
  }

  /// Extents of the pairs of a lane's queries with all keys.
  static std::array<Index, 4> pairs_of(RingPlan const& lane, Index queries) {
    return {lane.shape().batch, lane.query_heads().size(), queries, lane.global_keys()};
  }

  auto const& parts_of(SlotRows const& rows) const { return slots_.memory(rows.slot).layout().parts; }
  /// Sums of a part in a slot, or in the result itself.
  TensorView<A, 4, Space> sum(SlotRows const& rows, Part part) const {
    if (SummedInResult const* const one = find_in_result(rows.slot, part))
      return one->result.slice(axis::sequence, rows.rows.begin, rows.rows.size());
    return slots_[rows].template view<A>(part);
  }

  /// Results whose type is that of sums are summed there instead of in a slot, if they do not leave the rank.
  struct SummedInResult {
    int slot = -1;
    Part part{};
    TensorView<A, 4, Space> result{};
  };
  /// Null if the sums are in their slot.
  SummedInResult const* find_in_result(int slot, Part part) const {
    for (SummedInResult const& one : in_results_)
      if (one.slot == slot && one.part == part) return &one;
    return nullptr;
  }

  /// A Work has written the results of these sums.
  void note_closed(int slot) { closed_.push_back(slot); }
  bool is_closed(int slot) const { return std::find(closed_.begin(), closed_.end(), slot) != closed_.end(); }

  /// Checks the sums of rows that Work has added to, if the caller asks for it. place: of the rows' owner; first_row:
  /// of the sums, among the rows that the owner works on.
  void inspect(SlotRows const& rows, ResultPlace const& place, RingPlan const& lane, Index first_row) const {
    if constexpr (std::same_as<Space, HostMemory>) {
      if (!context_.require_finite || rows.slot < 0) return;
      if (slots_[rows].is_state()) {
        auto const state = slots_[rows].template state<A>();
        ResultPlace const of_queries = place.of_rows(lane, Side::query);
        require_finite("the maximum of the logits", state.maximum, first_row, of_queries);
        require_finite("the sum of the weights", state.sum, first_row, of_queries);
        require_finite("the un-normalised output", state.accumulator, first_row, of_queries);
      } else {
        for (PartLayout const& part : parts_of(rows))
          require_finite(name_of(part.part), sum(rows, part.part), first_row,
                         place.of_rows(lane, part.part == Part::dq ? Side::query : Side::key));
      }
    }
  }
  /// Origin of finished rows: this rank's own, or (before results are exchanged) those of its group.
  ResultPlace finished_at(Action const& action, Side side) const {
    ResultPlace const own{rank_, context_.plan.steps() - 1, rank_};
    return action.step == Action::in_group ? own : own.of_rows(lanes_[action.lane], side);
  }
  template <class View>
  void inspect_result(std::string_view name, View const& view, Index first_row, ResultPlace const& place) const {
    if constexpr (std::same_as<Space, HostMemory>)
      if (context_.require_finite) require_finite(name, view, first_row, place);
  }

  template <class E, std::size_t N>
  static TensorView<E const, N, Space> constant(TensorView<E, N, Space> const& view) {
    return view;
  }
  template <class View>
  static View rows_of(View const& view, std::size_t axis, RowRange rows) {
    return view.data() ? view.slice(axis, rows.begin, rows.size()) : view;
  }

  Context const& context_;
  B& backend_;
  Slots<C, B> const& slots_;
  std::span<RingPlan const> lanes_;
  Rank rank_;
  std::array<CallOperands, max_lanes> own_;            ///< this rank's, of the heads of a lane
  std::array<CallOperands, max_lanes> step_operands_;  ///< those that it works on
  ShortList<SummedInResult, 6> in_results_;
  ShortList<int, 4> closed_;

 private:
  template <class E, std::size_t N>
  void pack_operand(TensorView<E const, N, Space> const& rows, OperandAxes const& axes, SlotView<Space> const& into) {
    if (!rows.data()) return backend_.clear(view_in<E, N>(into, axes));
    if constexpr (std::same_as<Space, HostMemory> && std::same_as<E, T> && N == 4)
      if (PlanRequest const& request = context_.plan.request(); request.has_wire() && has_wire_type(axes.part))
        return with_wire(request.wire, [&]<class W>(std::type_identity<W>) { round_rows<W>(rows, into, axes.part); });
    backend_.copy(rows, view_in<E, N>(into, axes));
  }
  void read(CallOperands& operands, GroupRows kind, SlotRows const& from) const {
    if (from.slot < 0)
      operands.keep_rows(kind, from.rows);
    else
      operands.take(kind, slots_[from]);
  }
};

/// Executes a pass of this rank, which writes `results`.
template <class Pass, class Results>
void run_pass(typename Pass::Context const& context, typename Pass::CallOperands const& operands,
              Results const& results) {
  context.memory.reserve(context.backend, context.ring, context.list);
  Pass pass(context, operands, results);
  execute(context.list, pass, context.memory.slots, context.ring, context.backend, context.recorder, context.call);
}

}  // namespace annulus::detail
