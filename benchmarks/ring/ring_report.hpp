#pragma once
// Counters of a ring relative to one rank that does the same work alone.

#include <annulus/schedule/ring_plan.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include <benchmark/benchmark.h>

#include "attention/operands.hpp"
#include "ring/ring_case.hpp"
#include "timing.hpp"

namespace annulus_bench {

/// Work of all ranks over their capacity if each step takes as long as its busiest rank.
inline double balance(annulus::RingPlan const& plan) {
  double work = 0, slots = 0;
  for (int step = 0; step < plan.steps(); ++step) {
    double most = 0;
    for (annulus::Rank rank = 0; rank < plan.ranks(); ++rank) {
      auto const here = static_cast<double>(plan.step(rank, step).multiply_adds);
      work += here;
      most = std::max(most, here);
    }
    slots += most * plan.ranks();
  }
  return slots == 0 ? 1 : work / slots;
}

/// Collects rounds that time one rank alone, the ring, and the ring without communication in alternation, so that other
/// load on the machine affects all three alike. CPU times are sums over all ranks.
class RingReport {
 public:
  void add_round(Elapsed const& alone, Elapsed const& ring, Elapsed const& without_transfers) {
    seconds_.push_back(ring.wall);
    speeds_.push_back(alone.wall / ring.wall);
    exposed_.push_back(1 - without_transfers.wall / ring.wall);
    cpu_shares_.push_back(alone.cpu / ring.cpu);
    cpu_exposed_.push_back(1 - without_transfers.cpu / ring.cpu);
  }

  void write(benchmark::State& state, RingCase const& c, annulus::RingPlan const& plan) const {
    state.counters["GFLOP/s"] = operations(c.attention) / median(seconds_) * 1e-9;
    state.counters["speed_of_one_rank"] = median(speeds_);
    state.counters["exposed_%"] = 100 * median(exposed_);
    state.counters["cpu_of_one_rank_%"] = 100 * median(cpu_shares_);
    state.counters["exposed_cpu_%"] = 100 * median(cpu_exposed_);
    state.counters["balance_%"] = 100 * balance(plan);
  }

 private:
  std::vector<double> seconds_, speeds_, exposed_, cpu_shares_, cpu_exposed_;
};

/// ||a - b|| / ||b||
inline double relative_difference(FloatTensor const& a, FloatTensor const& b) {
  double difference = 0, size = 0;
  for (Index i = 0; i < a.size(); ++i) {
    difference += std::pow(a.data()[i] - b.data()[i], 2);
    size += std::pow(b.data()[i], 2);
  }
  return std::sqrt(difference / size);
}

/// Ring and single rank may each have an error of 2e-6.
inline constexpr double ring_error_bound = 4e-6;

}  // namespace annulus_bench
