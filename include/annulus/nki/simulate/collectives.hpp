#pragma once
// Simulated collectives: permutes along the ring, queries of the rank whose data has been received, and barriers.

#include <functional>
#include <span>

#include "annulus/nki/simulate/arrangement.hpp"
#include "annulus/nki/simulate/row_math.hpp"
#include "annulus/nki/simulate/rows.hpp"

namespace annulus::nki::simulator {

/// A rank's position in the ring. shift(out, in) sends `out` to the next rank and receives `in` from the previous one.
struct RingPosition {
  Rank rank = 0;
  int ranks = 1;
  Arrangement arrangement;
  std::function<void(std::span<float const> out, std::span<float> in)> shift;
};

/// All elements in order; gathered in `scratch` if they are not consecutive in memory.
inline std::span<float const> elements_of(Operand const& operand, Scratch& scratch) {
  auto const size = static_cast<std::size_t>(operand.size());
  if (operand.flat()) return {operand.base, size};
  float* const all = scratch.of(operand.size());
  for (Index p = 0; p < operand.rows; ++p) gather(operand, p, all + p * operand.elements);
  return {all, size};
}

inline void receive(CoreState& core, RingPosition const& place, std::span<float const> out, Access const& into) {
  Operand const dst = core.write(into, "dsts_by_channel");
  float* const in = core.scratch[3].of(dst.size());
  place.shift(out, {in, static_cast<std::size_t>(dst.size())});
  for (Index p = 0; p < dst.rows; ++p) scatter(dst, p, in + p * dst.elements);
}

inline void meet(CoreState& core, RingPosition const& place, CollectivePermute const& i) {
  Operand const src = core.read(i.src, "srcs_by_channel");
  Buffer const &from = core.program.buffer(i.src), &to = core.program.buffer(i.dst);
  check<Error>(src.size() == i.dst.size() && from.type == to.type, "src has ", src.size(), " elements of ",
               name_of(from.type), ", dst ", i.dst.size(), " of ", name_of(to.type));
  receive(core, place, elements_of(src, core.scratch[0]), i.dst);
}

inline void meet(CoreState& core, RingPosition const& place, CollectivePermuteReduce const& i) {
  Operand const src0 = core.read(i.src0, "srcs0_by_channel"), src1 = core.read(i.src1, "srcs1_by_channel");
  Buffer const& to = core.program.buffer(i.dst);
  check<Error>(
      src0.size() == i.dst.size() && src1.size() == i.dst.size() && src0.type == to.type && src1.type == to.type,
      "sources have ", src0.size(), " and ", src1.size(), " elements of ", name_of(src0.type), " and ",
      name_of(src1.type), ", dst ", i.dst.size(), " of ", name_of(to.type));
  auto const a = elements_of(src0, core.scratch[0]), b = elements_of(src1, core.scratch[1]);
  float* const joined = core.scratch[2].of(src0.size());
  apply(i.op, a.data(), b.data(), joined, src0.size());
  round_to(to.type, joined, src0.size());
  receive(core, place, {joined, a.size()}, i.dst);
}

/// Writes to simulated shared HBM are visible to the other core immediately, so a barrier has nothing else to do.
inline void meet(CoreState& core, RingPosition const&, CoreBarrier const&) {
  check<Error>(core.program.cores > 1, "core_barrier requires 2 cores; the program has 1");
}

/// Sets a register to the id of the worker whose data has been received.
inline void answer(CoreState& core, RingPosition const& place, ProcessingRank const& i) {
  auto const number = static_cast<std::size_t>(i.register_number);
  check<Error>(number < core.registers.size(), "register ", i.register_number, " of ", core.registers.size());
  core.registers[number] = place.arrangement.id_after(core.walk.at(i.iteration_id), place.rank, place.ranks);
}

}  // namespace annulus::nki::simulator
