// Notes of printed kernels on the work of each tile.

#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/print/to_python.hpp"
#include "support/catch.hpp"

namespace {

using namespace annulus::nki;
using annulus::causal;

KernelSpec spec(int ranks, annulus::Index rows) {
  return {.cores = 1,
          .ranks = ranks,
          .shape = {.batch = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 16, .value_dim = 16},
          .local_queries = rows,
          .local_keys = rows};
}

}  // namespace

TEST_CASE("a printed kernel says which rows and keys each tile is computed from") {
  RingMask const mask = sharded_mask(causal(), annulus::Striped{}, 5, 4096, 4096);
  Program const program = ForwardKernel(spec(5, 4096), mask).ring();
  CHECK(program.notes[2] ==
        "  step 1: [44] head 0, rows 0-767, keys 0-767; [45] head 0, rows 768-1151, keys 0-1151; "
        "[46 to 48] head 0, rows 1152-1407 to 1664-1919, keys 0-1407 to 0-1919; "
        "[49 to 65] head 0, rows 1920-2047 to 3968-4095, keys 0-2047 to 0-4095; "
        "[66] head 1, rows 0-767, keys 0-767; [67] head 1, rows 768-1151, keys 0-1151; "
        "[68 to 70] head 1, rows 1152-1407 to 1664-1919, keys 0-1407 to 0-1919; "
        "[71 to 87] head 1, rows 1920-2047 to 3968-4095, keys 0-2047 to 0-4095");
  CHECK(program.notes.back() == "  step 3 and later, from [132] on: as steps 1 and 2 by turns; tiles of each: 44");
  CHECK_THAT(to_python(program), Catch::Matchers::ContainsSubstring("#   step 1: [44] head 0"));
}

TEST_CASE("a printed kernel marks the work of halves that are chosen at run time") {
  RingMask const mask = sharded_mask(causal(), annulus::Zigzag{}, 2, 1024, 1024);
  Program const program = BackwardKernel(spec(2, 1024), mask).ring();
  CHECK(program.notes[1] == "  *: late rows with late keys, or those in their place in the early halves.");
  CHECK_THAT(program.notes.back(), Catch::Matchers::ContainsSubstring("  step 1: [") &&
                                       Catch::Matchers::ContainsSubstring("rows 512-639 to 896-1023, keys 512-") &&
                                       Catch::Matchers::ContainsSubstring(" *"));
}
