#include "annulus/attention/cached_attention.hpp"

#include <array>
#include <string>
#include <vector>

#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "attention/cached_sequences.hpp"
#include "support/catch.hpp"
#include "support/faulty_communicator.hpp"

using namespace annulus;
using annulus_test::CachedCase;
using annulus_test::CachedRun;
using annulus_test::RingFault;

namespace {

template <class T, class B, class Predicate = EveryPair>
void check_on(int ranks, CachedCase const& one) {
  auto const complaints = run_ring(ranks, [&](SimulatedRing& ring) {
    B backend;
    CachedRun<T, SimulatedRing, B, Predicate> run(ring, backend, one);
    std::string complaint = run.run();
    if (complaint.empty() && run.compared_rows() == 0) complaint = "no row was compared";
    return complaint;
  });
  for (std::string const& complaint : complaints) CHECK(complaint == "");
}

}  // namespace

TEST_CASE("random calls on a cache give what dense attention in double gives", "[attention][cache]") {
  for (CachedCase const& one : annulus_test::cached_cases())
    for (int ranks = 1; ranks <= 8; ++ranks) {
      INFO("case " << one.seed << ", " << ranks << " ranks");
      check_on<float, CpuBackend>(ranks, one);
    }
}

TEST_CASE("the same for other element types, backends and a predicate", "[attention][cache]") {
  for (CachedCase one : annulus_test::cached_cases())
    for (int ranks : {1, 3, 4}) {
      INFO("case " << one.seed << ", " << ranks << " ranks");
      one.calls = 40;
      one.tolerance = 1e-5;
      check_on<float, ReferenceBackend, annulus_test::SomePairs>(ranks, one);
      one.tolerance = 2e-2;
      check_on<Eigen::bfloat16, CpuBackend, annulus_test::SomePairs>(ranks, one);
      one.tolerance = 1e-12;
      check_on<double, CpuBackend>(ranks, one);
    }
}

TEST_CASE("long sequences take the kernels for few queries", "[attention][cache]") {
  for (int ranks : {1, 2, 3}) {
    CachedCase one{.options = {.mask = causal()}, .sinks = true, .calls = 40, .seed = 7, .few_queries = true};
    one.shape = {.kv_heads = 1, .head_dim = 32, .value_dim = 16, .pages = 16, .page_rows = 1030};
    check_on<float, CpuBackend>(ranks, one);
  }
}

TEST_CASE("every mistake of a communicator shows in the results", "[attention][cache]") {
  struct Planted {
    RingFault fault;
    int ranks;
  };
  for (auto const [fault, ranks] : {Planted{RingFault::reduction_of_own_share, 2},
                                    {RingFault::reduction_of_own_share, 3},
                                    {RingFault::reduction_of_own_share, 4},
                                    {RingFault::stale_prefetched, 3},
                                    {RingFault::wrong_neighbour, 3},
                                    {RingFault::last_carried_lost, 2},
                                    {RingFault::carried_in_16_bits, 3},
                                    {RingFault::none, 3}}) {
    int found = 0;
    for (CachedCase const& one : annulus_test::cached_cases()) {
      if (one.options.checked) continue;
      auto const complaints = run_ring(ranks, [&, mistake = fault](SimulatedRing& ring) -> std::string {
        annulus_test::FaultyCommunicator faulty(ring, mistake);
        ReferenceBackend backend;
        CachedRun<float, decltype(faulty), ReferenceBackend> run(faulty, backend, one);
        try {
          return run.run();
        } catch (Error const& error) {
          return error.what();
        }
      });
      for (std::string const& complaint : complaints) found += !complaint.empty();
    }
    INFO("fault " << static_cast<int>(fault) << ", " << ranks << " ranks");
    CHECK((found > 0) == (fault != RingFault::none));
  }
}
