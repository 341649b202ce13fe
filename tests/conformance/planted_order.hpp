#pragma once
// Runs the lists of actions of a problem in foreign memory, whose work is late, with an error of order planted in the
// list of one rank or in its communicator.

#include <algorithm>
#include <array>
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
#include "support/foreign_windows.hpp"
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
    early_release,    ///< the list has a Release before the action that last reads its window
    omitted_reclaim,  ///< the list lacks a Reclaim of bytes that it writes
  };
  Kind kind = none;
  annulus::Pass pass = annulus::Pass::forward;
  annulus::Rank rank = 0;
  int place = 0;  ///< which of the exchanges, awaits, releases or reclaims of the list, counted from 0
};

constexpr std::string_view name_of(PlantedOrder::Kind kind) {
  constexpr std::string_view names[] = {"none",        "unordered start", "ignored wait",  "omitted await",
                                        "early shift", "early join",      "early release", "omitted reclaim"};
  return names[kind];
}

/// Foreign ring of one rank that ignores the queue in one start or in one wait of an exchange, counted from plant() on;
/// -1: in none.
template <class Ring>
class DisorderedRing : public Ring {
  /// A transfer or window.
  template <class Exchange>
  class Disordered : public Exchange {
   public:
    Disordered(DisorderedRing* ring, Exchange exchange) : Exchange(std::move(exchange)), ring_(ring) {}

    void wait(ForeignQueue queue) {
      bool const ignored = ring_->waits_++ == ring_->ignored_wait_;
      if (ignored) queue.later = &ring_->ignored_;
      Exchange::wait(queue);
    }

   private:
    DisorderedRing* ring_;
  };

 public:
  using Ring::Ring;

  void plant(int unordered_start, int ignored_wait) {
    starts_ = waits_ = 0;
    unordered_start_ = unordered_start;
    ignored_wait_ = ignored_wait;
  }

  auto start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in,
                   ForeignQueue const& queue) {
    return start(queue, [&](ForeignQueue const& given) { return Ring::start_shift(channel, hop, out, in, given); });
  }
  auto open_window(annulus::Channel channel, int hop, annulus::OutgoingBytes out,
                   ForeignQueue const& queue) requires annulus::ZeroCopyCommunicator<Ring> {
    return start(queue, [&](ForeignQueue const& given) { return Ring::open_window(channel, hop, out, given); });
  }
  void finish(ForeignQueue const& queue) {
    for (auto& piece : std::exchange(ignored_, {})) queue.put(std::move(piece));
    Ring::finish(queue);
    after_last_start_ = 0;
  }

 private:
  template <class Start>
  auto start(ForeignQueue queue, Start start_exchange) {
    if (starts_++ == unordered_start_) queue.place = after_last_start_;
    auto started = start_exchange(queue);
    Disordered<decltype(started)> exchange(this, std::move(started));
    after_last_start_ = queue.work->pending();
    return exchange;
  }

  int starts_ = 0, waits_ = 0, unordered_start_ = -1, ignored_wait_ = -1;
  std::size_t after_last_start_ = 0;  ///< pieces of work that no exchange may begin before: they keep their order
  std::vector<std::function<void()>> ignored_;
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

  /// The exchange that the action starts, or null.
  annulus::Shift const* exchange_at(std::size_t place) const {
    if (auto const* open = get<annulus::Open>(place)) return &open->shift;
    return get<annulus::Shift>(place);
  }
  std::vector<std::size_t> exchanges() const {
    std::vector<std::size_t> found;
    for (std::size_t a = 0; a < actions_.size(); ++a)
      if (exchange_at(a)) found.push_back(a);
    return found;
  }
  std::size_t size() const { return actions_.size(); }

  /// The last action before `place` that writes the slot, other than by clearing it; `place` if there is none.
  std::size_t last_write(int slot, std::size_t place) const {
    for (std::size_t a = place; a-- > 0;)
      if (writes(a, slot)) return a;
    return place;
  }
  /// The start before `place` of the first of `count` exchanges that brings rows; `place` if there is none.
  std::size_t start_of(std::size_t place, int exchange, int count) const {
    for (std::size_t a = place; a-- > 0;)
      if (auto const* started = exchange_at(a); started && receives(*started))
        if (exchange <= started->exchange && started->exchange < exchange + count) return a;
    return place;
  }
  std::size_t start_of(std::size_t await) const {
    return start_of(await, get<annulus::Await>(await)->exchange, get<annulus::Await>(await)->count);
  }
  /// True if the action reads sums or rows that have arrived in the slot.
  bool reads(std::size_t place, int slot) const {
    if (auto const* join = get<annulus::Join>(place)) return join->from.slot == slot;
    if (auto const* copy = get<annulus::Copy>(place)) return copy->from.slot == slot;
    if (auto const* finish = get<annulus::Finish>(place)) return finish->from.slot == slot;
    auto const* work = get<annulus::Work>(place);
    return work && (work->queries.from.slot == slot || work->keys.from.slot == slot);
  }
  static bool receives(annulus::Shift const& shift) { return shift.in.slot >= 0 && !shift.in.rows.empty(); }
  static bool sends(annulus::Shift const& shift) { return shift.out.slot >= 0 && !shift.out.rows.empty(); }

 private:
  bool writes(std::size_t place, int slot) const {
    if (auto const* pack = get<annulus::Pack>(place)) return pack->into.slot == slot;
    if (auto const* copy = get<annulus::Copy>(place)) return copy->into.slot == slot;
    if (auto const* join = get<annulus::Join>(place)) return join->into.slot == slot;
    if (auto const* share = get<annulus::SinkShare>(place)) return share->into.slot == slot;
    if (auto const* work = get<annulus::Work>(place))
      return work->query_sums.slot == slot || work->key_sums.slot == slot;
    if (!get<annulus::Await>(place)) return false;
    std::size_t const started = start_of(place);
    return started != place && exchange_at(started)->in.slot == slot;
  }

  std::vector<annulus::Action>& actions_;
};

/// The places of the list at which a kind of error might be planted.
inline std::vector<std::size_t> places_of(ActionEdit const& edit, PlantedOrder::Kind kind) {
  switch (kind) {
    case PlantedOrder::unordered_start:
    case PlantedOrder::early_shift:
      return edit.exchanges();
    case PlantedOrder::early_release:
      return edit.places<annulus::Release>();
    case PlantedOrder::omitted_reclaim:
      return edit.places<annulus::Reclaim>();
    default:
      return edit.places<annulus::Await>();
  }
}

/// Not if other exchanges would start later than this one then, which ends in waits for each other.
inline bool plant_early_start(ActionEdit& edit, std::size_t place, bool in_list) {
  annulus::Shift const& started = *edit.exchange_at(place);
  std::size_t const written = edit.last_write(started.out.slot, place);
  if (!ActionEdit::sends(started) || written == place) return false;
  for (std::size_t a = written; a < place; ++a)
    if (edit.exchange_at(a)) return false;
  if (in_list) edit.move_before(place, written);
  return true;
}

inline bool plant_early_join(ActionEdit& edit, std::size_t await) {
  int const arrived = edit.exchange_at(edit.start_of(await))->in.slot;
  for (std::size_t a = await + 1; a < edit.size() && !edit.exchange_at(a); ++a)
    if (edit.reads(a, arrived) && !edit.get<annulus::Work>(a) && !edit.get<annulus::Finish>(a)) {
      edit.move_before(a, await);
      return true;
    }
  return false;
}

inline bool plant_early_release(ActionEdit& edit, std::size_t release) {
  std::size_t const started = edit.start_of(release, edit.get<annulus::Release>(release)->exchange, 1);
  if (started == release) return false;
  for (std::size_t a = release; a-- > started;)
    if (edit.reads(a, edit.exchange_at(started)->in.slot)) {
      edit.move_before(release, a);
      return true;
    }
  return false;
}

/// Plants an error in the list of a rank, or returns false if there is no such place, because no rows leave or arrive.
inline bool plant(annulus::ActionList& list, PlantedOrder const& planted) {
  ActionEdit edit(list);
  std::size_t const place = places_of(edit, planted.kind)[static_cast<std::size_t>(planted.place)];
  switch (planted.kind) {
    case PlantedOrder::unordered_start:
    case PlantedOrder::early_shift:
      return plant_early_start(edit, place, planted.kind == PlantedOrder::early_shift);
    case PlantedOrder::early_release:
      return plant_early_release(edit, place);
    case PlantedOrder::omitted_reclaim: {
      int const slot = edit.get<annulus::Reclaim>(place)->slot;
      auto const opens = [&](std::size_t a) {
        return edit.get<annulus::Open>(a) && edit.exchange_at(a)->out.slot == slot &&
               ActionEdit::sends(*edit.exchange_at(a));
      };
      auto const starts = edit.exchanges();
      edit.remove(place);
      return std::any_of(starts.begin(), starts.end(), [&](std::size_t a) { return opens(a < place ? a : a - 1); });
    }
    default:
      if (edit.start_of(place) == place) return false;
      if (planted.kind == PlantedOrder::early_join) return plant_early_join(edit, place);
      if (planted.kind == PlantedOrder::omitted_await) edit.remove(place);
      return true;
  }
}

/// One rank's operands in foreign memory, and the passes over them.
template <class Ring>
class ListedRank {
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

  /// With windows, calls that are not compared come first: what is read too late is then not that of this call.
  RingResult run(PlantedOrder const& planted) {
    if constexpr (annulus::ZeroCopyCommunicator<Ring>) {
      call(dout_, v_, k_, q_, {});
    }
    return call(q_, k_, v_, dout_, planted);
  }

 private:
  RingResult call(Tensor<4> const& q, Tensor<4> const& k, Tensor<4> const& v, Tensor<4> const& dout,
                  PlantedOrder const& planted) {
    auto const rows = q.view().extents();
    Index const batch = rows[0], queries = rows[1], heads = rows[2];
    Tensor<4> output({batch, queries, heads, problem_.dense.value_dim});
    Tensor<3> lse({batch, heads, queries}), remainder({batch, heads, queries});
    Tensor<4> dq(rows), dk(k.view().extents()), dv(v.view().extents());
    Tensor<2> dsinks({heads, sinks()});
    Operands operands;
    operands.q = q.view(), operands.k = k.view(), operands.v = v.view(), operands.sinks = sinks_.view();
    run_pass(annulus::Pass::forward, planted, [&](auto const& context) {
      annulus::detail::run_pass<annulus::detail::ForwardPass<Ring, Backend, float, annulus::EveryPair>>(
          context, operands,
          annulus::ForwardResults<float, float, ForeignMemory>{output.view(), lse.view(), remainder.view(), {}});
    });
    operands.dout = dout.view(), operands.output = constant(output);
    operands.lse = constant(lse), operands.lse_remainder = constant(remainder);
    run_pass(annulus::Pass::backward, planted, [&](auto const& context) {
      annulus::detail::run_pass<annulus::detail::BackwardPass<Ring, Backend, float, float, annulus::EveryPair>>(
          context, operands,
          annulus::GradientViews<float, ForeignMemory>{dq.view(), dk.view(), dv.view(), {}, dsinks.view(), {}, {}});
    });
    RingResult result;
    result.output = widened(output), result.lse = widened(lse);
    result.dq = widened(dq), result.dk = widened(dk), result.dv = widened(dv), result.dsinks = widened(dsinks);
    return result;
  }

  template <class RunPass>
  void run_pass(annulus::Pass pass, PlantedOrder const& planted, RunPass&& run) {
    annulus::RingPlan const plan = plan_of<float>(problem_, pass, false, annulus::ZeroCopyCommunicator<Ring>);
    annulus::ActionList list = actions_of(plan, ring_.rank());
    bool const here = planted.kind != PlantedOrder::none && planted.pass == pass && planted.rank == ring_.rank();
    if (here) plant(list, planted);
    ring_.plant(here && planted.kind == PlantedOrder::unordered_start ? planted.place : -1,
                here && planted.kind == PlantedOrder::ignored_wait ? wait_of(list, planted.place) : -1);
    annulus::detail::IntervalRecorder const recorder;
    annulus::EveryPair const every_pair;
    run(annulus::detail::PassContext<Ring, Backend, annulus::EveryPair>{
        plan, list, ring_, backend_, every_pair, memory_[pass == annulus::Pass::forward ? 0 : 1], recorder, 1, false});
  }
  /// Number of the first wait for a transfer that an Await makes and that brings rows.
  static int wait_of(annulus::ActionList& list, int await) {
    ActionEdit const edit(list);
    int waits = 0;
    for (std::size_t const place : edit.places<annulus::Await>()) {
      annulus::Await const& awaited = *edit.get<annulus::Await>(place);
      if (await-- == 0) return waits + edit.exchange_at(edit.start_of(place))->exchange - awaited.exchange;
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
  std::array<annulus::detail::PassMemory<Ring, Backend>, 2> memory_;
};

/// Runs both passes on all ranks, with windows or by messages; returns the results, or throws what a rank reports.
inline std::vector<RingResult> run_planted(RingProblem const& problem, bool windows, PlantedOrder const& planted,
                                           std::uint64_t seed) {
  auto const board = std::make_shared<ForeignWindowBoard>();
  auto const run_on = [&](auto& ring) {
    ForeignBackend<> backend({.deferral = {.when = DeferralOptions::lazy, .seed = seed}});
    return ListedRank(problem, ring, backend).run(planted);
  };
  auto const run = [&](annulus::SimulatedRing& simulated) {
    ForeignRingOptions const options{.seed = seed};
    if (windows) {
      DisorderedRing<ForeignWindowRing<>> ring(simulated, board, options);
      return run_on(ring);
    }
    DisorderedRing<ForeignRing<>> ring(simulated, options);
    return run_on(ring);
  };
  return annulus::run_ring(problem.ranks, run, {.timeout = std::chrono::seconds(20)});
}

}  // namespace annulus_test
