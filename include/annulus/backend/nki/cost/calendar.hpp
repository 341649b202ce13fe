#pragma once
// Calendar: when something that one user at a time can have is taken.

#include <algorithm>
#include <vector>

namespace annulus::nki {

/// Gives out spans of time, each as early as possible, also before spans given out earlier. It remembers the latest few
/// of them and gives out nothing before those: with as many queues, later requests cannot overtake more.
class Calendar {
 public:
  explicit Calendar(int remembered) : remembered_(static_cast<std::size_t>(remembered)) {
    taken_.reserve(remembered_ + 1);
  }

  /// When a span that must not begin before `ready` would begin.
  double earliest(double ready, double duration) const { return find(ready, duration).begin; }

  /// Takes it.
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
    // The latest spans decide nearly always: those that end before `begin` need no look.
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
