// Kernels with a bias: the bytes that the cost model counts for it, and specs that are refused.

#include "annulus/nki/cost/report.hpp"
#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/validate/validate.hpp"
#include "support/catch.hpp"

namespace nki = annulus::nki;
using annulus::Index;

namespace {

constexpr Index rows = 256, heads = 2, ranks = 2;

nki::KernelSpec spec_with(nki::BiasSpec const& bias) {
  return {.cores = 1,
          .ranks = ranks,
          .shape = {1, heads, 1, 32, 32},
          .local_queries = rows,
          .local_keys = rows,
          .bias = bias};
}

/// Bytes that all cores of a rank read from and write to HBM by DMA.
struct Traffic {
  Index read, written;
};
Traffic traffic(bool backward, nki::RingMask const& mask, nki::BiasSpec const& bias) {
  nki::KernelSpec const spec = spec_with(bias);
  nki::Program program = backward ? nki::BackwardKernel(spec, mask).ring() : nki::ForwardKernel(spec, mask).ring();
  nki::Hardware const hardware = nki::hardware_of(spec.target);
  nki::validate(program, hardware);
  nki::CostReport const report = nki::cost_report(program, hardware);
  return {report.counts.hbm_read, report.counts.hbm_written};
}

}  // namespace

TEST_CASE("kernels load a bias once, tile by tile, and store its gradient", "[nki]") {
  nki::RingMask const mask = nki::sharded_mask(annulus::full(), annulus::Contiguous{}, ranks, rows, rows);
  Index const pairs = heads * rows * rows * ranks;
  for (bool const backward : {false, true}) {
    Traffic const plain = traffic(backward, mask, {});
    auto const added = [&](nki::BiasSpec const& bias) {
      Traffic const more = traffic(backward, mask, bias);
      return std::pair{more.read - plain.read, more.written - plain.written};
    };
    CHECK(added({.given = true}) == std::pair{4 * pairs, Index{0}});
    CHECK(added({.given = true, .type = nki::ElementType::bfloat16}) == std::pair{2 * pairs, Index{0}});
    CHECK(added({.given = true, .by_head = false, .by_query = false}) == std::pair{4 * pairs, Index{0}});
    // A bias of each query is one column for each unit of 128 rows and all keys, or a few hundred keys.
    CHECK(added({.given = true, .by_key = false}).first < 4 * pairs / 100);
    // In a ring the gradient is zeroed first.
    CHECK(added({.given = true, .gradient = true}) == std::pair{4 * pairs, backward ? 2 * 4 * pairs : 0});
  }
}

TEST_CASE("a bias of a type that cannot hide pairs, and pairs with stationary keys, are refused", "[nki]") {
  nki::RingMask const mask = nki::sharded_mask(annulus::full(), annulus::Contiguous{}, ranks, rows, rows);
  CHECK_THROWS_WITH(nki::ForwardKernel(spec_with({.given = true, .type = nki::ElementType::float16}), mask),
                    Catch::Matchers::ContainsSubstring("a bias of float16"));
  nki::KernelSpec stationary = spec_with({.given = true});
  stationary.keys_stationary = true;
  CHECK_THROWS_WITH(nki::ForwardKernel(stationary, mask), Catch::Matchers::ContainsSubstring("no bias"));
  stationary.bias.given = false;
  stationary.type = nki::ElementType::bfloat16;
  stationary.keep_scale = 2;
  CHECK_THROWS_WITH(nki::ForwardKernel(stationary, mask), Catch::Matchers::ContainsSubstring("with dropout"));
  stationary.keep_scale = 0.5;
  CHECK_THROWS_WITH(nki::BackwardKernel(stationary, mask), Catch::Matchers::ContainsSubstring("keep_scale is 0.5"));
}
