#pragma once
// Timeline of one rank: the intervals of its calls, as the library's observer reports them.

#include <annulus/ring/observer.hpp>
#include <vector>

#include "progress.hpp"

namespace annulus_command {

/// The intervals of one rank. Only that rank's thread writes.
class Timeline {
 public:
  using Clock = annulus::Interval::Clock;

  /// Times are stored relative to `origin`, which must be shared by ranks of one process. `progress` (may be null)
  /// advances with each compute interval.
  explicit Timeline(Progress* progress = nullptr, Clock::time_point origin = {})
      : progress_(progress), origin_(origin.time_since_epoch()) {}

  void add(annulus::Interval interval) {
    for (auto* time : {&interval.begin, &interval.end, &interval.started}) *time -= origin_;
    intervals_.push_back(interval);
    if (progress_ && interval.kind == annulus::IntervalKind::compute) progress_->advance();
  }

  std::vector<annulus::Interval> const& intervals() const { return intervals_; }

 private:
  Progress* progress_;
  Clock::duration origin_;
  std::vector<annulus::Interval> intervals_;
};

/// The intervals of each rank.
using Intervals = std::vector<std::vector<annulus::Interval>>;

}  // namespace annulus_command
