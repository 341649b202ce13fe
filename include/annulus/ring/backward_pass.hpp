#pragma once
// Backward pass: sums gradients and converts them to dq, dk, dv and, where asked for, those of the bias, of sink logits
// and of joint keys.

#include "annulus/ring/pass.hpp"

namespace annulus {

/// Destinations of the gradients: dq [batch, local_queries, query_heads, head_dim], dk [batch, local_keys, kv_heads,
/// head_dim], dv [batch, local_keys, kv_heads, value_dim], dbias with the extents of the bias, dsinks [query_heads, n].
/// dbias and dsinks without data are not computed. They may not overlap the operands, which are read while they are
/// written; after an error their elements are unspecified.
template <class T, class Space = HostMemory>
struct GradientViews {
  TensorView<T, 4, Space> dq, dk, dv;             ///< shaped as q, k and v
  TensorView<T, 4, Space> dbias{};                ///< shaped as the bias; without data: not computed
  TensorView<Accumulator<T>, 2, Space> dsinks{};  ///< [query_heads, n]; without data: not computed
  TensorView<T, 4, Space> d_joint_keys{};         ///< shaped as joint_keys; required if these are given
  TensorView<T, 4, Space> d_joint_values{};       ///< shaped as joint_values; required if these are given
};

namespace detail {

template <Communicator C, Backend B, class T, class G, class Predicate>
class BackwardPass : public SummingPass<C, B, T, Predicate> {
 public:
  using Base = SummingPass<C, B, T, Predicate>;
  using Base::perform;
  using typename Base::A;
  using typename Base::CallOperands;
  using typename Base::Context;
  using typename Base::L;
  using typename Base::Space;
  using Results = GradientResults<G, Space>;

  BackwardPass(Context const& context, CallOperands const& operands, GradientViews<G, Space> const& gradients)
      : Base(context, operands), gradients_(gradients) {
    for (std::size_t l = 0; l < this->lanes_.size(); ++l) {
      of_lanes_[l] = context.plan.groups().splits_heads() ? results_of_group() : of_heads(this->heads_of_lane(l));
      find_sums_in_results(l);
    }
    find_bias_gradient();
    bool contiguous = true;
    for (auto const& view : {gradients.dq, gradients.dk, gradients.dv})
      contiguous = contiguous && view.stride(axis::dim) == 1;
    may_close_ = std::same_as<G, T> && contiguous && !context.require_finite;
  }

  void perform(Work const& work, Action const& action, Progress progress) {
    CallOperands const operands = this->operands_of(work, action.lane);
    if (work.pairs == WorkPairs::joint) {
      StepGradients<A, Space> const sums{this->sum(work.query_sums, Part::dq),
                                         joint_share(work, action, Part::dk),
                                         joint_share(work, action, Part::dv),
                                         {}};
      return add_gradients(this->backend_, this->joint_step(action, operands, progress), operands.of_step(),
                           operands.known(), sums, Results{});
    }
    add_pairs(work, action, operands, progress);
    RingPlan const& lane = this->lanes_[action.lane];
    for (auto const& [sums, rows] : {std::pair{&work.query_sums, &work.queries}, {&work.key_sums, &work.keys}})
      this->inspect(*sums, {this->rank_, action.step, rows->owner}, lane, rows->rows.begin);
  }

  void perform(Clear const& clear, Action const& action) {
    if (kind_of(clear.rows) != SlotKind::bias_gradient) return Base::perform(clear, action);
    // On one rank the step writes every element; on several, a skipped step leaves elements unset.
    if (bias_result_.data() && (this->context_.plan.ranks() > 1 || this->context_.plan.transport().leaves))
      this->backend_.clear(bias_result_);
    if (bias_sums_.data()) this->backend_.clear(bias_sums_);
  }

  void perform(Finish const& finish, Action const& action) {
    switch (kind_of(finish.from)) {
      case SlotKind::sink_gradients:
        return this->backend_.convert(this->constant(sink_row(finish.from, action.lane)),
                                      detail::heads_of(gradients_.dsinks, 0, this->heads_of_lane(action.lane)));
      case SlotKind::joint_gradients:
        finish_joint(finish, action, Part::dk, gradients_.d_joint_keys, "d_joint_keys");
        return finish_joint(finish, action, Part::dv, gradients_.d_joint_values, "d_joint_values");
      case SlotKind::bias_gradient:
      case SlotKind::arriving:
        if (this->parts_of(finish.from)[0].part == Part::dbias) return finish_bias(finish, action);
        [[fallthrough]];
      default:
        for (PartLayout const& part : this->parts_of(finish.from)) finish_part(finish, action, part.part);
    }
  }

  void perform(Write const& write, Action const& action) {
    Results const results = of_heads(write.heads);
    for (PartLayout const& part : this->parts_of(write.from)) {
      auto const result = of_part(results, part.part);
      this->backend_.copy(this->constant(this->slots_[write.from].template view<G>(part.part)), result);
      this->inspect_result(name_of(part.part), result, 0, this->finished_at(action, Side::query));
    }
  }

  void perform(SinkShare const& share, Action const& action) {
    CallOperands const& own = this->own_[action.lane];
    this->backend_.sink_gradients(
        Base::rows_of(own.lse, 2, share.queries), Base::rows_of(own.lse_remainder, 2, share.queries),
        Base::rows_of(own.delta, 2, share.queries), own.sinks, sink_row(share.into, action.lane));
  }

 private:
  SlotKind kind_of(SlotRows const& rows) const { return this->slots_.slot(rows.slot).kind; }

  void add_pairs(Work const& work, Action const& action, CallOperands const& operands, Progress progress) {
    auto step = this->step_of(work, action, operands, progress);
    StepGradients<A, Space> gradients{this->sum(work.query_sums, Part::dq),
                                      this->sum(work.key_sums, Part::dk),
                                      this->sum(work.key_sums, Part::dv),
                                      {}};
    Results const& all = of_lanes_[action.lane];
    Results results;
    if (work.opens_queries) step.opens = step.opens | Sums::queries;
    if (work.opens_keys) step.opens = step.opens | Sums::keys;
    if (may_close_ && work.closes_queries) {
      step.closes = step.closes | Sums::queries;
      results.dq = Base::rows_of(all.dq, axis::sequence, work.queries.rows);
      this->note_closed(work.query_sums.slot);
    }
    if (may_close_ && work.closes_keys) {
      step.closes = step.closes | Sums::keys;
      results.dk = Base::rows_of(all.dk, axis::sequence, work.keys.rows);
      results.dv = Base::rows_of(all.dv, axis::sequence, work.keys.rows);
      this->note_closed(work.key_sums.slot);
    }
    if (bias_sums_.data()) gradients.dbias = pairs_of_work(bias_sums_, work, action);
    if (bias_result_.data()) {
      results.dbias = pairs_of_work(bias_result_, work, action);
      step.opens = step.opens | Sums::pairs;
      step.closes = step.closes | Sums::pairs;
    }
    add_gradients(this->backend_, step, operands.of_step(), operands.known(), gradients, results);
  }

  /// Pairs of the queries of a Work with all keys, of a gradient of the bias.
  template <class E>
  TensorView<E, 4, Space> pairs_of_work(TensorView<E, 4, Space> const& gradient, Work const& work,
                                        Action const& action) const {
    auto const all = detail::heads_of(gradient, 1, this->heads_of_lane(action.lane));
    RowRange const rows = work.queries.from.rows;
    return broadcast(all.slice(2, rows.begin, rows.size()), Base::pairs_of(this->lanes_[action.lane], rows.size()));
  }

  /// The share of this rank in a joint gradient, of the heads that it works on.
  TensorView<A, 4, Space> joint_share(Work const& work, Action const& action, Part part) const {
    auto const share = joint_row(work.key_sums, action, part);
    RankGroups const& groups = this->context_.plan.groups();
    return groups.splits_heads() ? detail::heads_of(share, axis::heads, {groups.place(this->rank_), groups.size()})
                                 : share;
  }
  /// A row of the joint gradients, as [batch, n, kv_heads, dim].
  TensorView<A, 4, Space> joint_row(SlotRows const& row, Action const& action, Part part) const {
    PlanRequest const& request = this->lanes_[action.lane].request();
    auto const view = this->slots_[row].template view<A>(part);
    return {view.data(), {request.shape.batch, request.joint_keys, request.shape.kv_heads, view.extent(axis::dim)}};
  }
  /// A row of the gradients of sink logits, as [query_heads, n].
  TensorView<A, 2, Space> sink_row(SlotRows const& row, int lane) const {
    return {this->slots_[row].template view<A>(Part::dsinks).data(),
            this->own_[static_cast<std::size_t>(lane)].sinks.extents()};
  }

  void finish_part(Finish const& finish, Action const& action, Part part) {
    auto const result =
        of_part(of_lanes_[action.lane], part).slice(axis::sequence, finish.rows.begin, finish.rows.size());
    bool const is_written = this->is_closed(finish.from.slot) || this->find_in_result(finish.from.slot, part);
    if (!is_written) this->backend_.convert(this->constant(this->sum(finish.from, part)), result);
    Side const side = part == Part::dq ? Side::query : Side::key;
    this->inspect_result(name_of(part), result, finish.rows.begin, this->finished_at(action, side));
  }
  void finish_joint(Finish const& finish, Action const& action, Part part, TensorView<G, 4, Space> const& result,
                    std::string_view name) {
    auto const of_lane = detail::heads_of(result, axis::heads, this->heads_of_lane(action.lane));
    this->backend_.convert(this->constant(joint_row(finish.from, action, part)), of_lane);
    this->inspect_result(name, of_lane, 0, this->finished_at(action, Side::key));
  }
  void finish_bias(Finish const& finish, Action const& action) {
    auto const result = detail::heads_of(gradients_.dbias, 1, finish.heads);
    if (action.step == Action::in_group)
      this->backend_.convert(this->constant(bias_rows(finish.from, result.extent(1))), result);
    else if constexpr (!std::same_as<G, A>)
      if (!bias_result_.data()) this->backend_.convert(this->constant(bias_sums_), result);
    this->inspect_result("dbias", result.permuted({0, 2, 1, 3}), 0,
                         ResultPlace{this->rank_, this->context_.plan.steps() - 1, this->rank_});
  }
  /// Rows of the sums of the gradient of the bias, [batch|1, heads, rows, global_keys].
  TensorView<A, 4, Space> bias_rows(SlotRows const& rows, Index heads) const {
    Index const batch = this->context_.plan.request().bias.batch, keys = this->context_.plan.global_keys();
    return {this->slots_[rows].template view<A>(Part::dbias).data(),
            {batch, heads, rows.rows.size(), keys},
            {heads * keys, keys, batch * heads * keys, 1}};
  }

  /// Decides where the gradient of the bias is summed: in its result, in a slot, or written by the steps.
  void find_bias_gradient() {
    RingPlan const& plan = this->context_.plan;
    PlanRequest const& request = plan.request();
    bool const joined_later = !plan.transport().after[index_of(GroupRows::pairs)].empty();
    if (!gradients_.dbias.data() && !joined_later) return;
    if constexpr (ClosingBackend<B> && std::same_as<G, T>) {
      // Pairs that share an element of the caller's view are summed in it, if it has the type of sums.
      bool shared = false;
      for (std::size_t a = 0; a < 4; ++a)
        shared = shared || (gradients_.dbias.stride(a) == 0 && gradients_.dbias.extent(a) > 1);
      if (request.writes_bias_gradient && !joined_later && !(std::same_as<G, A> && shared)) {
        bias_result_ = gradients_.dbias;
        return;
      }
    }
    if constexpr (std::same_as<G, A>)
      if (!joined_later) {
        bias_sums_ = gradients_.dbias;
        return;
      }
    RankGroups const& groups = plan.groups();
    Index const heads = request.bias.heads / (groups.splits_heads() && request.bias.heads > 1 ? groups.size() : 1);
    bias_sums_ = bias_rows(
        {this->context_.list.find(SlotKind::bias_gradient, 0), {0, groups.rows(Side::query, this->rank_)}}, heads);
  }

  void find_sums_in_results(std::size_t l) {
    if constexpr (std::same_as<G, A>) {
      RingPlan const& lane = this->lanes_[l];
      if (lane.transport().leaves || lane.groups().joins_results()) return;
      int const number = static_cast<int>(l);
      for (Part const part : {Part::dq, Part::dk, Part::dv}) {
        bool const travels = (part == Part::dq) != (lane.rotation() == Rotation::keys);
        auto result = of_part(of_lanes_[l], part);
        if (result.stride(axis::dim) != 1 || (travels && lane.steps() > 1) ||
            (!travels && lane.transport().shares_buffers()))
          continue;
        if (travels) {
          RowRange const rows = lane.rotating_rows(this->rank_);
          result = result.slice(axis::sequence, rows.begin, rows.size());
        }
        int const slot = this->context_.list.find(travels ? SlotKind::results : SlotKind::resident, 0, number);
        this->in_results_.push_back({slot, part, result});
      }
    }
  }

  static TensorView<G, 4, Space> of_part(Results const& results, Part part) {
    return part == Part::dq ? results.dq : part == Part::dk ? results.dk : results.dv;
  }
  Results of_heads(HeadShare const& heads) const {
    auto const share = [&](TensorView<G, 4, Space> const& view) { return detail::heads_of(view, axis::heads, heads); };
    return {share(gradients_.dq), share(gradients_.dk), share(gradients_.dv)};
  }
  /// Results for the ranks of a group, in slots.
  Results results_of_group() const {
    auto const all = [&](GroupRows kind, Part part) {
      return this->slots_.all(this->context_.list.find(SlotKind::group_results, static_cast<int>(kind)))
          .template view<G>(part);
    };
    return {all(GroupRows::queries, Part::dq), all(GroupRows::keys, Part::dk), all(GroupRows::keys, Part::dv)};
  }

  GradientViews<G, Space> gradients_;
  std::array<Results, max_lanes> of_lanes_;  ///< of the rows and heads that a lane works on
  TensorView<A, 4, Space> bias_sums_{};      ///< sums of the gradient of the bias
  TensorView<G, 4, Space> bias_result_{};    ///< the gradient of the bias, if the steps write it
  bool may_close_ = false;
};

}  // namespace detail

}  // namespace annulus
