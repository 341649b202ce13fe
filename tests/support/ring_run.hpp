#pragma once
// Runs of a ring problem by the library, with results in global, natural order.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/reference/reference.hpp>
#include <annulus/comm/simulated_ring.hpp>
#include <annulus/sharding/scatter_gather.hpp>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "support/asked_schedule.hpp"
#include "support/ring_problem.hpp"

namespace annulus_test {

using annulus::Index;

/// Placement of shards in row-major Eigen tensors in host memory.
struct HostPlacement {
  template <class T, std::size_t N>
  static Eigen::Tensor<T, static_cast<int>(N), Eigen::RowMajor> place(annulus::TensorView<T const, N> shard) {
    auto tensor = annulus::make_like<T, N>(shard, shard.extents());
    annulus::detail::copy_elements(shard, annulus::view_of(tensor));
    return tensor;
  }
  template <class T, std::size_t N>
  static annulus::TensorView<T const, N> host(annulus::TensorView<T const, N> view) {
    return view;
  }
};

/// Placement of shards in column-major tensors with axes [batch, heads, dim, sequence].
struct TransposedPlacement {
  template <class T, std::size_t N>
  static auto place(annulus::TensorView<T const, N> shard) {
    if constexpr (N == 4) {
      using Tensor = Eigen::Tensor<T, 4>;
      auto const stored = annulus::stored_extents(annulus::AxisOrder::bhds, shard.extents());
      auto wrapped = annulus::bhds(Tensor(stored[0], stored[1], stored[2], stored[3]));
      annulus::detail::copy_elements(shard, annulus::view_of(annulus::bhds(wrapped.tensor)));
      return wrapped;
    } else {
      return HostPlacement::place(shard);
    }
  }
  template <class T, std::size_t N>
  static annulus::TensorView<T const, N> host(annulus::TensorView<T const, N> view) {
    return view;
  }
};

/// Results of one rank, or of the whole problem, widened to double: output and dq [batch, queries, query_heads, .],
/// lse [batch, query_heads, queries], dk and dv [batch, keys, kv_heads, .], dbias [b|1, h|1, queries, keys], dsinks.
struct RingResult {
  std::vector<double> output, lse, dq, dk, dv, dbias, dsinks, d_joint_keys, d_joint_values;
  Index forward_buffers = 0, backward_buffers = 0;  ///< of one rank

  bool operator==(RingResult const&) const = default;
};

/// Names of the results whose bits differ, including the signs of zeros.
inline std::string different_results(RingResult const& a, RingResult const& b) {
  std::string names;
  auto const compare = [&](char const* name, std::vector<double> RingResult::*values) {
    std::vector<double> const &x = a.*values, &y = b.*values;
    bool const same =
        x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0);
    if (!same) names += std::string(names.empty() ? "" : ", ") + name;
  };
  compare("output", &RingResult::output);
  compare("lse", &RingResult::lse);
  compare("dq", &RingResult::dq);
  compare("dk", &RingResult::dk);
  compare("dv", &RingResult::dv);
  compare("dbias", &RingResult::dbias);
  compare("dsinks", &RingResult::dsinks);
  compare("d_joint_keys", &RingResult::d_joint_keys);
  compare("d_joint_values", &RingResult::d_joint_values);
  return names;
}

inline bool same_bits(RingResult const& a, RingResult const& b) { return different_results(a, b).empty(); }

namespace ring_run_detail {

/// The rows of a global array that a rank owns, as T, placed in its memory.
template <class T, class Placement, std::size_t N, class U>
auto shard_of(std::vector<U> const& global, std::array<Index, N> const& extents, std::size_t sequence,
              std::vector<annulus::Segment> const& segments) {
  auto local_extents = extents;
  local_extents[sequence] = annulus::rows_of(segments);
  annulus::TensorView<U const, N> const source(global.data(), extents);
  auto shard = annulus::make_like<T, N>(source, local_extents);
  annulus::scatter_into(source, std::span<annulus::Segment const>(segments), annulus::view_of(shard), sequence);
  return Placement::template place<T, N>(annulus::TensorView<T const, N>(annulus::view_of(shard)));
}

template <std::size_t N, class T>
std::vector<double> widened(annulus::TensorView<T const, N> view) {
  std::vector<double> values(static_cast<std::size_t>(view.size()));
  annulus::detail::copy_elements(view, annulus::TensorView<double, N>(values.data(), view.extents()));
  return values;
}

}  // namespace ring_run_detail

/// Runs one rank: scatters, runs forward and backward (twice with `repeat`), returns this rank's results.
template <class T, class Placement = HostPlacement, class Ring, class Backend, class Predicate = annulus::EveryPair>
RingResult run_rank(RingProblem const& problem, Ring& ring, Backend& backend, Predicate predicate = {}, int calls = 1) {
  namespace ar = annulus;
  using ring_run_detail::shard_of;
  OracleProblem const& d = problem.dense;
  auto const query_rows = problem.segments(ar::Side::query, ring.rank());
  auto const key_rows = problem.segments(ar::Side::key, ring.rank());
  std::array<Index, 4> const q_extents{d.batch, d.query_length, d.query_heads, d.head_dim};
  std::array<Index, 4> const k_extents{d.batch, d.key_length, d.kv_heads, d.head_dim};
  std::array<Index, 4> const v_extents{d.batch, d.key_length, d.kv_heads, d.value_dim};
  std::array<Index, 4> const output_extents{d.batch, d.query_length, d.query_heads, d.value_dim};
  auto const q = shard_of<T, Placement>(d.q, q_extents, 1, query_rows);
  auto const k = shard_of<T, Placement>(d.k, k_extents, 1, key_rows);
  auto const v = shard_of<T, Placement>(d.v, v_extents, 1, key_rows);
  auto const dout = shard_of<T, Placement>(problem.dout, output_extents, 1, query_rows);

  // Optional operands keep plain views: their own axis order is fixed.
  using Space = typename Backend::memory_space;
  ar::Operands<T, Space> operands;
  auto const pair_extents = [&](auto const& pairs) {
    return std::array<Index, 4>{pairs.batch, pairs.heads, d.query_length, d.key_length};
  };
  using Flat = std::conditional_t<std::is_same_v<Space, ar::HostMemory>, HostPlacement, Placement>;
  using Ids = decltype(shard_of<std::int32_t, Flat>(std::vector<int>{}, std::array<Index, 2>{}, 1, query_rows));
  std::optional<decltype(shard_of<T, Flat>(d.q, q_extents, 2, query_rows))> bias;
  std::optional<decltype(shard_of<bool, Flat>(std::vector<char>{}, q_extents, 2, query_rows))> mask;
  std::optional<Ids> query_ids, key_ids;
  if (d.bias) {
    bias.emplace(shard_of<T, Flat>(d.bias->values, pair_extents(*d.bias), 2, query_rows));
    operands.bias = *bias;
    operands.bias_gradient = true;
  }
  if (d.mask) {
    mask.emplace(shard_of<bool, Flat>(d.mask->values, pair_extents(*d.mask), 2, query_rows));
    operands.mask = *mask;
  }
  if (d.query_documents) {
    query_ids.emplace(
        shard_of<std::int32_t, Flat>(*d.query_documents, std::array<Index, 2>{d.batch, d.query_length}, 1, query_rows));
    key_ids.emplace(
        shard_of<std::int32_t, Flat>(*d.key_documents, std::array<Index, 2>{d.batch, d.key_length}, 1, key_rows));
    operands.query_documents = *query_ids;
    operands.key_documents = *key_ids;
  }
  using L = ar::Accumulator<T>;
  std::vector<ar::Segment> const every_head{{0, d.query_heads, 0, 1}};
  std::array<Index, 2> const sink_extents{d.query_heads, d.sinks ? d.sinks->count : 1};
  auto const sinks =
      shard_of<L, Flat>(d.sinks ? d.sinks->values : std::vector<double>(static_cast<std::size_t>(d.query_heads)),
                        sink_extents, 0, every_head);
  if (d.sinks) operands.sinks = sinks;
  std::vector<ar::Segment> const every_joint_key{{0, problem.joint_length, 0, 1}};
  auto const joint_of = [&](std::vector<double> const& values, std::int64_t dim) {
    std::array<Index, 4> const extents{d.batch, problem.joint_length, d.kv_heads, dim};
    return shard_of<T, Flat>(values, extents, 1, every_joint_key);
  };
  auto const joint_keys = joint_of(problem.joint_keys, d.head_dim),
             joint_values = joint_of(problem.joint_values, d.value_dim);
  if (problem.joint_length > 0) operands.joint_keys = joint_keys, operands.joint_values = joint_values;

  ar::RingAttention attention(ring, backend, asked_options(problem), predicate);
  RingResult result;
  auto const widen = [](auto const& tensor) {
    auto const view = ar::view_of(tensor);
    using View = decltype(view);
    using E = typename std::remove_cvref_t<View>::scalar;
    constexpr std::size_t rank = std::remove_cvref_t<View>::rank;
    return ring_run_detail::widened<rank>(
        Placement::host(ar::TensorView<E const, rank, typename std::remove_cvref_t<View>::memory_space>(view)));
  };
  for (int call = 0; call < calls; ++call) {
    auto forward = attention.forward(q, k, v, operands);
    result = RingResult{};
    // Read before the next pass, which could otherwise complete a pass that returned too early.
    result.output = widen(ar::with_axes(forward.output, forward.axes));
    result.lse = widen(forward.lse);
    auto gradients = attention.backward(dout, forward, q, k, v, operands);
    result.dq = widen(ar::with_axes(gradients.dq, ar::axis_order_of(q)));
    result.dk = widen(ar::with_axes(gradients.dk, ar::axis_order_of(k)));
    result.dv = widen(ar::with_axes(gradients.dv, ar::axis_order_of(v)));
    if (gradients.dbias) result.dbias = widen(*gradients.dbias);
    if (gradients.dsinks) result.dsinks = widen(*gradients.dsinks);
    if (gradients.d_joint_keys) result.d_joint_keys = widen(*gradients.d_joint_keys);
    if (gradients.d_joint_values) result.d_joint_values = widen(*gradients.d_joint_values);
  }
  result.forward_buffers = attention.buffer_bytes(ar::Pass::forward);
  result.backward_buffers = attention.buffer_bytes(ar::Pass::backward);
  return result;
}

/// Assembles the results of all ranks in global order.
inline RingResult assemble(RingProblem const& problem, std::vector<RingResult> const& ranks) {
  namespace ar = annulus;
  OracleProblem const& d = problem.dense;
  RingResult all;
  auto const gather = [&](auto member, std::array<Index, 4> extents, std::size_t sequence, ar::Side side) {
    Index count = 1;
    for (Index extent : extents) count *= extent;
    std::vector<double>& global = all.*member;
    global.assign(static_cast<std::size_t>(count), std::numeric_limits<double>::quiet_NaN());
    for (int rank = 0; rank < problem.ranks; ++rank) {
      auto const segments = problem.segments(side, rank);
      auto local_extents = extents;
      local_extents[sequence] = ar::rows_of(segments);
      ar::gather_into(
          ar::TensorView<double const, 4>((ranks[static_cast<std::size_t>(rank)].*member).data(), local_extents),
          std::span<ar::Segment const>(segments), ar::TensorView<double, 4>(global.data(), extents), sequence);
    }
  };
  gather(&RingResult::output, {d.batch, d.query_length, d.query_heads, d.value_dim}, 1, ar::Side::query);
  gather(&RingResult::lse, {d.batch, d.query_heads, d.query_length, 1}, 2, ar::Side::query);
  gather(&RingResult::dq, {d.batch, d.query_length, d.query_heads, d.head_dim}, 1, ar::Side::query);
  gather(&RingResult::dk, {d.batch, d.key_length, d.kv_heads, d.head_dim}, 1, ar::Side::key);
  gather(&RingResult::dv, {d.batch, d.key_length, d.kv_heads, d.value_dim}, 1, ar::Side::key);
  if (d.bias)
    gather(&RingResult::dbias, {d.bias->batch, d.bias->heads, d.query_length, d.key_length}, 2, ar::Side::query);
  // Equal on all ranks, to the bit.
  for (auto member : {&RingResult::dsinks, &RingResult::d_joint_keys, &RingResult::d_joint_values}) {
    all.*member = ranks.front().*member;
    for (RingResult const& rank : ranks)
      if (rank.*member != all.*member)
        (all.*member).assign((all.*member).size(), std::numeric_limits<double>::quiet_NaN());
  }
  return all;
}

/// Results of the ranks of a simulated ring, each of which has a copy of `backend`.
template <class T, class Placement = HostPlacement, class Backend = annulus::ReferenceBackend,
          class Predicate = annulus::EveryPair>
std::vector<RingResult> results_of_ranks(RingProblem const& problem, Backend const& backend = {},
                                         annulus::SimulatedRingOptions const& options = {}, Predicate predicate = {}) {
  auto const run = [&](annulus::SimulatedRing& ring) {
    Backend own = backend;
    return run_rank<T, Placement>(problem, ring, own, predicate);
  };
  return annulus::run_ring(problem.ranks, run, options);
}

/// The same, assembled.
template <class T, class Placement = HostPlacement, class Backend = annulus::ReferenceBackend,
          class Predicate = annulus::EveryPair>
RingResult whole_result(RingProblem const& problem, Backend const& backend = {},
                        annulus::SimulatedRingOptions const& options = {}, Predicate predicate = {}) {
  return assemble(problem, results_of_ranks<T, Placement>(problem, backend, options, predicate));
}

}  // namespace annulus_test
