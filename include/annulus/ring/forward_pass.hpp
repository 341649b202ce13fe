#pragma once
// Forward pass: sums running states and normalises them to output and lse.

#include "annulus/ring/pass.hpp"

namespace annulus::detail {

template <Communicator C, Backend B, class T, class Predicate>
class ForwardPass : public SummingPass<C, B, T, Predicate> {
 public:
  using Base = SummingPass<C, B, T, Predicate>;
  using Base::perform;
  using typename Base::A;
  using typename Base::CallOperands;
  using typename Base::Context;
  using typename Base::L;
  using typename Base::Space;
  using Results = ForwardResults<T, L, Space>;

  /// results: output [batch, local_queries, query_heads, value_dim], lse and lse_remainder [batch, query_heads,
  /// local_queries]; lse_remainder without data is not written.
  ForwardPass(Context const& context, CallOperands const& operands, Results const& results)
      : Base(context, operands), results_(results) {
    RankGroups const& groups = context.plan.groups();
    for (std::size_t l = 0; l < this->lanes_.size(); ++l) {
      of_lanes_[l] = groups.splits_heads() ? results_of_group() : of_heads(this->heads_of_lane(l));
      of_lanes_[l].sinks = this->step_operands_[l].sinks;
    }
    bool const joined_later = context.plan.rotation() == Rotation::keys && groups.joins_results();
    // Without lse_remainder the passes need not agree to the bit, so products may be summed in any order; not for rows
    // whose results the ranks of a group join.
    recomputed_ = of_lanes_[0].lse_remainder.data() || joined_later;
    // A predicate may throw after some results are written; operands that share memory with them are still read.
    may_close_ = std::same_as<Predicate, EveryPair> && !context.require_finite &&
                 !may_share_memory(results.output, operands.q) && !may_share_memory(results.output, operands.k) &&
                 !may_share_memory(results.output, operands.v);
  }

  void perform(Work const& work, Action const& action, Progress progress) {
    CallOperands const operands = this->operands_of(work, action.lane);
    auto const state = this->slots_[work.query_sums].template state<A>();
    if (work.pairs == WorkPairs::joint)
      fold_step(this->joint_step(action, operands, progress), operands, state, {});
    else
      fold_pairs(work, action, operands, state, progress);
    RingPlan const& lane = this->lanes_[action.lane];
    this->inspect(work.query_sums, {this->rank_, action.step, work.queries.owner}, lane, work.queries.rows.begin);
  }

  void perform(Finish const& finish, Action const& action) {
    if (this->is_closed(finish.from.slot)) return;
    Results const results = of_rows(of_lanes_[action.lane], finish.rows);
    this->backend_.normalise(this->slots_[finish.from].template state<A>(), results.sinks, results.output, results.lse,
                             results.lse_remainder);
    ResultPlace const place = this->finished_at(action, Side::query);
    this->inspect_result("lse", results.lse, finish.rows.begin, place);
    this->inspect_result("output", results.output, finish.rows.begin, place);
  }

  void perform(Write const& write, Action const&) {
    SlotView<Space> const from = this->slots_[write.from];
    Results const results = of_heads(write.heads);
    this->backend_.copy(this->constant(from.template view<T>(Part::output)), results.output);
    this->backend_.copy(this->constant(from.template statistics<L>(Part::lse)), results.lse);
    if (results.lse_remainder.data())
      this->backend_.copy(this->constant(from.template statistics<L>(Part::lse_remainder)), results.lse_remainder);
  }

 private:
  void fold_pairs(Work const& work, Action const& action, CallOperands const& operands,
                  RunningState<A, Space> const& state, Progress progress) {
    auto step = this->step_of(work, action, operands, progress);
    if (work.opens_queries) step.opens = Sums::queries;
    bool const closes = may_close_ && work.closes_queries;
    if (closes) {
      step.closes = Sums::queries;
      this->note_closed(work.query_sums.slot);
    }
    fold_step(step, operands, state, closes ? of_rows(of_lanes_[action.lane], work.queries.rows) : Results{});
  }
  template <class Any>
  void fold_step(Step<T, Any, Space> step, CallOperands const& operands, RunningState<A, Space> const& state,
                 Results const& results) {
    step.recomputed = recomputed_;
    fold(this->backend_, step, operands.of_step(), state, results);
  }

  Results of_heads(HeadShare const& heads) const {
    return {detail::heads_of(results_.output, axis::heads, heads), detail::heads_of(results_.lse, 1, heads),
            detail::heads_of(results_.lse_remainder, 1, heads)};
  }
  static Results of_rows(Results const& results, RowRange rows) {
    return {Base::rows_of(results.output, axis::sequence, rows), Base::rows_of(results.lse, 2, rows),
            Base::rows_of(results.lse_remainder, 2, rows), results.sinks};
  }
  /// Results for the ranks of a group, in a slot.
  Results results_of_group() const {
    int const slot = this->context_.list.find(SlotKind::group_results, static_cast<int>(GroupRows::queries));
    SlotView<Space> const all = this->slots_.all(slot);
    return {all.template view<T>(Part::output), all.template statistics<L>(Part::lse),
            all.template statistics<L>(Part::lse_remainder)};
  }

  Results results_;
  std::array<Results, max_lanes> of_lanes_;  ///< of the rows and heads that a lane works on
  bool recomputed_ = true, may_close_ = false;
};

}  // namespace annulus::detail
