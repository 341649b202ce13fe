// Failing allocations in scatter, gather, all_reduce and the constructor of a cache: the peers learn of them at once.

#include <algorithm>
#include <annulus/attention/cache/kv_cache.hpp>
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

constexpr auto timeout = std::chrono::seconds(20);

void operate(annulus::SimulatedRing& ring, Rows& x, int operation) {
  if (operation == 0) static_cast<void>(annulus::scatter(ring, x, annulus::Striped{}));
  if (operation == 1) static_cast<void>(annulus::gather(ring, x, annulus::Striped{}));
  if (operation == 2) annulus::all_reduce(ring, x);
  if (operation == 3) {
    annulus::CpuBackend backend{.threads = 1};
    annulus::KvCache<float> const cache(ring, backend, {.pages = 2, .page_rows = 4, .document_ids = true});
  }
}

/// Which of three ranks failed in an operation of which one allocation of rank 1 fails. Rank 1 goes on: if the others
/// did not know, they and it would then wait for each other, or take its next call for the one that failed.
std::vector<bool> failed_ranks(int operation, long allocation) {
  auto const attempt = [operation](annulus::SimulatedRing& ring, Rows& x) {
    try {
      operate(ring, x, operation);
      return false;
    } catch (std::exception const&) {
      return true;
    }
  };
  auto const run = [&](annulus::SimulatedRing& ring) {
    Rows x(1, 4, 2, 4);
    x.setConstant(1);
    if (ring.rank() == 1) allocations_until_failure = allocation;
    bool const failed = attempt(ring, x);
    allocations_until_failure = -1;
    static_cast<void>(attempt(ring, x));
    return failed;
  };
  auto const begin = std::chrono::steady_clock::now();
  std::vector<bool> const failed = annulus::run_ring(3, run, {.timeout = timeout});
  CHECK(std::chrono::steady_clock::now() - begin < timeout / 2);
  return failed;
}

}  // namespace

TEST_CASE("a rank that runs out of memory in a collective operation ends it on all ranks", "[faults][collectives]") {
  for (int operation : {0, 1, 2, 3}) {
    bool reached = true;
    for (long allocation = 0; reached && allocation < 300; ++allocation) {
      CAPTURE(operation, allocation);
      std::vector<bool> const failed = failed_ranks(operation, allocation);
      reached = failed[1];
      CHECK(failed[0] == failed[2]);
      if (operation == 3) CHECK(failed[0] == failed[1]);  // nothing is exchanged after its last allocation
    }
    CHECK(!reached);
  }
}
