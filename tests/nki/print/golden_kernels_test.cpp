// Golden files of small attention kernels, which show changes of the lowering or of the printer.

#include <algorithm>
#include <cmath>
#include <string>

#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/print/to_python.hpp"
#include "annulus/nki/validate/validate.hpp"
#include "nki/print/golden_text.hpp"

namespace annulus::nki {
namespace {

/// Two cores for each rank; `rows` queries and keys on each.
KernelSpec spec_of(int ranks, Index heads, Index dim, Index rows) {
  KernelSpec spec;
  spec.cores = 2;
  spec.ranks = ranks;
  spec.shape = {.batch = 1, .query_heads = heads, .kv_heads = heads, .head_dim = dim, .value_dim = dim};
  spec.local_queries = spec.local_keys = rows;
  spec.softmax_scale = 1 / std::sqrt(static_cast<double>(dim));
  return spec;
}

/// Lines of the text.
std::ptrdiff_t printed_lines_of(Program const& kernel) { return std::ranges::count(to_python(kernel), '\n'); }

}  // namespace

TEST_CASE("printed ring kernels equal the files in golden/") {
  // One head with two query tiles: the cores of a rank share it.
  constexpr Index rows = 256;
  KernelSpec const spec = spec_of(2, 1, 16, rows);
  RingMask const mask = sharded_mask(causal(), Striped{}, spec.ranks, rows, rows);
  for (Program const& kernel : {ForwardKernel(spec, mask).ring(), BackwardKernel(spec, mask).ring()}) {
    CHECK(findings(kernel, hardware_of(kernel.target)).empty());
    golden::check_as_kept(kernel.name + ".py", to_python(kernel));
  }
}

TEST_CASE("a printed kernel of the vendor's size can be read") {
  constexpr Index rows = 4096;
  KernelSpec const spec = spec_of(4, 2, 128, rows);
  RingMask const striped = sharded_mask(causal(), Striped{}, spec.ranks, rows, rows);
  RingMask const visible = sharded_mask(full(), Contiguous{}, spec.ranks, rows, rows);
  CHECK(printed_lines_of(ForwardKernel(spec, visible).ring()) <= 1500);
  CHECK(printed_lines_of(ForwardKernel(spec, striped).ring()) <= 1850);
  CHECK(printed_lines_of(BackwardKernel(spec, striped).ring()) <= 3100);
}

}  // namespace annulus::nki
