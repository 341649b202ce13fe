#pragma once
// Rules of DMA instructions: dma_copy and dma_transpose.

#include "annulus/nki/validate/shape_rules.hpp"

namespace annulus::nki::validate_detail {

inline void check(DmaCopy const& i, Site const& site) {
  require_reach(Engine::dma, "dst", i.dst, site);
  require_reach(Engine::dma, "src", i.src, site);
  site.require(i.src.size() == i.dst.size(), "shape", "src", i.src.size(), " elements; dst has ", i.dst.size(),
               ", and both must be equal");
}

/// The counts of all axes, as text.
inline std::string counts_of(Access const& access) {
  std::vector<Index> counts;
  for (Axis const& axis : access.axes()) counts.push_back(axis.count);
  return message_of(counts);
}

/// The DMA engines' caches make a transpose reliable for 2-byte types, axes in multiples of 16 elements, and
/// destinations that begin at multiples of 32 bytes.
inline void check(DmaTranspose const& i, Site const& site) {
  require_reach(Engine::dma, "src", i.src, site);
  site.require(site.memory(i.dst) == Memory::sbuf, "R6", "dst", site.buffer(i.dst).name, " is in ",
               name_of(site.memory(i.dst)), "; accepted: sbuf");
  ElementType const from = site.type(i.src), to = site.type(i.dst);
  site.require(from == to, "R12", "dst", "is ", name_of(to), "; src is ", name_of(from), ", and both must be equal");
  site.require(bytes_of(from) == 2, "R12", "src", "is ", name_of(from), "; accepted: types of 2 bytes");
  static constexpr std::size_t permutations[3][4] = {{1, 0}, {2, 1, 0}, {3, 1, 2, 0}};
  std::size_t const num_axes = i.src.axes().size();
  if (!site.require(num_axes >= 2 && num_axes <= 4, "R12", "src", num_axes, " axes; accepted: 2 to 4")) return;
  bool permuted = i.dst.axes().size() == num_axes;
  for (std::size_t axis = 0; permuted && axis < num_axes; ++axis)
    permuted = i.dst.axis(axis).count == i.src.axis(permutations[num_axes - 2][axis]).count;
  site.require(permuted, "R12", "dst", "is ", counts_of(i.dst), "; src is ", counts_of(i.src),
               ", and dst must be src with its first and last axis swapped");
  Index const rows = i.src.axis(0).count, columns = i.src.axis(num_axes - 1).count;
  site.require(rows % 16 == 0, "R12", "src", "first axis of ", rows, "; accepted: multiples of 16");
  site.require(columns % 16 == 0 && columns <= 128, "R12", "src", "last axis of ", columns,
               "; accepted: multiples of 16 up to 128");
  Affine const bytes = i.dst.offset * bytes_of(to);
  bool aligned = bytes.constant() % 32 == 0;
  for (Affine::Term const& term : bytes.terms()) aligned = aligned && term.coefficient % 32 == 0;
  site.require(aligned, "R12", "dst", "begins at byte ", bytes.constant(), bytes.is_constant() ? "" : " and on",
               " of a partition; accepted: multiples of 32");
}

}  // namespace annulus::nki::validate_detail
