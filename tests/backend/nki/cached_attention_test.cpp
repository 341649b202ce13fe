// Calls on a cache on simulated NeuronCores, against dense attention in double.

#include <string>

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/backend/nki.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "attention/cache/cached_sequences.hpp"
#include "attention/cache/serving_history.hpp"
#include "conformance/leaf_vectors.hpp"
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

TEST_CASE("NkiBackend: serving has the bits of training", "[nki][cache][reproducible]") {
  using Backend = annulus::NkiBackend;
  for (annulus_test::ServingCase const& one : annulus_test::serving_cases({.calls = 12}))
    for (int ranks : {1, 3}) {
      INFO("case " << one.seed << ", " << ranks << " ranks");
      for (std::string const& complaint : annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
             Backend backend;
             return annulus_test::ServingHistory<float, annulus::SimulatedRing, Backend>(ring, backend, one).run();
           }))
        CHECK(complaint == "");
    }
}

TEST_CASE("NkiBackend: leaves are joined in the order of the tree", "[nki][cache][reproducible]") {
  CHECK(annulus_test::wrong_leaf_vectors<float>(annulus::NkiBackend{}) == "");
}
