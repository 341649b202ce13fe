// A rank that has no views to pass refuses its call, for all ranks.

#include <exception>
#include <vector>

#include "annulus/attention/compiled.hpp"
#include "annulus/backend/cpu/cpu.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

TEST_CASE("a call that one rank refuses throws its error on all ranks, and the ring stays open") {
  for (Pass pass : {Pass::forward, Pass::backward})
    for (Thrown const& thrown : run_ring(3, [&](SimulatedRing& ring) {
           std::vector<float> elements(8), statistics(2);
           TensorView<float, 4> const x(elements.data(), {1, 2, 1, 2}), output(elements.data() + 4, {1, 2, 1, 2});
           TensorView<float, 3> const lse(statistics.data(), {1, 1, 2});
           CpuBackend backend;
           RingAttention attention(ring, backend);
           Thrown const refused = attempt([&] {
             if (ring.rank() == 1)
               attention.refuse(pass, std::make_exception_ptr(ShapeError("no tensors here")), 7);
             else if (pass == Pass::forward)
               attention.forward_into(x, x, x, output, lse, {.call = 7});
             else
               attention.backward_into(x, x, lse, x, x, x, GradientViews<float, HostMemory>{x, x, x}, {.call = 7});
           });
           attention.forward_into(x, x, x, output, lse, {.call = 8});
           return refused;
         }))
      CHECK(thrown == Thrown{"ShapeError", "rank 1: no tensors here"});
}
