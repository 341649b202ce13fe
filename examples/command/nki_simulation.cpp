#include <algorithm>
#include <annulus/comm/simulated_ring.hpp>
#include <annulus/nki/program/walk.hpp>
#include <annulus/nki/simulate/simulate.hpp>
#include <annulus/sharding/segment.hpp>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "nki_parts.hpp"

namespace annulus_command {

namespace {

using annulus::Index;

constexpr Index tile_rows = annulus::nki::tile_rows;

/// Calls function(element of the view, index in the kernel's operand). The view is [batch, sequence, heads, dim],
/// the operand [batch, heads, rows, dim] by token, else [batch, heads, dim, rows].
template <class View, class Function>
void for_each_operand_element(View const& view, bool by_token, Function&& function) {
  Index const rows = view.extent(1), heads = view.extent(2), dim = view.extent(3);
  for (Index b = 0; b < view.extent(0); ++b)
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < rows; ++i)
        for (Index e = 0; e < dim; ++e)
          function(view(b, i, h, e), (b * heads + h) * rows * dim + (by_token ? i * dim + e : e * rows + i));
}

/// The same for lse: row c * 128 + p is at (p, c) of [batch, heads, 128, columns].
template <class Lse, class Function>
void for_each_lse_element(Lse& lse, Function&& function) {
  Index const rows = lse.dimension(2), columns = annulus::detail::ceil_divide(rows, tile_rows);
  for (Index b = 0; b < lse.dimension(0); ++b)
    for (Index h = 0; h < lse.dimension(1); ++h)
      for (Index i = 0; i < rows; ++i)
        function(lse(b, h, i), ((b * lse.dimension(1) + h) * tile_rows + i % tile_rows) * columns + i / tile_rows);
}

std::vector<float> laid_out(Tensor<float, 4> const& tensor, annulus::AxisOrder axes, bool by_token) {
  std::vector<float> operand(static_cast<std::size_t>(tensor.size()));
  for_each_operand_element(annulus::view_of(with_axes(tensor, axes)), by_token,
                           [&](float element, Index place) { operand[static_cast<std::size_t>(place)] = element; });
  return operand;
}

std::vector<float> laid_out(Tensor<float, 3> const& lse) {
  Index const columns = annulus::detail::ceil_divide(Index{lse.dimension(2)}, tile_rows);
  std::vector<float> operand(static_cast<std::size_t>(lse.dimension(0) * lse.dimension(1) * tile_rows * columns), 0.0f);
  for_each_lse_element(lse, [&](float element, Index place) { operand[static_cast<std::size_t>(place)] = element; });
  return operand;
}

/// Calls function(element of a tensor [batch or 1, heads or 1, queries, keys] of the whole sequence, index in the
/// kernel's tensor [other ranks, batch * heads or 1, queries or 1, keys or 1]) for the pairs of a query and a key that
/// a rank has.
template <class Pairs, class Function>
void for_each_pair(NkiProblem const& problem, NkiKernel const& kernel, char const* name, int rank, Pairs& pairs,
                   Function&& function) {
  auto const& shape = kernel.program().buffer(kernel.program().find(name)).shape;
  bool const queries_rotate = problem.queries_rotate(kernel.pass);
  std::size_t place = 0;
  for (Index i = 0; i < shape[0]; ++i) {
    int const other = static_cast<int>(i) % problem.spec.ranks;
    auto const positions = [&](annulus::Side side, int owner) {
      return annulus::positions_of(Share(problem.call, owner, problem.spec.ranks).of(side));
    };
    auto const queries = positions(annulus::Side::query, queries_rotate ? other : rank),
               keys = positions(annulus::Side::key, queries_rotate ? rank : other);
    for (Index head = 0; head < shape[1]; ++head) {
      Index const heads = problem.spec.shape.query_heads, b = std::min(head / heads, Index{pairs.dimension(0)} - 1),
                  h = std::min(head % heads, Index{pairs.dimension(1)} - 1);
      for (Index query = 0; query < shape[2]; ++query)
        for (Index key = 0; key < shape[3]; ++key)
          function(pairs(b, h, queries[static_cast<std::size_t>(query)], keys[static_cast<std::size_t>(key)]), place++);
    }
  }
}

/// Operands of a kernel by name, in row-major order: what annulus::nki::simulate takes and returns.
using DeviceTensors = std::map<std::string, std::vector<float>, std::less<>>;

/// All inputs of the kernel on rank `rank`. own: its shard; bias: of all ranks; forward: output and lse of its rows,
/// read by the backward kernel.
DeviceTensors device_inputs(NkiProblem const& problem, NkiKernel const& kernel, int rank, Inputs<float> const& own,
                            std::optional<Tensor<float, 4>> const& bias, Results<float> const& forward) {
  annulus::AxisOrder const axes = problem.call.axes;
  annulus::nki::KernelSpec const spec = problem.spec_for(kernel.pass);
  DeviceTensors inputs;
  auto const give = [&](char const* name, auto&& make) {
    if (kernel.program().find(name) >= 0) inputs[name] = make();
  };
  give("q", [&] { return laid_out(own.q, axes, spec.queries_by_token); });
  give("k", [&] { return laid_out(own.k, axes, spec.keys_by_token); });
  give("v", [&] { return laid_out(own.v, axes, true); });
  if (own.sinks)
    give("sinks", [&] {
      std::vector<float> all;
      for (Index b = 0; b < problem.spec.shape.batch; ++b)
        all.insert(all.end(), own.sinks->data(), own.sinks->data() + own.sinks->size());
      return all;
    });
  if (bias)
    for_each_pair(problem, kernel, "bias", rank, *bias, [&](float element, std::size_t) {
      inputs["bias"].push_back(std::max(element, annulus::nki::hiding_bias));
    });
  if (kernel.pass == annulus::Pass::backward) {
    give("dout", [&] { return laid_out(*own.dout, axes, true); });
    give("output", [&] { return laid_out(forward.out, axes, true); });
    give("lse", [&] { return laid_out(forward.lse); });
  }
  if (std::string const mask = mask_input_of(kernel.program()); !mask.empty())
    inputs[mask] = mask_table(problem, kernel, rank);
  return inputs;
}

/// Copies the outputs of the kernel into the results of this rank.
void take_outputs(NkiProblem const& problem, DeviceTensors const& outputs, Results<float>& own) {
  auto const take = [&](char const* name, Tensor<float, 4>& tensor) {
    if (auto const found = outputs.find(name); found != outputs.end())
      for_each_operand_element(
          annulus::view_of(with_axes(tensor, problem.call.axes)), true,
          [&](float& element, Index place) { element = found->second[static_cast<std::size_t>(place)]; });
  };
  take("output", own.out);
  if (own.dq) take("dq", *own.dq);
  if (own.dk) take("dk", *own.dk);
  if (own.dv) take("dv", *own.dv);
  if (auto const found = outputs.find("lse"); found != outputs.end())
    for_each_lse_element(
        own.lse, [&](float& element, Index place) { element = found->second[static_cast<std::size_t>(place)]; });
}

/// Takes dbias of the pairs of a rank. Entries of the ranks of other rings must be 0: where one is not, the result is
/// NaN, which no error bound accepts. ring: of this rank, as its rank ids count.
void take_bias_gradient(NkiProblem const& problem, NkiKernel const& kernel, int rank, std::vector<float> const& found,
                        int ring, Tensor<float, 4>& dbias) {
  std::size_t const entries_of_ring = found.size() / static_cast<std::size_t>(problem.groups());
  for_each_pair(problem, kernel, "dbias", rank, dbias, [&](float& element, std::size_t place) {
    if (place / entries_of_ring == static_cast<std::size_t>(ring))
      element += found[place];
    else if (found[place] != 0)
      element = std::numeric_limits<float>::quiet_NaN();
  });
}

/// Results of one rank: its rows of output and lse for the backward pass, zeros elsewhere.
Results<float> own_results(NkiProblem const& problem, Share const& share, Results<float> const& results, bool forward) {
  Call const& call = problem.call;
  Results<float> own = make_results<float>(call, share.rows());
  own.dbias.reset();  // the pairs of a rank may be those of other ranks' queries
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
  arrangement.first_core = ring_order.front() % problem.spec.cores;  // so that shuffled rings try both
  if (problem.groups() > 1) {
    arrangement.ids = Arrangement::Ids::global;
    arrangement.group_begin = problem.world() - ranks;
  }
  std::atomic<Index> beyond_range = 0;
  auto const begin = std::chrono::steady_clock::now();
  annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    int const worker = arrangement.worker(ring.rank());
    Share const share(call, worker, ranks);
    bool const forward = kernel.pass == annulus::Pass::forward;
    Results<float> own = own_results(problem, share, results, forward);
    DeviceTensors const given = device_inputs(problem, kernel, worker, scatter(inputs, call, share), inputs.bias, own);
    DeviceTensors const outputs = annulus::nki::simulate(kernel.validated, given, ring, arrangement);
    if (auto const found = outputs.find("beyond_range"); found != outputs.end())
      beyond_range += std::ranges::count(found->second, 1.0f);
    take_outputs(problem, outputs, own);
    if (auto const found = outputs.find("dbias"); found != outputs.end())
      take_bias_gradient(problem, kernel, worker, found->second, arrangement.group_begin / ranks, *results.dbias);
    gather(own, call, share, false, results);
  });
  NkiRun run{.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
  run.instructions = ranks * annulus::nki::count(kernel.program()).instructions();
  run.beyond_range = beyond_range;
  return run;
}

}  // namespace annulus_command
