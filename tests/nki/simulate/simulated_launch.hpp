#pragma once
// Launch of a tile program on all workers of a simulated ring, one thread each.

#include <utility>
#include <vector>

#include "annulus/comm/simulated_ring.hpp"
#include "annulus/nki/simulate/simulate.hpp"

namespace annulus_test {

/// Validates the program for its own target.
inline annulus::nki::ValidatedProgram valid(annulus::nki::Program program) {
  auto const hardware = annulus::nki::hardware_of(program.target);
  return validated(std::move(program), hardware);
}

/// Returns the outputs of each worker, given the inputs of each. `arrangement` places the workers on the ring.
inline std::vector<annulus::nki::Tensors> launch(annulus::nki::ValidatedProgram const& program,
                                                 std::vector<annulus::nki::Tensors> const& inputs,
                                                 annulus::nki::Arrangement const& arrangement = {}) {
  std::vector<annulus::nki::Tensors> outputs(inputs.size());
  annulus::run_ring(static_cast<int>(inputs.size()), [&](annulus::SimulatedRing& ring) {
    auto const worker = static_cast<std::size_t>(arrangement.worker(ring.rank()));
    outputs[worker] = annulus::nki::simulate(program, inputs[worker], ring, arrangement);
  });
  return outputs;
}

}  // namespace annulus_test
