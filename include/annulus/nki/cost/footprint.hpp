#pragma once
// Footprint of an operand: the runs of elements it touches, and the largest piece size that divides all footprints of a
// buffer.

#include <algorithm>
#include <numeric>
#include <vector>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// Elements [begin, begin + length), counted from the offset of an access.
struct Run {
  Index begin = 0;
  Index length = 0;
  bool operator==(Run const&) const = default;
};

namespace footprint_detail {

/// An access with more runs than this is treated as one run from its first to its last element.
inline constexpr Index most_runs = 4096;

inline void add_runs(Access const& access, std::size_t axis, std::size_t end, Index begin, Index length,
                     std::vector<Run>& runs) {
  if (axis == end) {
    runs.push_back({begin, length});
    return;
  }
  Index const count = access.axis(axis).stride == 0 ? 1 : access.axis(axis).count;
  for (Index i = 0; i < count; ++i) add_runs(access, axis + 1, end, begin + i * access.axis(axis).stride, length, runs);
}

}  // namespace footprint_detail

/// The runs of an access in ascending order, adjacent ones joined: in a partition on chip, in the whole tensor in HBM.
inline std::vector<Run> runs_of(Access const& access, bool on_chip) {
  std::size_t const first = on_chip ? 1 : 0;
  std::size_t inner = access.axes().size();
  Index length = 1;
  for (; inner > first; --inner) {
    Axis const& axis = access.axis(inner - 1);
    if (axis.count != 1 && axis.stride != 0 && axis.stride != length) break;
    if (axis.stride != 0) length *= axis.count;
  }
  Index count = 1;
  for (std::size_t i = first; i < inner; ++i) count *= access.axis(i).count;
  if (count > footprint_detail::most_runs) {
    auto const [low, high] = access.extremes(first);
    return {{low, high - low + 1}};
  }
  std::vector<Run> runs, joined;
  footprint_detail::add_runs(access, first, inner, 0, length, runs);
  std::ranges::sort(runs, {}, &Run::begin);
  for (Run const& run : runs) {
    if (!joined.empty() && run.begin <= joined.back().begin + joined.back().length)
      joined.back().length = std::max(joined.back().length, run.begin + run.length - joined.back().begin);
    else
      joined.push_back(run);
  }
  return joined;
}

/// True if the access touches its whole buffer in every iteration. A register offset may point anywhere, so it counts
/// as touching all.
inline bool touches_all(Buffer const& buffer, Access const& access, std::vector<Run> const& runs) {
  if (access.register_offset) return true;
  return access.offset == Affine(0) && runs.size() == 1 && runs[0] == Run{0, buffer.elements_per_partition()};
}

/// The greatest common divisor of all boundaries of an access's runs, and of `so_far`.
inline Index common_divisor(Access const& access, std::vector<Run> const& runs, Index so_far) {
  so_far = std::gcd(so_far, access.offset.constant());
  for (Affine::Term const& term : access.offset.terms()) so_far = std::gcd(so_far, term.coefficient);
  for (Run const& run : runs) so_far = std::gcd(std::gcd(so_far, run.begin), run.length);
  return so_far;
}

}  // namespace annulus::nki
