#pragma once
// Estimated time of a plan: when each rank computes and waits, on ranks and links of given rates.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/schedule/link_rates.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

/// Rates of the ranks and links of a ring.
struct Rates {
  double flops = std::numeric_limits<double>::infinity();  ///< per second and rank; a multiply-add is two operations
  double step_overhead = 0;                                ///< seconds that a rank needs for a step without any work
  LinkRates near{};                                        ///< between ranks of a group, such as those of a node
  LinkRates far{};                                         ///< between ranks of different groups
  int group = 0;  ///< consecutive ranks of a group; 0: all; in Options, the near ranks of the communicator
  /// Share of its work during which a rank's messages move: 1 where network hardware moves them, 0 where the ranks' own
  /// cores copy them.
  double overlap = 1;

  /// True if links between groups are given.
  bool has_far() const { return far != LinkRates{}; }

  bool operator==(Rates const&) const = default;
};

/// Estimated times of one rank in one step, in seconds since the start of the pass.
struct EstimatedStep {
  double begin = 0;    ///< the step begins
  double compute = 0;  ///< length of its work
  double end = 0;      ///< the next step begins, or the pass ends

  double exposed() const { return std::max(0.0, end - begin - compute); }  ///< waits for messages and late ranks
};

/// Estimated times of a plan.
struct PlanEstimate {
  int ranks = 0, steps = 0;           ///< of the plan
  std::vector<EstimatedStep> of_all;  ///< [rank, step]
  double seconds = 0;                 ///< of the pass, until the last rank ends

  /// Times of a rank in a step.
  EstimatedStep const& step(Rank rank, int step) const { return of_all[static_cast<std::size_t>(rank * steps + step)]; }
  /// Mean over the ranks of the time without work: messages and late ranks that are waited for, also at the end.
  double exposed() const {
    double work = 0;
    for (EstimatedStep const& one : of_all) work += one.compute;
    return ranks == 0 ? 0 : std::max(0.0, seconds - work / ranks);
  }
};

}  // namespace annulus

#if defined(ANNULUS_DEFINITIONS)
#include <utility>
#include <variant>

#include "annulus/schedule/pass_actions.hpp"

namespace annulus {

namespace detail {

struct PlannedMessage {
  Rank from, to;
  Index bytes;  ///< 0 through a window
};
using PlannedMessages = std::vector<PlannedMessage>;

/// The work and the messages of all ranks, read from their lists of actions.
struct PlannedTraffic {
  explicit PlannedTraffic(RingPlan const& plan)
      : steps(plan.steps()),
        multiply_adds(static_cast<std::size_t>(plan.ranks() * steps), 0),
        prefetched(static_cast<std::size_t>(steps)),
        carried(prefetched.size()) {
    for (Rank rank = 0; rank < plan.ranks(); ++rank) read(actions_of(plan, rank), rank);
  }

  int steps;
  std::vector<Index> multiply_adds;                  ///< [rank, step]
  std::vector<PlannedMessages> prefetched, carried;  ///< by the step that they are posted in
  PlannedMessages before, after;                     ///< in groups, before the first step and after the last one
  std::vector<PlannedMessages> sums;                 ///< rounds of small sums over all ranks

 private:
  void read(ActionList const& list, Rank rank) {
    struct Started {
      Shift const* shift = nullptr;
      bool window = false;
    };
    std::vector<Started> started(static_cast<std::size_t>(list.exchanges));
    std::size_t rounds = 0;
    for (Action const& action : list.actions) {
      if (auto const* work = std::get_if<Work>(&action.what))
        multiply_adds[static_cast<std::size_t>(rank * steps + action.step)] += work->multiply_adds;
      if (auto const* shift = std::get_if<Shift>(&action.what))
        started[static_cast<std::size_t>(shift->exchange)] = {shift, false};
      if (auto const* open = std::get_if<Open>(&action.what))
        started[static_cast<std::size_t>(open->shift.exchange)] = {&open->shift, true};
      auto const* const await = std::get_if<Await>(&action.what);
      for (int e = 0; await && e < await->count; ++e) {
        auto const& [shift, window] = started[static_cast<std::size_t>(await->exchange + e)];
        if (shift->in.slot < 0) continue;
        Slot const& in = list.slots[static_cast<std::size_t>(shift->in.slot)];
        Index const bytes = window ? 0 : shift->in.rows.size() * in.layout.bytes_per_row();
        of(shift->channel, action, rounds).push_back({shift->sender, rank, bytes});
      }
    }
  }
  /// The list of messages that an Await is for.
  PlannedMessages& of(Channel channel, Action const& await, std::size_t& rounds) {
    if (await.step == Action::in_group) return await.phase == Phase::prepare ? before : after;
    if (channel == Channel::reduction) {
      if (rounds == sums.size()) sums.emplace_back();
      return sums[rounds++];
    }
    int const posted = await.phase == Phase::await_results ? await.step - 1 : await.step;
    return (channel == Channel::prefetched ? prefetched : carried)[static_cast<std::size_t>(posted)];
  }
};

/// Clocks of all ranks, advanced step by step in the order of the actions.
class EstimatedRing {
 public:
  EstimatedRing(RingPlan const& plan, Rates const& rates)
      : plan_(plan),
        rates_(rates),
        traffic_(plan),
        clocks_(static_cast<std::size_t>(plan.ranks()), 0.0),
        sent_(clocks_) {}

  PlanEstimate run() {
    int const ranks = plan_.ranks(), steps = plan_.steps();
    PlanEstimate result{ranks, steps, std::vector<EstimatedStep>(static_cast<std::size_t>(ranks * steps)), 0};
    exchange_in_groups(traffic_.before);
    for (int i = 0; i < steps; ++i) {
      std::vector<double> const begins = clocks_;
      do_step(i);
      if (i + 1 == steps) await(traffic_.carried[static_cast<std::size_t>(i)], sent_);
      for (Rank r = 0; r < ranks; ++r)
        result.of_all[static_cast<std::size_t>(r * steps + i)] = {at(begins, r), work(r, i), at(clocks_, r)};
    }
    exchange_in_groups(traffic_.after);
    result.seconds = *std::max_element(clocks_.begin(), clocks_.end());
    for (PlannedMessages const& round : traffic_.sums) result.seconds += slowest_of(round);
    return result;
  }

 private:
  static double& at(std::vector<double>& clocks, Rank rank) { return clocks[static_cast<std::size_t>(rank)]; }
  static double at(std::vector<double> const& clocks, Rank rank) { return clocks[static_cast<std::size_t>(rank)]; }

  double work(Rank rank, int step) const {
    Index const multiply_adds = traffic_.multiply_adds[static_cast<std::size_t>(rank * traffic_.steps + step)];
    return rates_.step_overhead + 2 * static_cast<double>(multiply_adds) / rates_.flops;
  }
  LinkRates const& link(Rank from, Rank to) const {
    return rates_.group == 0 || from / rates_.group == to / rates_.group ? rates_.near : rates_.far;
  }

  void do_step(int i) {
    std::vector<double> const begins = clocks_;
    for (Rank r = 0; r < plan_.ranks(); ++r) at(clocks_, r) += work(r, i);
    // Results of the step before move while this step's work lets them.
    if (i > 0) await(traffic_.carried[static_cast<std::size_t>(i - 1)], blocked(sent_, i));
    sent_ = clocks_;
    await(traffic_.prefetched[static_cast<std::size_t>(i)], blocked(begins, i));
  }
  /// When messages that were posted then begin to move in the step.
  std::vector<double> blocked(std::vector<double> posted, int step) const {
    for (Rank r = 0; r < plan_.ranks(); ++r) at(posted, r) += (1 - rates_.overlap) * work(r, step);
    return posted;
  }

  /// Advances each clock to the end of the rank's messages, as sender and as receiver. A message starts when both of
  /// its ranks have posted it. Messages to different ranks do not slow each other; those of both lanes to the same rank
  /// share the link.
  void await(PlannedMessages messages, std::vector<double> const& posted) {
    auto const pair_of = [](PlannedMessage const& one) { return std::pair(one.from, one.to); };
    std::sort(messages.begin(), messages.end(), [&](auto const& a, auto const& b) { return pair_of(a) < pair_of(b); });
    for (std::size_t m = 0; m < messages.size(); ++m) {
      auto [from, to, bytes] = messages[m];
      for (; m + 1 < messages.size() && pair_of(messages[m + 1]) == pair_of(messages[m]); ++m)
        bytes += messages[m + 1].bytes;
      double const end = std::max(at(posted, from), at(posted, to)) + link(from, to).seconds(bytes);
      for (Rank rank : {from, to}) at(clocks_, rank) = std::max(at(clocks_, rank), end);
    }
  }

  /// Advances the clocks of each group to the end of an exchange, in which each rank sends all its messages at once,
  /// one after another over its link. It starts when the last rank of the group is there.
  void exchange_in_groups(PlannedMessages const& messages) {
    RankGroups const& groups = plan_.groups();
    if (groups.size() == 1) return;
    std::vector<double> latency(clocks_.size(), 0.0), moving = latency;
    for (auto const& [from, to, bytes] : messages) {
      if (bytes == 0) continue;
      LinkRates const& one = link(from, to);
      at(latency, from) = std::max(at(latency, from), one.latency);
      at(moving, from) += one.seconds(bytes) - one.latency;
    }
    for (Rank first = 0; first < plan_.ranks(); first += groups.size()) {
      double start = 0, longest = 0;
      for (Rank from = first; from < first + groups.size(); ++from) {
        start = std::max(start, at(clocks_, from));
        longest = std::max(longest, at(latency, from) + at(moving, from));
      }
      for (Rank rank = first; rank < first + groups.size(); ++rank) at(clocks_, rank) = start + longest;
    }
  }

  double slowest_of(PlannedMessages const& messages) const {
    double slowest = 0;
    for (auto const& [from, to, bytes] : messages) slowest = std::max(slowest, link(from, to).seconds(bytes));
    return slowest;
  }

  RingPlan const& plan_;
  Rates const& rates_;
  PlannedTraffic const traffic_;
  std::vector<double> clocks_;
  std::vector<double> sent_;  ///< when each rank has posted the results of the last step
};

}  // namespace detail

ANNULUS_INLINE PlanEstimate RingPlan::estimate(Rates const& rates) const {
  auto const require = [](bool holds, char const* name, double value, char const* accepted) {
    detail::check<UnsupportedError>(holds, "rates: ", name, " is ", value, "; accepted: ", accepted);
  };
  require(rates.flops > 0, "flops", rates.flops, "above 0");
  require(rates.step_overhead >= 0, "step overhead", rates.step_overhead, "0 or more");
  require(0 <= rates.overlap && rates.overlap <= 1, "overlap", rates.overlap, "0 to 1");
  require(rates.group >= 0, "group", rates.group, "0 or more");
  for (LinkRates const& link : {rates.near, rates.far}) detail::require_rates(link);
  return detail::EstimatedRing(*this, rates).run();
}

}  // namespace annulus
#endif
