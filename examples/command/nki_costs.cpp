// Costs of kernels: table, useful part of the work, what bounds the time, and how it depends on constants of the model.

#include <algorithm>
#include <annulus/mask/mask.hpp>
#include <annulus/nki/cost/report.hpp>
#include <annulus/nki/cost/timeline.hpp>
#include <annulus/nki/kernels/forward_kernel.hpp>
#include <annulus/sharding/sharding.hpp>
#include <chrono>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <sys/resource.h>

#include "nki_parts.hpp"
#include "output_stream.hpp"

namespace annulus_command {

namespace {

namespace nki = annulus::nki;
using annulus::Index;

double peak_memory_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;  // Linux counts in KiB
}

/// Operations of the visible pairs of a query and a key, of all heads and ranks.
double useful_operations(NkiProblem const& problem, annulus::Pass pass) {
  auto const& shape = problem.spec.shape;
  Index pairs = 0;
  for (Index item = 0; item < problem.global_mask.batch(); ++item)
    for (std::size_t piece = 0; piece < problem.global_mask.pieces().size(); ++piece)
      for (Index query = 0; query < problem.call.shape.queries; ++query)
        pairs += problem.global_mask.seen(0, 0, item, piece, query).size();
  double const items = static_cast<double>(shape.batch) / static_cast<double>(problem.global_mask.batch());
  // Forward: q k^T, p v. Backward: q k^T, ds k, ds^T q; dout v^T, p^T dout.
  Index const widths =
      pass == annulus::Pass::forward ? shape.head_dim + shape.value_dim : 3 * shape.head_dim + 2 * shape.value_dim;
  return 2.0 * static_cast<double>(pairs) * items * static_cast<double>(shape.query_heads * widths);
}

/// Seconds of a program on hardware with other costs.
double seconds_with(nki::Program const& program, nki::Hardware const& hardware) {
  struct Latest {
    double seconds = 0;
    void section(int, nki::Section const&, Index) {}
    void executed(nki::Execution const& execution) { seconds = std::max(seconds, execution.end); }
  } latest;
  nki::Timeline(program, hardware).run(latest);
  return latest.seconds;
}

/// The program with the work of GpSimdE given to VectorE, where VectorE can do it.
nki::Program without_gpsimd(nki::Program program) {
  nki::for_each_node(program.body, [](nki::Node& node) {
    auto* const instruction = std::get_if<nki::Instruction>(&node.content);
    if (!instruction) return;
    std::visit(
        []<class I>(I& i) {
          if constexpr (std::is_same_v<I, nki::TensorTensor> || std::is_same_v<I, nki::TensorCopy> ||
                        std::is_same_v<I, nki::Memset>)
            if (i.engine == nki::Engine::gpsimd) i.engine = nki::Engine::vector;
        },
        *instruction);
  });
  return program;
}

void print_sensitivity(NkiProblem const& problem, NkiKernel const& kernel, nki::Hardware const& hardware,
                       double seconds) {
  nki::Program const& program = kernel.program();
  nki::KernelSpec spec = problem.spec;
  spec.keys_stationary = program.find("beyond_range") >= 0;
  constexpr double free = 1e9;  // a rate that makes transfers take no time
  auto const changed = [&](auto&& change) {
    nki::Hardware other = hardware;
    change(other.costs);
    return seconds_with(program, other);
  };
  std::vector<std::pair<char const*, double>> cases{
      {"DMA takes no time", changed([](nki::Costs& costs) {
         costs.dma_engine_rate *= free, costs.hbm_rate *= free;
         costs.dma_latency = costs.dma_issue = 0;
       })},
      {"DMA at half its rate", changed([](nki::Costs& costs) { costs.dma_engine_rate /= 2; })},
      {"DMA transposes at half their rate",
       changed([](nki::Costs& costs) { costs.dma_transpose_share /= 2, costs.dma_transpose_share_hbm /= 2; })},
      {"permutes at half their rate", changed([](nki::Costs& costs) { costs.permute_rate /= 2; })},
      {"work of GpSimdE on VectorE", seconds_with(without_gpsimd(program), hardware)}};
  if (kernel.pass == annulus::Pass::forward)
    cases.emplace_back("no DMA transposes, TensorE does all",
                       seconds_with(nki::ForwardKernel(spec, problem.mask, {.dma_transposed = 0}).ring(), hardware));
  print_formatted("  if                                           us   of time\n");
  for (auto const& [name, other] : cases)
    print_formatted("~ %-36s %10.2f  %7.1f %%\n", name, other * 1e6, 100 * other / seconds);
}

}  // namespace

void print_costs(NkiProblem const& problem, std::vector<NkiKernel> const& kernels, bool sensitivity) {
  auto const hardware = nki::hardware_of(problem.spec.target);
  for (NkiKernel const& kernel : kernels) {
    auto const begin = std::chrono::steady_clock::now();
    nki::CostReport const report = nki::cost_report(kernel.program(), hardware);
    double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    print_formatted("%s: built in %.2f s, validated in %.2f s, costed in %.2f s; memory so far %.0f MiB\n%s",
                    kernel.program().name.c_str(), kernel.build_seconds, kernel.validate_seconds, seconds,
                    peak_memory_mebibytes(), nki::table(report).c_str());
    if (sensitivity && report.seconds > 0) {
      auto const& engines = report.cores.front().engines;
      auto const busiest = std::ranges::max_element(engines, {}, &nki::EngineCost::busy);
      double const rank_peak = report.seconds * hardware.costs.tensor_peak * problem.spec.cores;
      print_formatted("\n~ useful utilisation %.1f %% of the tensor engines' peak: visible pairs only\n",
                      100 * useful_operations(problem, kernel.pass) / problem.spec.ranks / rank_peak);
      print_formatted("~ busiest engine of core 0: %s, %.1f %% of the time\n\n",
                      std::string(name_of(static_cast<nki::Engine>(busiest - engines.begin()))).c_str(),
                      100 * busiest->busy / report.seconds);
      print_sensitivity(problem, kernel, hardware, report.seconds);
    }
    print_formatted("\n");
  }
}

}  // namespace annulus_command
