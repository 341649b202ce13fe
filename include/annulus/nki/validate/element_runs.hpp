#pragma once
// Elements of an access pattern as runs of consecutive elements.

#include <algorithm>
#include <array>
#include <span>

#include "annulus/nki/program/access.hpp"

namespace annulus::nki::validate_detail {

/// Decomposes the axes into runs. Their order is unspecified, because only the set of elements matters.
class Runs {
 public:
  explicit Runs(std::span<Axis const> axes) {
    // Insertion sort by ascending stride: there are few axes.
    for (Axis const& axis : axes) {
      if (axis.count <= 1 || axis.stride == 0) continue;
      std::size_t place = count_++;
      for (; place > 0 && axes_[place - 1].stride > axis.stride; --place) axes_[place] = axes_[place - 1];
      axes_[place] = axis;
    }
    std::size_t joined = 0;
    while (joined < count_ && axes_[joined].stride == length_) length_ *= axes_[joined++].count;
    std::shift_left(axes_.begin(), axes_.begin() + static_cast<std::ptrdiff_t>(count_),
                    static_cast<std::ptrdiff_t>(joined));
    count_ -= joined;
  }

  /// Calls visit_run(begin, count) for each run of the pattern at offset `begin`, until it returns false.
  template <class Visit>
  void visit(Index begin, Visit&& visit_run) const {
    std::array<Index, Access::most_axes> at{};
    for (;;) {
      if (!visit_run(begin, length_)) return;
      std::size_t axis = 0;
      for (; axis < count_; ++axis) {
        begin += axes_[axis].stride;
        if (++at[axis] < axes_[axis].count) break;
        begin -= at[axis] * axes_[axis].stride;
        at[axis] = 0;
      }
      if (axis == count_) return;
    }
  }

 private:
  std::array<Axis, Access::most_axes> axes_{};
  std::size_t count_ = 0;
  Index length_ = 1;
};

}  // namespace annulus::nki::validate_detail
