#pragma once
// Cost of a DMA: a generator writes its descriptors, a latency follows, then some of the DMA engines move rows.

#include <algorithm>
#include <cmath>

#include "annulus/nki/cost/instruction_cost.hpp"
#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

namespace transfer_cost_detail {

/// Number of consecutive elements along the axes from `from` on.
inline Index run_length(Access const& access, std::size_t from) {
  Index run = 1;
  for (std::size_t i = access.axes().size(); i-- > from;) {
    if (access.axis(i).count == 1) continue;
    if (access.axis(i).stride != run) break;
    run *= access.axis(i).count;
  }
  return run;
}

}  // namespace transfer_cost_detail

/// I, from the vendor's rates (D): 1.3 us + bytes / (engines * rate * b / (b + 256)), with one engine per 8 partitions
/// and b = contiguous bytes of a row of a partition, the smaller of both sides. HBM traffic of a core is limited to its
/// part of the stack that a pair shares; from HBM to HBM every byte counts twice there. A cast moves the wider type.
inline InstructionCost dma_cost(Program const& program, Costs const& costs, Access const& dst, Access const& src,
                                bool transpose) {
  Buffer const& to = program.buffer(dst);
  Buffer const& from = program.buffer(src);
  bool const to_chip = on_chip(to.memory), from_chip = on_chip(from.memory);
  std::size_t const first_axis = to_chip || from_chip ? 1 : 0;
  auto const row_bytes = [&](Access const& access, Buffer const& buffer) {
    return static_cast<double>(transfer_cost_detail::run_length(access, first_axis) * bytes_of(buffer.type));
  };
  double const row = std::min(row_bytes(dst, to), row_bytes(src, from));
  double const bytes = static_cast<double>(std::max(dst.size() * bytes_of(to.type), src.size() * bytes_of(from.type)));

  double const all_engines = costs.dma_engines;
  double engines;
  if (to_chip || from_chip) {
    Index const partitions = std::max(to_chip ? dst.partitions() : 0, from_chip ? src.partitions() : 0);
    engines = static_cast<double>(ceil_divide(partitions, 8));
  } else {
    engines = std::ceil(bytes / std::min(row, costs.dma_piece));
  }
  engines = std::min(engines, all_engines);

  double rate = engines * costs.dma_engine_rate * row / (row + costs.dma_row_overhead);
  if (transpose) rate *= from_chip ? costs.dma_transpose_share : costs.dma_transpose_share_hbm;
  double const hbm_sides = (to_chip ? 0 : 1) + (from_chip ? 0 : 1);
  double const hbm_rate = costs.hbm_rate / program.cores;
  double share = engines / all_engines;
  if (hbm_sides > 0) {
    rate = std::min(rate, hbm_rate / hbm_sides);
    share = std::max(share, rate * hbm_sides / hbm_rate);
  }
  return {.engine = Engine::dma,
          .seconds = bytes / rate,
          .latency = costs.dma_latency,
          .issue = costs.dma_issue,
          .share = share,
          .estimate = true};
}

}  // namespace annulus::nki
