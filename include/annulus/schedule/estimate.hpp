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

#if defined(ANNULUS_DEFINITIONS)

namespace detail {

/// Clocks of all ranks, advanced step by step in the order of the ring loop.
class EstimatedRing {
 public:
  EstimatedRing(RingPlan const& plan, Rates const& rates)
      : plan_(plan), rates_(rates), clocks_(static_cast<std::size_t>(plan.ranks()), 0.0), sent_(clocks_) {}

  PlanEstimate run() {
    int const ranks = plan_.ranks(), steps = plan_.steps();
    PlanEstimate result{ranks, steps, std::vector<EstimatedStep>(static_cast<std::size_t>(ranks * steps)), 0};
    exchange_in_groups([&](Rank from, int) { return plan_.transport().bytes_before(from); });
    for (int i = 0; i < steps; ++i) {
      std::vector<double> const begins = clocks_;
      do_step(i);
      if (i + 1 == steps) await(i, sent_, Channel::carried);
      for (Rank r = 0; r < ranks; ++r)
        result.of_all[static_cast<std::size_t>(r * steps + i)] = {at(begins, r), work(r, i), at(clocks_, r)};
    }
    exchange_in_groups([&](Rank from, int to) { return plan_.transport().bytes_after(from, to); });
    result.seconds = *std::max_element(clocks_.begin(), clocks_.end()) + sink_gradients();
    return result;
  }

 private:
  enum class Channel { prefetched, carried };

  static double at(std::vector<double> const& clocks, Rank rank) { return clocks[static_cast<std::size_t>(rank)]; }

  double work(Rank rank, int step) const {
    return rates_.step_overhead + 2 * static_cast<double>(plan_.step(rank, step).multiply_adds) / rates_.flops;
  }
  /// Work of the step during which messages do not move.
  double blocked(Rank rank, int step) const { return (1 - rates_.overlap) * work(rank, step); }

  LinkRates const& link(Rank from, Rank to) const {
    return rates_.group == 0 || from / rates_.group == to / rates_.group ? rates_.near : rates_.far;
  }
  /// The offset of a lane's shift after (carried) or during the step; 0: there is none.
  static int hop(RingPlan const& lane, int step, Channel channel) {
    if (channel == Channel::prefetched) return lane.transport().prefetched_hop(step);
    return lane.transport().carried.empty() ? 0 : lane.transport().carried_hop(step);
  }

  void do_step(int i) {
    std::vector<double> const begins = clocks_;
    for (Rank r = 0; r < plan_.ranks(); ++r) clocks_[static_cast<std::size_t>(r)] += work(r, i);
    if (i > 0) {
      // Results of the step before move while this step's work lets them.
      std::vector<double> posted = sent_;
      for (Rank r = 0; r < plan_.ranks(); ++r) posted[static_cast<std::size_t>(r)] += blocked(r, i);
      await(i - 1, posted, Channel::carried);
    }
    sent_ = clocks_;
    if (i + 1 == plan_.steps()) return;
    std::vector<double> posted = begins;
    for (Rank r = 0; r < plan_.ranks(); ++r) posted[static_cast<std::size_t>(r)] += blocked(r, i);
    await(i, posted, Channel::prefetched);
  }

  /// Advances each clock to the end of the rank's shifts, as sender and as receiver. A message starts when both of its
  /// ranks have posted it. Messages to different ranks do not slow each other; those of both lanes to the same rank
  /// share the link. `sent_in`: the step whose shift it is.
  void await(int sent_in, std::vector<double> const& posted, Channel channel) {
    for (RingPlan const& one : plan_.lanes()) {
      int const offset = hop(one, sent_in, channel);
      for (Rank from = 0; offset != 0 && from < plan_.ranks(); ++from) {
        Rank const to = plan_.transport().rank_offsets.forward(from, offset);
        Index bytes = 0;
        for (RingPlan const& lane : plan_.lanes()) {
          PlannedStep const& step = lane.step(from, sent_in);
          if (hop(lane, sent_in, channel) == offset)
            bytes += channel == Channel::carried ? step.carried_bytes : step.prefetched_bytes;
        }
        double const end =
            std::max(at(posted, from), at(posted, to)) + link(from, to).seconds(plan_.request().zero_copy ? 0 : bytes);
        for (Rank rank : {from, to}) clocks_[static_cast<std::size_t>(rank)] = std::max(at(clocks_, rank), end);
      }
    }
  }

  /// Advances the clocks of each group to the end of an exchange, in which each rank sends messages of bytes(rank,
  /// member) to all others at once, one after another over its link. It starts when the last rank of the group is
  /// there.
  template <class Bytes>
  void exchange_in_groups(Bytes&& bytes) {
    RankGroups const& groups = plan_.groups();
    if (groups.size() == 1) return;
    for (Rank first = 0; first < plan_.ranks(); first += groups.size()) {
      double start = 0, longest = 0;
      for (Rank from = first; from < first + groups.size(); ++from) {
        double latency = 0, moving = 0;
        for (int to = 0; to < groups.size(); ++to) {
          Index const sent = bytes(from, to);
          if (to == groups.place(from) || sent == 0) continue;
          LinkRates const& one = link(from, first + to);
          latency = std::max(latency, one.latency);
          moving += one.seconds(sent) - one.latency;
        }
        start = std::max(start, at(clocks_, from));
        longest = std::max(longest, latency + moving);
      }
      for (Rank rank = first; rank < first + groups.size(); ++rank)
        clocks_[static_cast<std::size_t>(rank)] = start + longest;
    }
  }

  /// The gradients of sink logits travel once around the ring, in messages as large as the largest, lane after lane.
  double sink_gradients() const {
    double seconds = 0;
    for (RingPlan const& lane : plan_.lanes()) {
      Transport const& transport = lane.transport();
      if (plan_.request().sinks == 0 || transport.sink_shares.empty() || transport.shares_buffers()) continue;
      Index rows = 0;
      for (Rank r = 0; r < plan_.ranks(); ++r) rows = std::max(rows, transport.sink_rows(r).size());
      double slowest = 0;
      for (Rank r = 0; r < plan_.ranks(); ++r)
        slowest = std::max(
            slowest, link(r, rank_at(r + 1, plan_.ranks())).seconds(rows * transport.sink_shares.bytes_per_row()));
      seconds += (plan_.ranks() - 1) * slowest;
    }
    return seconds;
  }

  RingPlan const& plan_;
  Rates const& rates_;
  std::vector<double> clocks_;
  std::vector<double> sent_;  ///< when each rank has posted the results of the last step
};

}  // namespace detail

ANNULUS_INLINE PlanEstimate RingPlan::estimate(Rates const& rates) const {
  auto const require = [](bool holds, char const* name, double value, char const* accepted) {
    detail::check<UnsupportedError>(holds, "rates: ", name, " is ", value, "; accepted: ", accepted);
  };
  require(rates.flops > 0, "flops", rates.flops, "above 0");
  require(rates.step_overhead >= 0, "step_overhead", rates.step_overhead, "0 or more");
  require(0 <= rates.overlap && rates.overlap <= 1, "overlap", rates.overlap, "0 to 1");
  require(rates.group >= 0, "group", rates.group, "0 or more");
  for (LinkRates const& link : {rates.near, rates.far}) detail::require_rates(link);
  return detail::EstimatedRing(*this, rates).run();
}

#endif

}  // namespace annulus
