#pragma once
// The passes of all schedules: the ranks of a group exchange operands, the rings between the groups compute, and the
// results return to the owners of their rows. In schedules without groups every rank is one, and nothing is exchanged.

#include <cstddef>
#include <cstdint>

#include "annulus/ring/backward_pass.hpp"
#include "annulus/ring/forward_pass.hpp"
#include "annulus/ring/group_transfers.hpp"

namespace annulus::detail {

/// Calls exchange(transfers) and waits for the transfers that it starts. An error of the communicator names the
/// exchange, and abandons the ring while the transfers exist: their destruction would notify the peers without the
/// reason.
template <Communicator C, Backend B, class Predicate, class Exchange>
void exchange_in_group(PassContext<C, B, Predicate> const& context, Exchange&& exchange) {
  SynchronizeOnUnwind const synchronize(context.backend);
  GroupTransfers<C, B> transfers(context.plan, context.communicator, context.buffers);
  or_abandon(context.communicator, [&] {
    try {
      exchange(transfers);
      transfers.finish();
    } catch (CommunicationError const& error) {
      throw CommunicationError(message_of("exchange between the ranks of a group: ", error.what()),
                               context.communicator.rank(), error.step(), error.neighbour());
    }
  });
}

/// The operands that a rank works on: its own, or those of its group.
template <Communicator C, Backend B, class T, class Predicate>
class GroupedOperands {
 public:
  using Space = typename B::memory_space;
  using A = AccumulatorOf<B, T>;
  using L = Accumulator<T>;
  using Payload = typename RingBuffers<C, B>::Payload;
  using Known = BackwardOperands<T, L, A, Space>;

  /// known: of this rank's queries; without dout in the forward pass.
  GroupedOperands(PassContext<C, B, Predicate> const& context, StepOperands<T, Space> const& own,
                  Operands<T, Space> const& operands, Known const& known)
      : context_(context), groups_(context.plan.groups()), own_(own), operands_(operands), known_(known) {
    Rank const rank = context.communicator.rank();
    context.buffers.group.reserve_before(context.backend, context.plan.group_exchange(), rank);
    exchange_in_group(context, [&](GroupTransfers<C, B>& transfers) {
      for (int member = 0; member < groups_.size(); ++member)
        if (groups_.splits_heads() || member == groups_.place(rank)) pack(transfers, member);
      context.backend.synchronize();
      for (GroupRows kind : GroupExchange::all) transfers.start_before(kind);
    });
    take_gathered();
  }

  StepOperands<T, Space> const& own() const { return own_; }
  Operands<T, Space> const& operands() const { return operands_; }
  Known const& known() const { return known_; }

 private:
  /// Share of a member of the group in the heads along an axis of a view, of which there may be one for all.
  template <class View>
  View heads_of(View const& view, std::size_t axis, int member) const {
    if (!groups_.splits_heads() || view.extent(axis) == 1) return view;
    Index const heads = view.extent(axis) / groups_.size();
    return view.slice(axis, member * heads, heads);
  }
  /// The rows of pairs [batch, heads, rows, keys] of a part.
  template <class Element, class Rows>
  static TensorView<Element, 4, Space> pairs(Rows const& rows, Part part) {
    return rows.template view<Element>(part).permuted({0, 2, 1, 3});
  }

  /// Packs this rank's rows for a member of the group.
  void pack(GroupTransfers<C, B> const& transfers, int member) const {
    B& backend = context_.backend;
    auto& buffers = context_.buffers.group;
    bool const is_own = member == groups_.place(context_.communicator.rank());
    auto const rows_of = [&](GroupRows kind) {
      return is_own ? transfers.own_rows(kind, buffers.gathered(kind)) : transfers.staged_rows(kind, member);
    };
    auto const pack_rows = [&](auto const& rows, Part part, TensorView<T const, 4, Space> const& view) {
      auto const heads = heads_of(view, axis::heads, member);
      if (!context_.buffers.wire.pack(heads, rows, part)) backend.copy(heads, rows.template view<T>(part));
    };
    if (groups_.gathers(Side::query)) {
      auto const rows = rows_of(GroupRows::queries);
      pack_rows(rows, Part::q, own_.q);
      if (context_.plan.request().pass == Pass::backward) {
        pack_rows(rows, Part::dout, known_.dout);
        backend.copy(heads_of(known_.lse, 1, member), rows.template statistics<L>(Part::lse));
        backend.copy(heads_of(known_.delta, 1, member), rows.template statistics<A>(Part::delta));
        auto const remainder = rows.template statistics<L>(Part::lse_remainder);
        if (known_.lse_remainder.data())
          backend.copy(heads_of(known_.lse_remainder, 1, member), remainder);
        else
          backend.clear(remainder);
      }
      if (operands_.query_documents) backend.copy(*operands_.query_documents, rows.document_ids());
      auto const pair_rows = rows_of(GroupRows::pairs);
      if (operands_.bias) backend.copy(heads_of(*operands_.bias, 1, member), pairs<T>(pair_rows, Part::bias));
      if (operands_.mask)
        backend.copy(heads_of(*operands_.mask, 1, member), pairs<bool>(pair_rows, Part::boolean_mask));
    }
    if (groups_.gathers(Side::key)) {
      auto const rows = rows_of(GroupRows::keys);
      pack_rows(rows, Part::k, own_.k);
      pack_rows(rows, Part::v, own_.v);
      if (operands_.key_documents) backend.copy(*operands_.key_documents, rows.document_ids());
    }
  }

  /// Replaces the operands by those of the group.
  void take_gathered() {
    auto& buffers = context_.buffers.group;
    auto& wire = context_.buffers.wire;
    auto const rows_of = [&](GroupRows kind) {
      return PayloadRows<Payload>{&buffers.gathered(kind), buffers.gathered(kind).rows()};
    };
    if (groups_.gathers(Side::query)) {
      auto const rows = rows_of(GroupRows::queries), pair_rows = rows_of(GroupRows::pairs);
      own_.q = wire.template of_group<T>(rows, Part::q);
      if (context_.plan.request().pass == Pass::backward)
        known_ = {wire.template of_group<T>(rows, Part::dout), rows.template statistics<L>(Part::lse),
                  rows.template statistics<A>(Part::delta), rows.template statistics<L>(Part::lse_remainder)};
      if (operands_.query_documents) operands_.query_documents = constant(rows.document_ids());
      if (operands_.bias) operands_.bias = constant(pairs<T>(pair_rows, Part::bias));
      if (operands_.mask) operands_.mask = constant(pairs<bool>(pair_rows, Part::boolean_mask));
    }
    if (groups_.gathers(Side::key)) {
      auto const rows = rows_of(GroupRows::keys);
      own_.k = wire.template of_group<T>(rows, Part::k);
      own_.v = wire.template of_group<T>(rows, Part::v);
      if (operands_.key_documents) operands_.key_documents = constant(rows.document_ids());
    }
    if (operands_.joint_keys && groups_.splits_heads()) {
      int const place = groups_.place(context_.communicator.rank());
      operands_.joint_keys = heads_of(*operands_.joint_keys, axis::heads, place);
      operands_.joint_values = heads_of(*operands_.joint_values, axis::heads, place);
    }
    if (operands_.sinks && groups_.splits_heads())
      static_cast<OptionalView<L, 2, Space>&>(operands_.sinks) =
          heads_of(*operands_.sinks, 0, groups_.place(context_.communicator.rank()));
  }

  template <class Element, std::size_t N>
  static TensorView<Element const, N, Space> constant(TensorView<Element, N, Space> const& view) {
    return view;
  }

  PassContext<C, B, Predicate> const& context_;
  RankGroups const& groups_;
  StepOperands<T, Space> own_;
  Operands<T, Space> operands_;
  Known known_;
};

/// Sends the results of a pass to the owners of their rows, and writes them to the caller's views.
template <Communicator C, Backend B, class T, class Predicate>
class GroupedResults {
 public:
  using Space = typename B::memory_space;
  using A = AccumulatorOf<B, T>;
  using L = Accumulator<T>;
  using Payload = typename RingBuffers<C, B>::Payload;
  using Rows = PayloadRows<Payload>;

  explicit GroupedResults(PassContext<C, B, Predicate> const& context)
      : context_(context), groups_(context.plan.groups()), backend_(context.backend) {}

  /// Exchanges the results of all kinds, then calls write().
  template <class Write>
  void exchange(Write&& write) {
    auto& group = context_.buffers.group;
    GroupExchange const& plan = context_.plan.group_exchange();
    group.reserve_after(backend_, plan, context_.communicator.rank());
    exchange_in_group(context_, [&](GroupTransfers<C, B>& transfers) {
      for (GroupRows kind : GroupExchange::all)
        if (!plan.after(kind).empty()) transfers.start_after(kind, source(kind));
      transfers.finish();
      transfers_ = &transfers;
      write();
      backend_.synchronize();
    });
  }

  /// Rows of this rank from a member of the group.
  Rows from(GroupRows kind, int member) const { return transfers_->results_from(kind, source(kind), member); }

  /// Copies each member's share of the heads. of(rows): the view of its results; `axis`: of the heads.
  template <class View, class Of>
  void write_heads(GroupRows kind, View const& result, std::size_t axis, Of const& of) const {
    Index const heads = result.extent(axis) / groups_.size();
    for (int member = 0; member < groups_.size(); ++member)
      backend_.copy(constant(of(from(kind, member))), result.slice(axis, member * heads, heads));
  }

  /// Calls add(sum, other) for the partial results of all members in the order of their places, and returns the sum.
  template <class Add>
  Rows join(GroupRows kind, Add const& add) const {
    Rows const sum = from(kind, 0);
    for (int member = 1; member < groups_.size(); ++member) add(sum, from(kind, member));
    return sum;
  }
  /// Adds the partial gradients of all members and converts their sum. of(rows): the view of a gradient.
  template <class G, class Of>
  void write_sum(GroupRows kind, TensorView<G, 4, Space> const& result, Of const& of) const {
    Rows const sum =
        join(kind, [&](Rows const& into, Rows const& other) { backend_.add(of(into), constant(of(other))); });
    backend_.convert(constant(of(sum)), result);
  }
  /// Writes the gradient of a side's operand.
  template <class G>
  void write_gradient(GroupRows kind, Part part, TensorView<G, 4, Space> const& result) const {
    if (context_.plan.group_exchange().after(kind).empty()) return;
    if (groups_.splits_heads())
      write_heads(kind, result, axis::heads, [&](Rows const& rows) { return rows.template view<G>(part); });
    else
      write_sum(kind, result, [&](Rows const& rows) { return rows.template view<A>(part); });
  }
  /// Writes the gradient of the bias, [batch|1, query_heads|1, rows, keys].
  template <class G>
  void write_bias_gradient(TensorView<G, 4, Space> const& result) const {
    if (context_.plan.group_exchange().after(GroupRows::pairs).empty()) return;
    Index const batch = result.extent(0), keys = result.extent(3);
    bool const splits = groups_.splits_heads() && result.extent(1) > 1;
    Index const heads = result.extent(1) / (splits ? groups_.size() : 1);
    auto const of = [&](Rows const& rows) {
      Index const row = batch * heads * keys;
      return TensorView<A, 4, Space>(rows.payload->template data<A>(Part::dbias) + rows.rows.begin * row,
                                     {batch, heads, rows.rows.size(), keys}, {heads * keys, keys, row, 1});
    };
    if (!splits) return write_sum(GroupRows::pairs, result, of);
    for (int member = 0; member < groups_.size(); ++member)
      backend_.convert(constant(of(from(GroupRows::pairs, member))), result.slice(1, member * heads, heads));
  }

 private:
  template <class Element, std::size_t N>
  static TensorView<Element const, N, Space> constant(TensorView<Element, N, Space> const& view) {
    return view;
  }
  /// The buffer that holds results for all members of the group.
  Payload const& source(GroupRows kind) const {
    if (kind == GroupRows::pairs) return context_.buffers.bias_gradient;
    return groups_.splits_heads() ? context_.buffers.group.results(kind) : context_.buffers.resident;
  }

  PassContext<C, B, Predicate> const& context_;
  RankGroups const& groups_;
  B& backend_;
  GroupTransfers<C, B>* transfers_ = nullptr;
};

/// lanes: contexts of the plan's lanes, of which a plan with groups has one. own: this rank's q, k, v. output [batch,
/// local_queries, query_heads, value_dim], lse and lse_remainder [batch, query_heads, local_queries]; lse_remainder
/// without data is not written. All ranks have validated their arguments.
template <Communicator C, Backend B, class T, class Predicate, class Space>
void forward_of_groups(std::span<PassContext<C, B, Predicate> const> lanes, StepOperands<T, Space> const& own,
                       Operands<T, Space> const& operands, TensorView<T, 4, Space> output,
                       TensorView<Accumulator<T>, 3, Space> lse, TensorView<Accumulator<T>, 3, Space> lse_remainder) {
  using A = AccumulatorOf<B, T>;
  using L = Accumulator<T>;
  PassContext<C, B, Predicate> const& context = lanes.front();
  RankGroups const& groups = context.plan.groups();
  if (groups.size() == 1) return forward_pass(lanes, own, operands, output, lse, lse_remainder);
  context.buffers.wire.reserve(context.backend, context.plan, context.communicator.rank());
  GroupedOperands<C, B, T, Predicate> const grouped(context, own, operands, {});
  GroupedResults<C, B, T, Predicate> results(context);
  using Rows = typename GroupedResults<C, B, T, Predicate>::Rows;
  constexpr GroupRows queries = GroupRows::queries;
  if (groups.splits_heads()) {
    auto const& all = context.buffers.group.results(queries);
    forward_pass(lanes, grouped.own(), grouped.operands(), all.template view<T>(Part::output),
                 all.template statistics<L>(Part::lse), all.template statistics<L>(Part::lse_remainder));
    results.exchange([&] {
      results.write_heads(queries, output, axis::heads,
                          [](Rows const& rows) { return rows.template view<T>(Part::output); });
      results.write_heads(queries, lse, 1, [](Rows const& rows) { return rows.template statistics<L>(Part::lse); });
      if (lse_remainder.data())
        results.write_heads(queries, lse_remainder, 1,
                            [](Rows const& rows) { return rows.template statistics<L>(Part::lse_remainder); });
    });
    return;
  }
  forward_pass(lanes, grouped.own(), grouped.operands(), output, lse, lse_remainder);
  if (!groups.gathers(Side::query)) return;
  TensorView<L const, 2, Space> sinks;
  if (operands.sinks) sinks = *operands.sinks;
  auto const state_of = [](Rows const& rows) {
    return RunningState<A, Space>{rows.template view<A>(Part::accumulator), rows.template statistics<A>(Part::maximum),
                                  rows.template statistics<A>(Part::sum)};
  };
  results.exchange([&] {
    Rows const joined = results.join(
        queries, [&](Rows const& into, Rows const& other) { context.backend.merge(state_of(into), state_of(other)); });
    context.backend.normalise(state_of(joined), sinks, output, lse, lse_remainder);
    context.backend.synchronize();
    if constexpr (std::same_as<Space, HostMemory>)
      if (context.require_finite) {
        ResultPlace const place = context.place(context.plan.steps() - 1).of_own_rows();
        require_finite("lse", lse, 0, place);
        require_finite("output", output, 0, place);
      }
  });
}

/// own: this rank's q, k, v; dout and output [batch, local_queries, query_heads, value_dim], lse and lse_remainder
/// [batch, query_heads, local_queries] of the forward pass; lse_remainder without data counts as 0, on this rank alone.
/// All ranks have validated their arguments.
template <Communicator C, Backend B, class T, class G, class Predicate, class Space>
void backward_of_groups(std::span<PassContext<C, B, Predicate> const> lanes, StepOperands<T, Space> const& own,
                        Operands<T, Space> const& operands, TensorView<T const, 4, Space> dout,
                        TensorView<T const, 4, Space> output, TensorView<Accumulator<T> const, 3, Space> lse,
                        TensorView<Accumulator<T> const, 3, Space> lse_remainder,
                        GradientViews<G, Space> const& gradients) {
  using A = AccumulatorOf<B, T>;
  using Known = BackwardOperands<T, Accumulator<T>, A, Space>;
  PassContext<C, B, Predicate> const& context = lanes.front();
  RankGroups const& groups = context.plan.groups();
  if (groups.size() == 1) {
    auto const known_to = [&](PassContext<C, B, Predicate> const& lane, LaneHeads const& heads) {
      auto const travels =
          lane.shared.wire.rounded(Part::dout, heads.of_queries(dout, axis::heads), lane.plan.shares_buffers());
      return Known{travels, heads.of_queries(lse, 1), find_delta(lane, travels, heads.of_queries(output, axis::heads)),
                   heads.of_queries(lse_remainder, 1)};
    };
    backward_pass<C, B, T>(lanes, own, operands, known_to, gradients);
  } else {
    context.buffers.wire.reserve(context.backend, context.plan, context.communicator.rank());
    auto const travels = context.buffers.wire.rounded(Part::dout, dout);
    GroupedOperands<C, B, T, Predicate> const grouped(
        context, own, operands, Known{travels, lse, find_delta(context, travels, output), lse_remainder});
    GradientViews<G, Space> inner = gradients;
    inner.dsinks = {};
    inner.d_joint_keys = inner.d_joint_values = {};
    if (groups.splits_heads()) {
      auto& buffers = context.buffers.group;
      inner.dq = buffers.results(GroupRows::queries).template view<G>(Part::dq);
      inner.dk = buffers.results(GroupRows::keys).template view<G>(Part::dk);
      inner.dv = buffers.results(GroupRows::keys).template view<G>(Part::dv);
    }
    auto const known_to = [&](auto const&...) { return grouped.known(); };
    backward_pass<C, B, T>(lanes, grouped.own(), grouped.operands(), known_to, inner);
    GroupedResults<C, B, T, Predicate> results(context);
    results.exchange([&] {
      results.write_gradient(GroupRows::queries, Part::dq, gradients.dq);
      results.write_gradient(GroupRows::keys, Part::dk, gradients.dk);
      results.write_gradient(GroupRows::keys, Part::dv, gradients.dv);
      results.write_bias_gradient(gradients.dbias);
      context.backend.synchronize();
      if constexpr (std::same_as<Space, HostMemory>)
        if (context.require_finite) {
          ResultPlace const place = context.place(context.plan.steps() - 1).of_own_rows();
          require_finite("dq", gradients.dq, 0, place);
          require_finite("dk", gradients.dk, 0, place);
          require_finite("dv", gradients.dv, 0, place);
          if (gradients.dbias.data()) require_finite("dbias", gradients.dbias.permuted({0, 2, 1, 3}), 0, place);
        }
    });
  }
  if (groups.size() == 1 || !(operands.sinks || operands.joint_keys)) return;
  // Of this rank's own queries and all heads.
  Known const known{{}, lse, context.buffers.delta.template statistics<A>(Part::delta), lse_remainder};
  SynchronizeOnUnwind const synchronize(context.backend);
  or_abandon(context.communicator, [&] {
    in_step(context.communicator.rank(), context.plan.steps() - 1, [&] {
      if (operands.sinks) add_sink_gradients(context, known, *operands.sinks, gradients.dsinks);
      if (operands.joint_keys)
        reduce_joint_gradients<A>(context.plan, context.communicator, context.backend, context.buffers.joint_gradients,
                                  gradients.d_joint_keys, gradients.d_joint_values, context.buffers.call,
                                  context.buffers.recorder);
      context.backend.synchronize();
      if constexpr (std::same_as<Space, HostMemory>)
        if (context.require_finite && operands.joint_keys) {
          ResultPlace const place = context.place(context.plan.steps() - 1).of_own_rows();
          require_finite("d_joint_keys", gradients.d_joint_keys, 0, place);
          require_finite("d_joint_values", gradients.d_joint_values, 0, place);
        }
    });
  });
}

}  // namespace annulus::detail
