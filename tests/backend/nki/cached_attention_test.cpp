// Calls on a cache on simulated NeuronCores, against dense attention in double.

#include <string>

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/backend/nki.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "attention/cache/cached_sequences.hpp"
#include "support/catch.hpp"

TEST_CASE("NkiBackend: random calls on a cache give what dense attention in double gives", "[nki][cache]") {
  for (annulus_test::CachedCase one : annulus_test::cached_cases())
    for (int ranks : {1, 3}) {
      INFO("case " << one.seed << ", " << ranks << " ranks");
      one.calls = 40;
      one.few_queries = ranks == 1;
      for (std::string const& complaint : annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
             annulus::NkiBackend backend;
             return annulus_test::CachedRun<float, annulus::SimulatedRing, annulus::NkiBackend>(ring, backend, one)
                 .run();
           }))
        CHECK(complaint == "");
    }
}
