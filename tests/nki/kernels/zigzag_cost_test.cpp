// Modelled times of causal kernels on zigzag shards, whose halves are chosen at run time, relative to striped ones.

#include <cmath>

#include "annulus/nki/cost/report.hpp"
#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "support/catch.hpp"

namespace {

using namespace annulus;

enum class Kernel { stationary, online, backward };

double seconds(Kernel kernel, Sharding const& sharding, int ranks, Index rows) {
  nki::KernelSpec const spec{.ranks = ranks,
                             .shape = {.batch = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 128, .value_dim = 128},
                             .local_queries = rows,
                             .local_keys = rows,
                             .softmax_scale = 1 / std::sqrt(128.0),
                             .keys_stationary = kernel == Kernel::stationary};
  nki::RingMask const mask = nki::sharded_mask(causal(), sharding, ranks, rows, rows);
  nki::Program const program =
      kernel == Kernel::backward ? nki::BackwardKernel(spec, mask).ring() : nki::ForwardKernel(spec, mask).ring();
  return nki::cost_report(program, nki::hardware_of(spec.target)).seconds;
}

}  // namespace

TEST_CASE("Zigzag shards take at most 5 % longer than striped ones, by the cost model", "[nki][cost]") {
  struct Case {
    int ranks;
    Index rows;
    bool backward_only = false;
  };
  for (Case const& at : {Case{2, 1024}, Case{4, 1024}, Case{8, 1024}, Case{2, 1280}, Case{4, 1280},      Case{8, 1280},
                         Case{2, 1536}, Case{4, 1536}, Case{8, 1536}, Case{4, 1792}, Case{2, 2048},      Case{4, 2048},
                         Case{8, 2048}, Case{4, 2304}, Case{2, 2560}, Case{2, 4096}, Case{4, 4096},      Case{8, 4096},
                         Case{4, 4608}, Case{4, 5000}, Case{4, 5632}, Case{2, 8192}, Case{4, 2432, true}})
    for (Kernel kernel : {Kernel::stationary, Kernel::online, Kernel::backward}) {
      if (at.backward_only && kernel != Kernel::backward) continue;
      CAPTURE(at.ranks, at.rows, static_cast<int>(kernel));
      CHECK(seconds(kernel, Zigzag{}, at.ranks, at.rows) <= 1.05 * seconds(kernel, Striped{}, at.ranks, at.rows));
    }
}
