#pragma once
// Simulated GpSimdE: iota and affine_select, whose values follow an integer index pattern.

#include <vector>

#include "annulus/nki/simulate/row_math.hpp"
#include "annulus/nki/simulate/rows.hpp"

namespace annulus::nki::simulator {

/// Calls visit(element, value) for value = first + sum of step * index, in row-major order of the pattern.
template <class Visit>
void for_each_value(std::vector<Axis> const& pattern, Index first, Visit&& visit) {
  Index element = 0;
  for_each_run(pattern, [&](Index offset, Index count, Index step) {
    for (Index j = 0; j < count; ++j) visit(element++, first + offset + j * step);
  });
}

inline void check_pattern(std::vector<Axis> const& pattern, Operand const& dst) {
  Index count = 1;
  for (Axis const& axis : pattern) count *= axis.count;
  check<Error>(count == dst.elements, "pattern has ", count, " values, dst ", dst.elements, " elements per partition");
}

inline void execute(CoreState& core, Iota const& i) {
  Operand const dst = core.write(i.dst, "dst");
  check_pattern(i.pattern, dst);
  Index const first = core.walk.at(i.offset);
  transform_rows<0>(core, dst, {}, [&](Index p, float* out, auto const&) {
    for_each_value(i.pattern, first + p * i.channel_multiplier,
                    [&](Index element, Index value) { out[element] = static_cast<float>(value); });
  });
}

inline void execute(CoreState& core, AffineSelect const& i) {
  Operand const data = core.read(i.on_true_tile, "on_true_tile");
  Operand const dst = core.write(i.dst, "dst");
  check_pattern(i.pattern, dst);
  Index const first = core.walk.at(i.offset);
  transform_rows<1>(core, dst, {{{data, "on_true_tile"}}}, [&](Index p, float* out, auto const& in) {
    for_each_value(i.pattern, first + p * i.channel_multiplier, [&](Index element, Index value) {
      bool const kept = apply(i.cmp_op, static_cast<float>(value), 0.0f) != 0.0f;
      out[element] = kept ? in[0][element] : i.on_false_value;
    });
  });
}

}  // namespace annulus::nki::simulator
