#pragma once
// Reservation calendar of a resource that serves one user at a time, such as a DMA descriptor generator.

#include <algorithm>
#include <vector>

namespace annulus::nki {

/// Reserves spans of time, each as early as possible, also before spans reserved earlier. It remembers only the latest
/// `remembered` spans and reserves nothing before them: with that many queues, no request can overtake more of them.
class Calendar {
 public:
  explicit Calendar(int remembered) : remembered_(static_cast<std::size_t>(remembered)) {
    taken_.reserve(remembered_ + 1);
  }

  /// The begin, in seconds, that reserve() would return.
  double earliest(double ready, double duration) const { return find(ready, duration).begin; }

  /// Reserves `duration` seconds, not before `ready`; returns the begin.
  double reserve(double ready, double duration) {
    auto const [begin, place] = find(ready, duration);
    double const end = begin + duration;
    auto const next = taken_.begin() + static_cast<std::ptrdiff_t>(place);
    bool const joins_next = next != taken_.end() && next->begin == end;
    bool const joins_last = place > 0 && taken_[place - 1].end == begin;
    if (joins_last) {
      taken_[place - 1].end = joins_next ? next->end : end;
      if (joins_next) taken_.erase(next);
    } else if (joins_next) {
      next->begin = begin;
    } else {
      taken_.insert(next, {begin, end});
    }
    if (taken_.size() > remembered_) {
      floor_ = taken_.front().end;
      taken_.erase(taken_.begin());
    }
    return begin;
  }

 private:
  struct Span {
    double begin, end;
  };
  struct Found {
    double begin;
    std::size_t place;
  };

  Found find(double ready, double duration) const {
    double begin = std::max(ready, floor_);
    std::size_t place = 0;
    // Searches from the latest span backwards: spans that end before `begin` do not matter, and usually few remain.
    std::size_t first = taken_.size();
    while (first > 0 && taken_[first - 1].end > begin) --first;
    for (place = first; place < taken_.size(); ++place) {
      if (begin + duration <= taken_[place].begin) break;
      begin = std::max(begin, taken_[place].end);
    }
    return {begin, place};
  }

  std::size_t remembered_;
  std::vector<Span> taken_;
  double floor_ = 0;
};

}  // namespace annulus::nki
