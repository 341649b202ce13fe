#pragma once
// Axes of DMA operands, cut to equal extents: a DMA needs equal element counts only, but some checkers equal shapes.

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/nki/print/python_operand.hpp"

namespace annulus::nki::print_detail {

/// The coarsest extents into which both lists of axes can be cut; nullopt if there are none.
inline std::optional<std::vector<Index>> common_extents(std::span<Axis const> a, std::span<Axis const> b) {
  std::vector<Index> extents;
  std::size_t i = a.size(), j = b.size();
  Index left_a = 1, left_b = 1;
  while (true) {
    while (left_a == 1 && i > 0) left_a = a[--i].count;
    while (left_b == 1 && j > 0) left_b = b[--j].count;
    if (left_a == 1 && left_b == 1) break;
    Index const extent = std::min(left_a, left_b);
    if (extent < 2 || left_a % extent != 0 || left_b % extent != 0) return std::nullopt;
    extents.push_back(extent);
    left_a /= extent;
    left_b /= extent;
  }
  std::ranges::reverse(extents);
  return extents;
}

/// Splits the axes at these extents; elements and their order stay the same.
inline Axes cut(std::span<Axis const> axes, std::span<Index const> extents) {
  Axes made(extents.size());
  std::size_t i = axes.size();
  Axis left;
  for (std::size_t e = extents.size(); e-- > 0;) {
    if (extents[e] == 1) continue;
    while (left.count == 1) left = axes[--i];
    made[e] = {left.stride, extents[e]};
    left = {left.stride * extents[e], left.count / extents[e]};
  }
  return made;
}

/// Axes of dst and of src, unchanged if their extents are equal, else both cut to common extents if possible. The axis
/// of `partitions` of a side on chip is not cut; partitions = 0: neither side is on chip.
inline std::pair<Axes, Axes> copy_axes(Access const& dst, Access const& src, Index partitions) {
  Axes const own_dst(dst.axes().begin(), dst.axes().end()), own_src(src.axes().begin(), src.axes().end());
  if (std::ranges::equal(own_dst, own_src, {}, &Axis::count, &Axis::count)) return {own_dst, own_src};
  auto extents = common_extents(own_dst, own_src);
  if (!extents) return {own_dst, own_src};
  if (partitions == 1) extents->insert(extents->begin(), 1);
  while (extents->size() < 2) extents->push_back(1);
  if ((partitions != 0 && extents->front() != partitions) || extents->size() > Access::most_axes)
    return {own_dst, own_src};
  return {cut(own_dst, *extents), cut(own_src, *extents)};
}

}  // namespace annulus::nki::print_detail
