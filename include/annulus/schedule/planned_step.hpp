#pragma once
// Planned step: what one rank works on, holds and sends in one step of a plan; and the balance of the work of all.

#include <algorithm>
#include <cstddef>
#include <span>

#include "annulus/core/index.hpp"
#include "annulus/mask/mask.hpp"

namespace annulus {

/// One step of one rank, which works on rows of `owner`. Row ranges count the rows that the owner works on.
/// In both directions: owner and rows of the lane that travels forwards, work and bytes of both lanes.
struct PlannedStep {
  Rank owner = 0;              ///< rank whose rows are here
  Index visible_pairs = 0;     ///< per batch item and query head; an upper bound where pairs are tested
  Index multiply_adds = 0;     ///< of all batch items and heads; joint keys are part of step 0
  RowRange held{};             ///< rows of the owner that the rank holds
  RowRange sent{};             ///< those of them that the prefetched shift of this step sends
  RowRange carried{};          ///< rows whose results the carried shift of this step sends
  RowRange arriving{};         ///< rows whose results the carried shift of this step receives
  Index prefetched_bytes = 0;  ///< sent by the prefetched shift, or (zero-copy) of this rank's rows that another one reads
  Index carried_bytes = 0;     ///< sent by the carried shift

  /// This step with the work and the bytes of another lane's added.
  PlannedStep with_work_of(PlannedStep const& other) const {
    PlannedStep both = *this;
    both.multiply_adds = detail::saturating_sum(multiply_adds, other.multiply_adds);
    both.prefetched_bytes += other.prefetched_bytes;
    both.carried_bytes += other.carried_bytes;
    return both;
  }
};

namespace detail {

/// The steps of a rank, of those of all ranks one after another.
inline std::span<PlannedStep const> steps_of(std::span<PlannedStep const> all, int ranks, Rank rank) {
  std::size_t const steps = all.size() / static_cast<std::size_t>(ranks);
  return all.subspan(static_cast<std::size_t>(rank) * steps, steps);
}

/// Multiply-adds of these steps.
inline Index work_of(std::span<PlannedStep const> steps) {
  Index sum = 0;
  for (PlannedStep const& step : steps) sum = saturating_sum(sum, step.multiply_adds);
  return sum;
}

/// Largest work of a rank divided by the mean.
inline double imbalance_of(std::span<PlannedStep const> all, int ranks) {
  double largest = 0, sum = 0;
  for (Rank r = 0; r < ranks; ++r) {
    auto const work = static_cast<double>(work_of(steps_of(all, ranks, r)));
    largest = std::max(largest, work);
    sum += work;
  }
  return sum == 0 ? 1 : largest * ranks / sum;
}

/// The largest work of each step, summed, divided by the mean work of a rank.
inline double step_imbalance_of(std::span<PlannedStep const> all, int ranks) {
  double slowest = 0, sum = 0;
  std::size_t const steps = all.size() / static_cast<std::size_t>(ranks);
  for (std::size_t i = 0; i < steps; ++i) {
    Index largest = 0;
    for (std::size_t step = i; step < all.size(); step += steps) {
      largest = std::max(largest, all[step].multiply_adds);
      sum += static_cast<double>(all[step].multiply_adds);
    }
    slowest += static_cast<double>(largest);
  }
  return sum == 0 ? 1 : slowest * ranks / sum;
}

}  // namespace detail

}  // namespace annulus
