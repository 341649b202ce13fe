#pragma once
// Runs the lists of actions of a problem in foreign memory, whose work is late, with an error of order planted in the
// list of one rank or in its communicator.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/ring/backward_pass.hpp"
#include "annulus/ring/forward_pass.hpp"
#include "annulus/schedule/pass_actions.hpp"
#include "conformance/foreign_implementation.hpp"
#include "support/planned_pass.hpp"
#include "support/ring_run.hpp"

namespace annulus_test {

/// An error in the order of one rank's work.
struct PlantedOrder {
  enum Kind {
    none,
    unordered_start,  ///< the communicator begins a shift before the work put on the queue since the last shift
    ignored_wait,     ///< the communicator lets work begin before a shift has ended
    omitted_await,    ///< the list lacks an Await
    early_shift,      ///< the list has a Shift before the actions that write its rows
    early_join,       ///< the list has a Join or Copy of what arrives before its Await
  };
  Kind kind = none;
  annulus::Pass pass = annulus::Pass::forward;
  annulus::Rank rank = 0;
  int exchange = 0;  ///< the Shift or Await in the list, counted from 0
};

constexpr std::string_view name_of(PlantedOrder::Kind kind) {
  constexpr std::string_view names[] = {"none",          "unordered start", "ignored wait",
                                        "omitted await", "early shift",     "early join"};
  return names[kind];
}

/// Foreign ring of one rank that ignores the queue in one start or in one wait, counted from plant() on; -1: in none.
class DisorderedRing {
  using Ring = ForeignRing<>;

 public:
  using memory_space = ForeignMemory;

  class Transfer {
   public:
    void wait(ForeignQueue const& queue) {
      if (ring_->waits_++ == ring_->ignored_wait_)
        ring_->ignored_.push_back(std::move(inner_));
      else
        inner_.wait(queue);
    }

   private:
    friend class DisorderedRing;
    Transfer(DisorderedRing* ring, Ring::Transfer inner) : ring_(ring), inner_(std::move(inner)) {}
    DisorderedRing* ring_;
    Ring::Transfer inner_;
  };

  DisorderedRing(annulus::SimulatedRing& inner, ForeignRingOptions const& options) : inner_(inner, options) {}

  void plant(int unordered_start, int ignored_wait) {
    starts_ = waits_ = 0;
    unordered_start_ = unordered_start;
    ignored_wait_ = ignored_wait;
  }

  annulus::Rank rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }
  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in,
                       ForeignQueue queue) {
    if (starts_++ == unordered_start_) queue.place = after_last_start_;
    Transfer transfer(this, inner_.start_shift(channel, hop, out, in, queue));
    after_last_start_ = queue.work->pending();
    return transfer;
  }
  void finish(ForeignQueue const& queue) {
    for (Ring::Transfer& transfer : std::exchange(ignored_, {})) transfer.wait(queue);
    inner_.finish(queue);
    after_last_start_ = 0;
  }
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { inner_.all_gather(mine, all); }
  void abandon(std::string const& reason) noexcept { inner_.abandon(reason); }

 private:
  Ring inner_;
  int starts_ = 0, waits_ = 0, unordered_start_ = -1, ignored_wait_ = -1;
  std::size_t after_last_start_ = 0;  ///< pieces of work that no shift may begin before: shifts keep their order
  std::vector<Ring::Transfer> ignored_;
};

/// Edits of a list of actions.
class ActionEdit {
 public:
  explicit ActionEdit(annulus::ActionList& list) : actions_(list.actions) {}

  /// Places of the actions of a kind.
  template <class What>
  std::vector<std::size_t> places() const {
    std::vector<std::size_t> found;
    for (std::size_t a = 0; a < actions_.size(); ++a)
      if (get<What>(a)) found.push_back(a);
    return found;
  }
  template <class What>
  What const* get(std::size_t place) const {
    return std::get_if<What>(&actions_[place].what);
  }

  void remove(std::size_t place) { actions_.erase(actions_.begin() + static_cast<std::ptrdiff_t>(place)); }
  /// Moves an action before another one that stands before it.
  void move_before(std::size_t place, std::size_t earlier) {
    auto const first = actions_.begin() + static_cast<std::ptrdiff_t>(earlier);
    std::rotate(first, actions_.begin() + static_cast<std::ptrdiff_t>(place),
                actions_.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }

  /// The last action before `place` that writes the slot, other than by clearing it; `place` if there is none.
  std::size_t last_write(int slot, std::size_t place) const {
    for (std::size_t a = place; a-- > 0;)
      if (writes(a, slot)) return a;
    return place;
  }
  /// The Shift whose end an Await awaits, which stands before it.
  std::size_t shift_of(std::size_t await) const {
    annulus::Await const& awaited = *get<annulus::Await>(await);
    for (std::size_t a = await; a-- > 0;)
      if (auto const* shift = get<annulus::Shift>(a); shift && receives(*shift) && in_range(*shift, awaited)) return a;
    return await;
  }
  static bool receives(annulus::Shift const& shift) { return shift.in.slot >= 0 && !shift.in.rows.empty(); }
  static bool sends(annulus::Shift const& shift) { return shift.out.slot >= 0 && !shift.out.rows.empty(); }

 private:
  static bool in_range(annulus::Shift const& shift, annulus::Await const& await) {
    return await.exchange <= shift.exchange && shift.exchange < await.exchange + await.count;
  }
  bool writes(std::size_t place, int slot) const {
    if (auto const* pack = get<annulus::Pack>(place)) return pack->into.slot == slot;
    if (auto const* copy = get<annulus::Copy>(place)) return copy->into.slot == slot;
    if (auto const* join = get<annulus::Join>(place)) return join->into.slot == slot;
    if (auto const* share = get<annulus::SinkShare>(place)) return share->into.slot == slot;
    if (auto const* work = get<annulus::Work>(place))
      return work->query_sums.slot == slot || work->key_sums.slot == slot;
    if (get<annulus::Await>(place)) {
      std::size_t const started = shift_of(place);
      return started != place && get<annulus::Shift>(started)->in.slot == slot;
    }
    return false;
  }

  std::vector<annulus::Action>& actions_;
};

/// Plants an error in the list of a rank, or returns false if there is no such place: no rows leave or arrive, or shifts
/// would change their order, which ends in waits for each other.
inline bool plant(annulus::ActionList& list, PlantedOrder const& planted) {
  using annulus::Await, annulus::Shift;
  ActionEdit edit(list);
  bool const of_shift = planted.kind == PlantedOrder::unordered_start || planted.kind == PlantedOrder::early_shift;
  auto const places = of_shift ? edit.places<Shift>() : edit.places<Await>();
  std::size_t const place = places[static_cast<std::size_t>(planted.exchange)];
  if (of_shift) {
    Shift const& shift = *edit.get<Shift>(place);
    std::size_t const written = edit.last_write(shift.out.slot, place);
    bool const passes_shift = place != places[0] && written < places[static_cast<std::size_t>(planted.exchange) - 1];
    if (!ActionEdit::sends(shift) || written == place || passes_shift) return false;
    if (planted.kind == PlantedOrder::early_shift) edit.move_before(place, written);
    return true;
  }
  std::size_t const started = edit.shift_of(place);
  if (started == place) return false;
  if (planted.kind == PlantedOrder::omitted_await) edit.remove(place);
  if (planted.kind != PlantedOrder::early_join) return true;
  int const arrived = edit.get<Shift>(started)->in.slot;
  for (std::size_t a = place + 1; a < list.actions.size() && !edit.get<Shift>(a); ++a) {
    auto const* join = edit.get<annulus::Join>(a);
    auto const* copy = edit.get<annulus::Copy>(a);
    bool const reads = (join && join->from.slot == arrived) || (copy && copy->from.slot == arrived);
    if (reads) edit.move_before(a, place);
    if (reads) return true;
  }
  return false;
}

/// One rank's operands in foreign memory, and the passes over them.
class ListedRank {
  using Ring = DisorderedRing;
  using Backend = ForeignBackend<>;
  template <std::size_t N>
  using Tensor = ForeignTensor<float, N>;
  using Operands = annulus::detail::PassOperands<float, float, ForeignMemory>;

 public:
  ListedRank(RingProblem const& problem, Ring& ring, Backend& backend)
      : problem_(problem),
        ring_(ring),
        backend_(backend),
        q_(shard(problem.dense.q, annulus::Side::query, problem.dense.query_heads, problem.dense.head_dim)),
        k_(shard(problem.dense.k, annulus::Side::key, problem.dense.kv_heads, problem.dense.head_dim)),
        v_(shard(problem.dense.v, annulus::Side::key, problem.dense.kv_heads, problem.dense.value_dim)),
        dout_(shard(problem.dout, annulus::Side::query, problem.dense.query_heads, problem.dense.value_dim)),
        sinks_({problem.dense.query_heads, sinks()}) {
    std::vector<float> const values(problem.dense.sinks->values.begin(), problem.dense.sinks->values.end());
    sinks_.upload(annulus::TensorView<float const, 2>(values.data(), {problem.dense.query_heads, sinks()}));
  }

  RingResult run(PlantedOrder const& planted) {
    auto const rows = q_.view().extents();
    Index const batch = rows[0], queries = rows[1], heads = rows[2];
    Tensor<4> output({batch, queries, heads, problem_.dense.value_dim});
    Tensor<3> lse({batch, heads, queries}), remainder({batch, heads, queries});
    Tensor<4> dq(rows), dk(k_.view().extents()), dv(v_.view().extents());
    Tensor<2> dsinks({heads, sinks()});
    Operands operands;
    operands.q = q_.view(), operands.k = k_.view(), operands.v = v_.view(), operands.sinks = sinks_.view();
    run_pass(annulus::Pass::forward, planted, [&](auto const& context) {
      annulus::detail::forward_pass(
          context, operands,
          annulus::ForwardResults<float, float, ForeignMemory>{output.view(), lse.view(), remainder.view(), {}});
    });
    operands.dout = dout_.view(), operands.output = constant(output);
    operands.lse = constant(lse), operands.lse_remainder = constant(remainder);
    run_pass(annulus::Pass::backward, planted, [&](auto const& context) {
      annulus::detail::backward_pass(
          context, operands,
          annulus::GradientViews<float, ForeignMemory>{dq.view(), dk.view(), dv.view(), {}, dsinks.view(), {}, {}});
    });
    RingResult result;
    result.output = widened(output), result.lse = widened(lse);
    result.dq = widened(dq), result.dk = widened(dk), result.dv = widened(dv), result.dsinks = widened(dsinks);
    return result;
  }

 private:
  template <class RunPass>
  void run_pass(annulus::Pass pass, PlantedOrder const& planted, RunPass&& run) {
    annulus::RingPlan const plan = plan_of<float>(problem_, pass);
    annulus::ActionList list = actions_of(plan, ring_.rank());
    bool const here = planted.kind != PlantedOrder::none && planted.pass == pass && planted.rank == ring_.rank();
    if (here) plant(list, planted);
    ring_.plant(here && planted.kind == PlantedOrder::unordered_start ? planted.exchange : -1,
                here && planted.kind == PlantedOrder::ignored_wait ? wait_of(list, planted.exchange) : -1);
    annulus::detail::PassMemory<Ring, Backend> memory;
    annulus::detail::IntervalRecorder const recorder;
    annulus::EveryPair const every_pair;
    run(annulus::detail::PassContext<Ring, Backend, annulus::EveryPair>{plan, list, ring_, backend_, every_pair, memory,
                                                                        recorder, 1, false});
  }
  /// Number of the first wait for a transfer that an Await makes and that brings rows.
  static int wait_of(annulus::ActionList& list, int await) {
    ActionEdit const edit(list);
    int waits = 0;
    for (std::size_t const place : edit.places<annulus::Await>()) {
      annulus::Await const& awaited = *edit.get<annulus::Await>(place);
      if (await-- == 0) return waits + edit.get<annulus::Shift>(edit.shift_of(place))->exchange - awaited.exchange;
      waits += awaited.count;
    }
    return -1;
  }

  Index sinks() const { return problem_.dense.sinks->count; }
  Tensor<4> shard(std::vector<double> const& global, annulus::Side side, Index heads, Index dim) const {
    OracleProblem const& d = problem_.dense;
    Index const length = side == annulus::Side::query ? d.query_length : d.key_length;
    return ring_run_detail::shard_of<float, ForeignPlacement>(global, std::array<Index, 4>{d.batch, length, heads, dim},
                                                              1, problem_.segments(side, ring_.rank()));
  }
  template <std::size_t N>
  static ForeignView<float const, N> constant(Tensor<N> const& tensor) {
    return tensor.view();
  }
  template <std::size_t N>
  static std::vector<double> widened(Tensor<N> const& tensor) {
    return ring_run_detail::widened<N>(at_rest(tensor.view()));
  }

  RingProblem const& problem_;
  Ring& ring_;
  Backend& backend_;
  Tensor<4> q_, k_, v_, dout_;
  Tensor<2> sinks_;
};

/// Runs both passes on all ranks; returns the results, or throws what a rank reports.
inline std::vector<RingResult> run_planted(RingProblem const& problem, PlantedOrder const& planted,
                                           std::uint64_t seed) {
  auto const run = [&](annulus::SimulatedRing& simulated) {
    DisorderedRing ring(simulated, {.seed = seed});
    ForeignBackend<> backend({.deferral = {.when = DeferralOptions::lazy, .seed = seed}});
    return ListedRank(problem, ring, backend).run(planted);
  };
  return annulus::run_ring(problem.ranks, run, {.timeout = std::chrono::seconds(20)});
}

}  // namespace annulus_test
