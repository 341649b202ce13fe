// Failing allocations in scatter, gather and all_reduce: the peers learn of them at once.

#include <algorithm>
#include <annulus/attention/collectives.hpp>
#include <annulus/comm/simulated_ring.hpp>
#include <chrono>
#include <vector>

#include "faults/watched_ring.hpp"
#include "support/allocation_counts.hpp"
#include "support/catch.hpp"

using namespace annulus_test;

namespace {

using Rows = Eigen::Tensor<float, 4, Eigen::RowMajor>;

void operate(annulus::SimulatedRing& ring, Rows& x, int operation) {
  if (operation == 0) static_cast<void>(annulus::scatter(ring, x, annulus::Striped{}));
  if (operation == 1) static_cast<void>(annulus::gather(ring, x, annulus::Striped{}));
  if (operation == 2) annulus::all_reduce(ring, x);
}

}  // namespace

TEST_CASE("a rank that runs out of memory in a collective operation ends it on all ranks", "[faults][collectives]") {
  constexpr auto timeout = std::chrono::seconds(20);
  for (int operation : {0, 1, 2}) {
    bool reached = true;
    for (long allocation = 0; reached && allocation < 300; ++allocation) {
      CAPTURE(operation, allocation);
      auto const begin = std::chrono::steady_clock::now();
      auto const ended = annulus::run_ring(3,
                                           [&](annulus::SimulatedRing& ring) {
                                             Rows x(1, 4, 2, 4);
                                             x.setConstant(1);
                                             bool failed = false;
                                             try {
                                               if (ring.rank() == 1) allocations_until_failure = allocation;
                                               operate(ring, x, operation);
                                             } catch (std::exception const&) {
                                               failed = true;
                                             }
                                             allocations_until_failure = -1;
                                             // The rank goes on: if the others did not know, they and it would now wait
                                             // for each other.
                                             try {
                                               operate(ring, x, operation);
                                             } catch (annulus::Error const&) {
                                             }
                                             return failed;
                                           },
                                           {.timeout = timeout});
      reached = ended[1];
      CHECK(ended[0] == ended[2]);
      CHECK(std::chrono::steady_clock::now() - begin < timeout / 2);
    }
    CHECK(!reached);
  }
}
