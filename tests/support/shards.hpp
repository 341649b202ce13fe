#pragma once
// Operands of one rank as Eigen tensors, for tests that call the library directly.

#include <array>
#include <vector>

#include "support/ring_run.hpp"

namespace annulus_test {

template <class T>
using RowMajorTensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;

template <class T>
struct Shards {
  RowMajorTensor<T> q, k, v, dout;
};

/// The shards of one rank of a problem whose options and lengths are set.
template <class T>
Shards<T> shards_of(RingProblem const& problem, int rank) {
  OracleProblem const& d = problem.dense;
  auto const queries = problem.segments(annulus::Side::query, rank), keys = problem.segments(annulus::Side::key, rank);
  auto const shard = [](std::vector<double> const& global, std::array<Index, 4> const& extents, auto const& rows) {
    return ring_run_detail::shard_of<T, HostPlacement>(global, extents, 1, rows);
  };
  return {shard(d.q, {d.batch, d.query_length, d.query_heads, d.head_dim}, queries),
          shard(d.k, {d.batch, d.key_length, d.kv_heads, d.head_dim}, keys),
          shard(d.v, {d.batch, d.key_length, d.kv_heads, d.value_dim}, keys),
          shard(problem.dout, {d.batch, d.query_length, d.query_heads, d.value_dim}, queries)};
}

/// The elements of a tensor in row-major order of its own indices, converted to double.
template <class X>
std::vector<double> values_of(X const& tensor) {
  auto const view = annulus::view_of(tensor);
  using View = std::remove_cvref_t<decltype(view)>;
  return ring_run_detail::widened<View::rank>(annulus::TensorView<typename View::scalar const, View::rank>(view));
}

/// The results of a forward and a backward pass on one rank, as a RingResult.
template <class F, class G>
RingResult result_of(F const& forward, G const& gradients) {
  RingResult result;
  result.output = values_of(forward.output);
  result.lse = values_of(forward.lse);
  result.dq = values_of(gradients.dq);
  result.dk = values_of(gradients.dk);
  result.dv = values_of(gradients.dv);
  if (gradients.dbias) result.dbias = values_of(*gradients.dbias);
  if (gradients.dsinks) result.dsinks = values_of(*gradients.dsinks);
  return result;
}

}  // namespace annulus_test
