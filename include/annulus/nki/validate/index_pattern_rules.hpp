#pragma once
// Rules of instructions with index patterns: iota and affine_select on GpSimdE, nc_stream_shuffle on VectorE.

#include <limits>

#include "annulus/nki/validate/shape_rules.hpp"

namespace annulus::nki::validate_detail {

/// The pattern's values are v(p, i...) = offset + p * channel_multiplier + sum of step * i, computed in int32.
inline void require_index_pattern(std::vector<Axis> const& pattern, Affine const& offset, Index channel_multiplier,
                                  Access const& dst, Site const& site) {
  auto const axes = static_cast<Index>(pattern.size());
  site.require(axes >= 1 && axes <= site.limits.free_axes, "R17", "pattern", axes, " axes; 1 to ",
               site.limits.free_axes, " are accepted");
  Index elements = 1;
  ValueRange range = site.scope.range_of(offset);
  auto const extend_range = [&](Index step, Index count) {
    Index const distance = saturating_multiply(step, count - 1);
    Index& end = distance < 0 ? range.low : range.high;
    end = saturating_add(end, distance);
  };
  for (Axis const& axis : pattern) {
    if (!site.require(axis.count >= 1, "R17", "pattern", "an axis of ", axis.count, " elements; at least 1 is needed"))
      return;
    elements = saturating_multiply(elements, axis.count);
    extend_range(axis.stride, axis.count);
  }
  extend_range(channel_multiplier, dst.partitions());
  site.require(elements == dst.elements(), "shape", "pattern", "counts ", elements, " elements; dst has ",
               dst.elements(), " per partition");
  using Int32 = std::numeric_limits<std::int32_t>;
  site.require(range.low >= Int32::min() && range.high <= Int32::max(), "R17", "offset", "values ", range.low, "..",
               range.high, "; they are counted in int32");
}

inline void check(Iota const& i, Site const& site) {
  check_reach(i, Engine::gpsimd, site);
  require_index_pattern(i.pattern, i.offset, i.channel_multiplier, i.dst, site);
}

inline void check(AffineSelect const& i, Site const& site) {
  check_reach(i, Engine::gpsimd, site);
  require_same_shape("on_true_tile", i.on_true_tile, "dst", i.dst, site);
  require_index_pattern(i.pattern, i.offset, i.channel_multiplier, i.dst, site);
  site.require(is_comparison(i.cmp_op), "operator", "cmp_op", name_of(i.cmp_op), "; accepted: comparisons");
}

inline void check(StreamShuffle const& i, Site const& site) {
  check_reach(i, Engine::vector, site);
  ElementType const from = site.type(i.src), to = site.type(i.dst);
  site.require(from == to, "shape", "dst", "is ", name_of(to), "; src is ", name_of(from), ", and both must be equal");
  site.require(i.src.elements() == i.dst.elements(), "shape", "dst", i.dst.elements(),
               " elements per partition; src has ", i.src.elements(), ", and both must be equal");
  Index const rounded = (std::max(i.src.partitions(), i.dst.partitions()) + 31) / 32 * 32;
  if (i.src.start_partition % start_partition_step(i.src.partitions()) == 0)
    require_start_partition(i.src.start_partition, rounded, "src", site);
  if (i.dst.start_partition % start_partition_step(i.dst.partitions()) == 0)
    require_start_partition(i.dst.start_partition, rounded, "dst", site);
  if (!site.require(i.shuffle_mask.size() == 32, "shape", "shuffle_mask", i.shuffle_mask.size(),
                    " entries; accepted: 32"))
    return;
  for (Index partition = 0; partition < i.dst.partitions(); ++partition) {
    int const entry = i.shuffle_mask[static_cast<std::size_t>(partition % 32)];
    Index const quadrant = partition / 32 * 32;
    Index const present = std::min<Index>(i.src.partitions() - quadrant, 32);
    if (!site.require(entry == 255 || (entry >= 0 && entry < present), "shape", "shuffle_mask", "entry ", entry,
                      " for partition ", partition, " of dst; quadrant ", partition / 32, " of src has ",
                      std::max<Index>(present, 0), " partitions; 255 leaves dst unchanged"))
      return;
  }
}

}  // namespace annulus::nki::validate_detail
