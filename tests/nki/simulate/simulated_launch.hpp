#pragma once
// Launch of a tile program on all workers of a simulated ring, one thread each.

#include <vector>

#include "annulus/nki/simulate/simulate.hpp"
#include "annulus/comm/simulated_ring.hpp"

namespace annulus_test {

/// Returns the outputs of each worker, given the inputs of each. `arrangement` places the workers on the ring.
inline std::vector<annulus::nki::Tensors> launch(annulus::nki::Program const& program,
                                                 std::vector<annulus::nki::Tensors> const& inputs,
                                                 annulus::nki::Arrangement const& arrangement = {}) {
  std::vector<annulus::nki::Tensors> outputs(inputs.size());
  annulus::nki::Hardware const hardware = annulus::nki::hardware_of(program.target);
  annulus::run_ring(static_cast<int>(inputs.size()), [&](annulus::SimulatedRing& ring) {
    auto const worker = static_cast<std::size_t>(arrangement.worker(ring.rank()));
    outputs[worker] = annulus::nki::simulate(program, hardware, inputs[worker], ring, arrangement);
  });
  return outputs;
}

}  // namespace annulus_test
