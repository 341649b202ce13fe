#pragma once
// What must hold of the intervals that an observer receives from one call on one rank.

#include <algorithm>
#include <annulus/ring/observer.hpp>
#include <annulus/schedule/ring_plan.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "support/planned_pass.hpp"
#include "support/ring_run.hpp"

namespace annulus_test {

/// The intervals of one kind.
inline std::vector<annulus::Interval> of_kind(std::vector<annulus::Interval> const& all, annulus::IntervalKind kind) {
  std::vector<annulus::Interval> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](auto const& i) { return i.kind == kind; });
  return found;
}

/// The intervals of one pass.
inline std::vector<annulus::Interval> of_pass(std::vector<annulus::Interval> const& all, annulus::Pass pass) {
  std::vector<annulus::Interval> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](auto const& i) { return i.pass == pass; });
  return found;
}

/// Parts by name, in order.
inline std::string names_of(auto const& parts) {
  std::string names;
  for (auto const& part : parts) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(part)>, annulus::Part>)
      names += std::string(name_of(part)) + " ";
    else
      names += std::string(name_of(part.part)) + " ";
  }
  return names;
}

/// Checks the intervals of one call of one rank, in the order in which they were reported. Returns what is wrong.
class IntervalChecks {
 public:
  IntervalChecks(std::vector<annulus::Interval> const& intervals, annulus::RingPlan const& plan, annulus::Rank rank)
      : intervals_(intervals), plan_(plan), rank_(rank) {
    check_places();
    check_work();
    check_exchanges();
  }

  std::string const& wrong() const { return wrong_; }

 private:
  using Kind = annulus::IntervalKind;

  void require(bool holds, auto const&... what) {
    if (!holds) wrong_ += annulus::detail::message_of("rank ", rank_, ": ", what..., "\n");
  }

  /// One call, which contains all; what a rank does is disjoint and in order, so that its sum is at most the call.
  void check_places() {
    auto const calls = of_kind(intervals_, Kind::call);
    require(calls.size() == 1 && of_kind(intervals_, Kind::agreement).size() == 1, "not one call and one agreement");
    if (calls.size() != 1) return;
    auto last = calls[0].begin;
    double sum = 0;
    for (annulus::Interval const& interval : intervals_) {
      std::string const what = std::string(name_of(interval.kind)) + " of step " + std::to_string(interval.step);
      require(interval.rank == rank_ && interval.call == calls[0].call && interval.pass == plan_.request().pass, what,
              " is of another rank or call");
      require(interval.begin <= interval.end, what, " ends before it begins");
      require(calls[0].begin <= interval.begin && interval.end <= calls[0].end, what, " is outside of the call");
      if (interval.kind == Kind::call || interval.kind == Kind::exchange) continue;
      require(last <= interval.begin, what, " begins before the previous interval ends");
      last = interval.end;
      sum += interval.seconds();
    }
    require(sum <= calls[0].seconds() + 1e-9, "the sum of the intervals exceeds the call");
  }

  void check_work() {
    for (Kind kind : {Kind::compute, Kind::synchronize}) {
      auto const found = of_kind(intervals_, kind);
      require(static_cast<int>(found.size()) == plan_.steps(), found.size(), " intervals of ", name_of(kind));
      for (std::size_t i = 0; i < found.size(); ++i) require(found[i].step == static_cast<int>(i), "a step is missing");
    }
    annulus::Index work = 0;
    for (auto const& compute : of_kind(intervals_, Kind::compute)) work += compute.multiply_adds;
    require(work == plan_.multiply_adds(rank_), work, " multiply-adds, planned ", plan_.multiply_adds(rank_));
  }

  void check_exchanges() {
    auto const exchanges = of_kind(intervals_, Kind::exchange);
    auto waits = of_kind(intervals_, Kind::wait);
    std::erase_if(waits, [](annulus::Interval const& wait) { return wait.parts.empty(); });
    require(waits.size() == exchanges.size(), waits.size(), " waits for ", exchanges.size(), " exchanges");
    annulus::Index bytes = 0;
    for (std::size_t i = 0; i < std::min(waits.size(), exchanges.size()); ++i) {
      annulus::Interval const &wait = waits[i], &exchange = exchanges[i];
      require(wait.end == exchange.end && wait.started == exchange.begin && exchange.begin <= wait.begin,
              "a wait is not the end of its exchange");
      require(wait.bytes == exchange.bytes && wait.channel == exchange.channel && wait.step == exchange.step,
              "a wait and its exchange differ");
      bytes += exchange.bytes;
      check_exchange(exchange);
    }
    if (!plan_.request().zero_copy)
      require(bytes == plan_.bytes_sent(rank_), bytes, " bytes sent, planned ", plan_.bytes_sent(rank_));
  }

  void check_exchange(annulus::Interval const& exchange) {
    using annulus::Channel;
    annulus::PayloadLayout const layout = exchange.channel == Channel::prefetched ? plan_.transport().prefetched
                                          : exchange.channel == Channel::carried  ? plan_.transport().carried
                                                                                  : plan_.transport().sink_shares;
    require(names_of(exchange.parts) == names_of(layout.parts), "parts ", names_of(exchange.parts));
    if (exchange.channel == Channel::reduction) return;
    require(exchange.step >= 0 && exchange.step < plan_.steps(), "an exchange of step ", exchange.step);
    annulus::PlannedStep const& step = plan_.step(rank_, exchange.step);
    bool const prefetched = exchange.channel == Channel::prefetched;
    if (!plan_.request().zero_copy || !prefetched)
      require(exchange.bytes == (prefetched ? step.prefetched_bytes : step.carried_bytes), "step ", exchange.step,
              " sends ", exchange.bytes, " bytes ", name_of(exchange.channel));
  }

  std::vector<annulus::Interval> const& intervals_;
  annulus::RingPlan const& plan_;
  annulus::Rank rank_;
  std::string wrong_;
};

/// Runs both passes of a rank with an observer, and without. Returns what is wrong with the intervals or the bits;
/// `seen`: all intervals.
template <class T, class Ring>
std::string observed_run(RingProblem problem, Ring& ring, std::vector<annulus::Interval>& seen) {
  annulus::ReferenceBackend backend;
  RingResult const plain = run_rank<T>(problem, ring, backend);
  problem.options.observer = [&](annulus::Interval const& interval) { seen.push_back(interval); };
  std::string wrong = same_bits(run_rank<T>(problem, ring, backend), plain) ? "" : "an observer changes results\n";
  for (auto pass : {annulus::Pass::forward, annulus::Pass::backward}) {
    auto const plan = plan_of<T>(problem, pass, false, annulus::detail::shares_memory(ring));
    wrong += IntervalChecks(of_pass(seen, pass), plan, ring.rank()).wrong();
  }
  return wrong;
}

}  // namespace annulus_test
