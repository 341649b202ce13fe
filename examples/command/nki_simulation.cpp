#include "nki_simulation.hpp"

#include <annulus/nki/simulate/simulate.hpp>
#include <annulus/comm/simulated_ring.hpp>
#include <chrono>
#include <numeric>
#include <random>
#include <utility>

#include "nki_operands.hpp"

namespace annulus_command {

namespace {

/// Results of one rank: its rows of output and lse for the backward pass, zeros elsewhere.
Results<float> own_results(NkiProblem const& problem, Share const& share, Results<float> const& results, bool forward) {
  Call const& call = problem.call;
  Results<float> own = make_results<float>(call, share.rows());
  for_each_tensor<float>(own, [](auto& tensor) { tensor.setZero(); });
  if (forward) return own;
  auto const scatter = [&](auto const& from, auto& to, std::size_t axis) {
    annulus::scatter_into(annulus::view_of(from), share.of(annulus::Side::query), annulus::view_of(to), axis);
  };
  scatter(results.out, own.out, annulus::places_of(call.axes)[annulus::axis::sequence]);
  scatter(results.lse, own.lse, 2);
  return own;
}

}  // namespace

std::vector<int> nki_ring_order(NkiOptions const& options) {
  std::vector<int> order(static_cast<std::size_t>(options.ranks()));
  std::iota(order.begin(), order.end(), 0);
  if (!options.ring_order) return order;
  // std::shuffle gives different results in different standard libraries.
  std::mt19937_64 generator(*options.ring_order);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[generator() % i]);
  return order;
}

NkiRun run_nki(NkiProblem const& problem, NkiKernel const& kernel, std::vector<int> const& ring_order,
               Inputs<float> const& inputs, Results<float>& results) {
  using annulus::nki::Arrangement;
  Call const& call = problem.call;
  int const ranks = problem.spec.ranks;
  Arrangement arrangement{.ring = ring_order};
  if (problem.groups() > 1) {
    arrangement.ids = Arrangement::Ids::global;
    arrangement.group_begin = problem.world() - ranks;
  }
  std::vector<annulus::nki::Statistics> statistics(static_cast<std::size_t>(ranks));
  auto const begin = std::chrono::steady_clock::now();
  annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    int const worker = arrangement.worker(ring.rank());
    Share const share(call, worker, ranks);
    bool const forward = kernel.pass == annulus::Pass::forward;
    Results<float> own = own_results(problem, share, results, forward);
    DeviceTensors const given = device_inputs(problem, kernel, worker, scatter(inputs, call, share), own);
    auto const hardware = annulus::nki::hardware_of(problem.spec.target);
    take_outputs(problem,
                 annulus::nki::simulate(kernel.program, hardware, given, ring, arrangement,
                                        &statistics[static_cast<std::size_t>(ring.rank())]),
                 own);
    gather(own, call, share, false, results);
  });
  NkiRun run;
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (auto const& rank : statistics) run.instructions += rank.total();
  return run;
}

}  // namespace annulus_command
