#pragma once
// Runs a ring problem through the nkilib adapter: operands in its layouts, results back in the order of RingResult.

#include <annulus/interop/nkilib.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/ring_run.hpp"

namespace annulus_test {

/// Positions [begin, end) of a document in the sequence.
struct Document {
  Index begin, end;
};

/// Parameters that a test may vary. Documents require `striped`; positions in no document are padding.
struct NkilibCall {
  bool causal = false;
  bool striped = false;
  bool tp_q = false, tp_k = false;
  std::vector<Document> documents{};
};

struct NkilibExtents {
  std::int64_t batch = 1, query_heads = 2, kv_heads = 1, head_dim = 3, value_dim = 3;
  std::optional<double> softmax_scale{};
};

/// A problem of `ranks` * s positions, with the options of the call in its dense form.
inline RingProblem nkilib_problem(int ranks, Index s, NkilibCall const& call, NkilibExtents const& extents,
                                  std::uint64_t seed = 1) {
  RingProblem problem;
  problem.ranks = ranks;
  OracleProblem& d = problem.dense;
  d.batch = extents.batch;
  d.query_heads = extents.query_heads;
  d.kv_heads = extents.kv_heads;
  d.head_dim = extents.head_dim;
  d.value_dim = extents.value_dim;
  d.softmax_scale = extents.softmax_scale;
  d.query_length = d.key_length = ranks * s;
  d.causal = call.causal;
  if (call.striped) problem.options.sharding = annulus::Striped{};
  take_lengths_from_sharding(problem);
  std::mt19937_64 engine(seed);
  fill_operands(problem, engine);
  if (!call.documents.empty()) {
    std::vector<int> ids(static_cast<std::size_t>(d.batch * d.query_length), 0);
    for (std::int64_t b = 0; b < d.batch; ++b)
      for (std::size_t document = 0; document < call.documents.size(); ++document)
        for (Index i = call.documents[document].begin; i < call.documents[document].end; ++i)
          ids[static_cast<std::size_t>(b * d.query_length + i)] = static_cast<int>(document) + 1;
    d.query_documents = d.key_documents = ids;
  }
  take_options_from_dense(problem);
  problem.text = "nkilib: " + std::to_string(ranks) + " ranks, s " + std::to_string(s) +
                 (call.causal ? ", causal" : "") + (call.striped ? ", striped" : "") + (call.tp_q ? ", tp_q" : "") +
                 (call.tp_k ? ", tp_k" : "") + (call.documents.empty() ? "" : ", documents");
  return problem;
}

namespace nkilib_run_detail {

template <class T>
using RowMajor = Eigen::Tensor<T, 4, Eigen::RowMajor>;

/// A copy of a [batch, sequence, heads, dim] view, stored in axis order `order`.
template <class T>
RowMajor<T> stored(annulus::TensorView<T const, 4> view, annulus::AxisOrder order) {
  auto const extents = annulus::stored_extents(order, view.extents());
  RowMajor<T> tensor(extents[0], extents[1], extents[2], extents[3]);
  annulus::detail::copy_elements(view, annulus::view_of(annulus::with_axes(tensor, order)));
  return tensor;
}

/// Elements in the order of RingResult.
template <class T>
std::vector<double> unstored(annulus::TensorView<T const, 4> view, annulus::AxisOrder order) {
  return ring_run_detail::widened(view.permuted(annulus::places_of(order)));
}

}  // namespace nkilib_run_detail

/// bound_min and bound_max of every local row, equal on all ranks: documents begin and end at multiples of `ranks`.
struct LocalBounds {
  std::vector<float> min, max;

  LocalBounds(std::vector<Document> const& documents, int ranks, Index s)
      : min(static_cast<std::size_t>(s), 0.0f), max(static_cast<std::size_t>(s), 0.0f) {
    for (Document const& document : documents)
      for (Index row = document.begin / ranks; row < document.end / ranks; ++row) {
        min[static_cast<std::size_t>(row)] = static_cast<float>(document.begin / ranks);
        max[static_cast<std::size_t>(row)] = static_cast<float>(document.end / ranks);
      }
  }

  /// The bounds repeated for every row of `leading`.
  static Eigen::Tensor<float, 3, Eigen::RowMajor> forward(std::vector<float> const& bound, Index leading) {
    Eigen::Tensor<float, 3, Eigen::RowMajor> tensor(leading, static_cast<Index>(bound.size()), 1);
    for (Index i = 0; i < leading; ++i)
      for (std::size_t row = 0; row < bound.size(); ++row) tensor(i, static_cast<Index>(row), 0) = bound[row];
    return tensor;
  }
  static Eigen::Tensor<float, 2, Eigen::RowMajor> backward(std::vector<float> const& bound, Index leading) {
    Eigen::Tensor<float, 2, Eigen::RowMajor> tensor(leading, static_cast<Index>(bound.size()));
    for (Index i = 0; i < leading; ++i)
      for (std::size_t row = 0; row < bound.size(); ++row) tensor(i, static_cast<Index>(row)) = bound[row];
    return tensor;
  }
};

/// Runs one rank, forward and backward. lse of the result is that of the tiles, with 0 for masked rows.
template <class T, class Placement = HostPlacement, class Ring, class Backend>
RingResult run_nkilib_rank(RingProblem const& problem, Ring& ring, Backend& backend, NkilibCall const& call) {
  namespace ar = annulus;
  using namespace nkilib_run_detail;
  OracleProblem const& d = problem.dense;
  auto const rows = problem.segments(ar::Side::query, ring.rank());
  auto const shard = [&](std::vector<double> const& global, Index heads, Index dim, ar::AxisOrder order) {
    auto const local = ring_run_detail::shard_of<T, HostPlacement>(
        global, std::array<Index, 4>{d.batch, d.query_length, heads, dim}, 1, rows);
    auto const in_order = stored<T>(ar::view_of(local), order);
    return Placement::place(ar::view_of(in_order));
  };
  auto const query_order = call.tp_q ? ar::AxisOrder::bhsd : ar::AxisOrder::bhds;
  auto const key_order = call.tp_k ? ar::AxisOrder::bhsd : ar::AxisOrder::bhds;
  Index const s = ar::rows_of(rows);
  LocalBounds const bounds(call.documents, problem.ranks, s);
  auto const forward_min = LocalBounds::forward(bounds.min, d.batch * d.query_heads);
  auto const forward_max = LocalBounds::forward(bounds.max, d.batch * d.query_heads);
  auto const backward_min = LocalBounds::backward(bounds.min, d.batch);
  auto const backward_max = LocalBounds::backward(bounds.max, d.batch);

  ar::nkilib::ForwardParameters forward_parameters{.num_workers = problem.ranks,
                                                   .softmax_scale = d.softmax_scale,
                                                   .use_causal_mask = call.causal,
                                                   .striped_input = call.striped,
                                                   .training = true,
                                                   .tp_q = call.tp_q,
                                                   .tp_k = call.tp_k};
  ar::nkilib::BackwardParameters backward_parameters{.use_causal_mask = call.causal,
                                                     .softmax_scale = d.softmax_scale,
                                                     .num_workers = problem.ranks,
                                                     .striped_attention = call.striped};
  if (!call.documents.empty()) {
    forward_parameters.bound_min = forward_min;
    forward_parameters.bound_max = forward_max;
    backward_parameters.bound_min = backward_min;
    backward_parameters.bound_max = backward_max;
  }

  auto const forward = ar::nkilib::ring_attention_spmd_fwd(
      ring, backend, shard(d.q, d.query_heads, d.head_dim, query_order), shard(d.k, d.kv_heads, d.head_dim, key_order),
      shard(d.v, d.kv_heads, d.value_dim, ar::AxisOrder::bhsd), forward_parameters);
  auto const gradients = ar::nkilib::ring_attention_spmd_bwd(
      ring, backend, shard(d.q, d.query_heads, d.head_dim, ar::AxisOrder::bhds),
      shard(d.k, d.kv_heads, d.head_dim, ar::AxisOrder::bhds), shard(d.v, d.kv_heads, d.value_dim, ar::AxisOrder::bhds),
      ar::view_of(forward.o).permuted({0, 1, 3, 2}),
      shard(problem.dout, d.query_heads, d.value_dim, ar::AxisOrder::bhds), *forward.lse, backward_parameters);

  RingResult result;
  auto const host = [](auto const& tensor) { return Placement::host(ar::view_of(tensor)); };
  auto const tiles = host(*forward.lse);
  result.output = unstored(host(forward.o), ar::AxisOrder::bhsd);
  for (Index b = 0; b < d.batch; ++b)
    for (Index h = 0; h < d.query_heads; ++h)
      for (Index row = 0; row < s; ++row) result.lse.push_back(static_cast<double>(tiles(b, h, row % 128, row / 128)));
  result.dq = unstored(host(gradients.dq), ar::AxisOrder::bhds);
  result.dk = unstored(host(gradients.dk), ar::AxisOrder::bhds);
  result.dv = unstored(host(gradients.dv), ar::AxisOrder::bhds);
  return result;
}

/// Results of all ranks, in which the rows that are masked in the oracle must have lse 0, which is replaced by -inf.
inline RingResult with_masked_rows(RingProblem const& problem, RingResult all) {
  OracleForward const exact = oracle_forward(problem.dense);
  double const empty = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < exact.lse.size(); ++i)
    if (exact.lse[i] == empty) all.lse[i] = all.lse[i] == 0 ? empty : std::numeric_limits<double>::quiet_NaN();
  return all;
}

/// Runs all ranks; results in global order, with_masked_rows.
template <class T>
RingResult run_nkilib(RingProblem const& problem, NkilibCall const& call) {
  return with_masked_rows(problem,
                          assemble(problem, annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
                                     annulus::ReferenceBackend backend;
                                     return run_nkilib_rank<T>(problem, ring, backend, call);
                                   })));
}

}  // namespace annulus_test
