#pragma once
// Simulated DMA: copies and transposes between HBM and SBUF, each side with its own access pattern.

#include <array>
#include <vector>

#include "annulus/nki/simulate/rows.hpp"
#include "annulus/nki/simulate/transposition.hpp"

namespace annulus::nki::simulator {

inline void execute(CoreState& core, DmaCopy const& i) {
  Operand const src = core.read(i.src, "src");
  Operand const dst = core.write(i.dst, "dst");
  check<Error>(src.size() == dst.size(), "src has ", src.size(), " elements, dst ", dst.size());
  bool const exact = src.type == dst.type;
  if (src.rows == dst.rows) {
    transform_rows<1>(
        core, dst, {{{src, "src"}}},
        [&](Index, float* out, auto const& in) {
          if (in[0] != out) std::copy(in[0], in[0] + dst.elements, out);
        },
        exact);
    return;
  }
  float* const all = core.scratch[0].of(src.size());
  for (Index p = 0; p < src.rows; ++p) gather(src, p, all + p * src.elements);
  if (!exact) round_to(dst.type, all, dst.size());
  for (Index p = 0; p < dst.rows; ++p) scatter(dst, p, all + p * dst.elements);
}

/// Swaps the first and the last axis; the others keep their places.
inline void execute(CoreState& core, DmaTranspose const& i) {
  Operand const src = core.read(i.src, "src");
  Operand const dst = core.write(i.dst, "dst");
  check<Error>(src.type == dst.type, "src is ", name_of(src.type), ", dst ", name_of(dst.type),
               "; dma_transpose keeps the type");
  std::vector<Axis> from{{src.row_stride, src.rows}}, to{{dst.row_stride, dst.rows}};
  from.insert(from.end(), src.free.begin(), src.free.end());
  to.insert(to.end(), dst.free.begin(), dst.free.end());
  check<Error>(from.size() >= 2 && from.size() <= 4, "src has ", from.size(), " axes; dma_transpose takes 2 to 4");
  std::swap(to.front(), to.back());
  bool const same = std::ranges::equal(from, to, {}, &Axis::count, &Axis::count);
  check<Error>(same, "the counts of dst are not those of src with its first and last axis swapped");

  float const* base = src.base;
  if (dst.may_overlap(src)) {
    float* const gathered = core.scratch[0].of(src.size());
    for (Index p = 0; p < src.rows; ++p) gather(src, p, gathered + p * src.elements);
    base = gathered;
    Index stride = 1;
    for (std::size_t axis = from.size(); axis-- > 0; stride *= from[axis].count) from[axis].stride = stride;
  }
  auto const middle = [](std::vector<Axis> const& axes, std::size_t axis) {
    return axis + 1 < axes.size() ? axes[axis] : Axis{0, 1};
  };
  Axis const j_from = middle(from, 1), k_from = middle(from, 2), j_to = middle(to, 1), k_to = middle(to, 2);
  for (Index j = 0; j < j_from.count; ++j)
    for (Index k = 0; k < k_from.count; ++k)
      swap_axes({base + j * j_from.stride + k * k_from.stride, from.front().stride, from.back().stride},
                {dst.base + j * j_to.stride + k * k_to.stride, to.front().stride, to.back().stride}, from.front().count,
                from.back().count);
}

}  // namespace annulus::nki::simulator
