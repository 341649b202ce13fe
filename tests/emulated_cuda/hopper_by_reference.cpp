// In place of the Hopper kernels, whose instructions are not emulated: ReferenceBackend, as work of the stream. So tests
// see which steps CudaBackend hands to these kernels, and with which arguments.

#include <numeric>
#include <vector>

#include "annulus/backend/cuda/hopper/hopper.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "emulated_cuda/hopper_steps.hpp"

namespace annulus::cuda::detail::hopper {

namespace {

template <class T>
struct HostElement {
  using type = T;
};
template <>
struct HostElement<__half> {
  using type = Eigen::half;
};
template <>
struct HostElement<__nv_bfloat16> {
  using type = Eigen::bfloat16;
};
template <class T>
struct HostElement<T const> {
  using type = typename HostElement<T>::type const;
};
template <class T>
using HostElementOf = typename HostElement<T>::type;

template <class T>
auto view_of_rows(StridedRows<T> const& rows, int batch, int count, int heads, int dim) {
  return TensorView<HostElementOf<T>, 4>(reinterpret_cast<HostElementOf<T>*>(rows.data), {batch, count, heads, dim},
                                         {rows.batch, rows.row, rows.head, 1});
}
template <class T>
TensorView<T, 3> view_of_statistic(StridedStatistic<T> const& s, StepExtents const& e) {
  return {s.data, {e.batch, e.query_heads, e.queries}, {s.batch, s.head, s.row}};
}

/// The predicate of the visible keys.
struct Seen {
  VisibleKeys keys;

  bool operator()(Index batch, Index, Index query, Index key) const {
    if (keys.coverage == Coverage::full) return true;
    if (keys.coverage == Coverage::band) return query + keys.low <= key && key <= query + keys.high;
    int2 const range = keys.ranges[batch * keys.ranges_batch + query];
    return range.x <= key && key < range.y;
  }
};

/// A step of all pairs, of which Seen decides. Positions are row numbers.
template <class T>
struct HostStep {
  std::vector<Index> queries, keys;
  Tile tile;
  Seen seen;
  Step<T, Seen, HostMemory> step;

  template <class Arguments>
  explicit HostStep(Arguments const& a)
      : queries(static_cast<std::size_t>(a.extents.queries)),
        keys(static_cast<std::size_t>(a.extents.keys)),
        tile{.query_count = a.extents.queries, .key_count = a.extents.keys, .coverage = annulus::Coverage::elements},
        seen{a.visible},
        step{.tiles = {&tile, 1}, .query_positions = queries, .key_positions = keys, .predicate = &seen} {
    std::iota(queries.begin(), queries.end(), Index{0});
    std::iota(keys.begin(), keys.end(), Index{0});
    step.rules.softmax_scale = a.softmax_scale;
  }
  HostStep(HostStep const&) = delete;
};

template <class Arguments>
auto operands_of(Arguments const& a) {
  StepExtents const& e = a.extents;
  auto const q = view_of_rows(a.q, e.batch, e.queries, e.query_heads, e.head_dim);
  using T = typename decltype(q)::scalar;
  return StepOperands<T, HostMemory>{q, view_of_rows(a.k, e.batch, e.keys, e.kv_heads, e.head_dim),
                                     view_of_rows(a.v, e.batch, e.keys, e.kv_heads, e.value_dim)};
}

template <class Arguments>
bool is_left_to_others(Arguments const& a) {
  return a.visible.exact && *a.visible.exact == 0;
}

template <class T>
void fold_now(FoldArguments<T> const& a) {
  if (is_left_to_others(a)) return;
  ++annulus_test::hopper_steps;
  using Host = HostElementOf<T>;
  StepExtents const& e = a.extents;
  HostStep<Host> host(a);
  host.step.opens = a.opens ? Sums::queries : Sums::none;
  host.step.closes = a.closes ? Sums::queries : Sums::none;
  RunningState<float, HostMemory> const state{
      view_of_rows(a.accumulator, e.batch, e.queries, e.query_heads, e.value_dim), view_of_statistic(a.maximum, e),
      view_of_statistic(a.sum, e)};
  ForwardResults<Host, float, HostMemory> const results{
      view_of_rows(a.output, e.batch, e.queries, e.query_heads, e.value_dim),
      view_of_statistic(a.lse, e),
      view_of_statistic(a.lse_remainder, e),
      {a.sinks, {e.query_heads, a.sink_count}, {a.sink_head, a.sink}}};
  ReferenceBackend().fold(host.step, operands_of(a), state, results);
}

template <class T>
void add_gradients_now(GradientArguments<T> const& a) {
  if (is_left_to_others(a)) return;
  ++annulus_test::hopper_steps;
  using Host = HostElementOf<T>;
  StepExtents const& e = a.extents;
  HostStep<Host> host(a);
  auto const sums = [](bool queries, bool keys) {
    return (queries ? Sums::queries : Sums::none) | (keys ? Sums::keys : Sums::none);
  };
  host.step.opens = sums(a.opens_queries, a.opens_keys);
  host.step.closes = sums(a.closes_queries, a.closes_keys);
  auto const of_queries = [&](auto const& rows, int dim) {
    return view_of_rows(rows, e.batch, e.queries, e.query_heads, dim);
  };
  auto const of_keys = [&](auto const& rows, int dim) { return view_of_rows(rows, e.batch, e.keys, e.kv_heads, dim); };
  BackwardOperands<Host, float, float, HostMemory> const backward{
      of_queries(a.dout, e.value_dim), view_of_statistic(a.lse, e), view_of_statistic(a.delta, e),
      view_of_statistic(a.lse_remainder, e)};
  StepGradients<float, HostMemory> const gradients{
      of_queries(a.dq, e.head_dim), of_keys(a.dk, e.head_dim), of_keys(a.dv, e.value_dim), {}};
  GradientResults<Host, HostMemory> const results{
      of_queries(a.dq_result, e.head_dim), of_keys(a.dk_result, e.head_dim), of_keys(a.dv_result, e.value_dim), {}};
  ReferenceBackend().add_gradients(host.step, operands_of(a), backward, gradients, results);
}

}  // namespace

bool is_hopper() { return true; }

template <class T>
void fold(FoldArguments<T> const& a, Workspace const&, cudaStream_t stream) {
  emulated_cuda::Gpu::instance().put(stream, [a] { fold_now(a); });
}
template <class T>
void add_gradients(GradientArguments<T> const& a, Workspace const&, cudaStream_t stream) {
  emulated_cuda::Gpu::instance().put(stream, [a] { add_gradients_now(a); });
}

template void fold(FoldArguments<__nv_bfloat16> const&, Workspace const&, cudaStream_t);
template void fold(FoldArguments<__half> const&, Workspace const&, cudaStream_t);
template void add_gradients(GradientArguments<__nv_bfloat16> const&, Workspace const&, cudaStream_t);
template void add_gradients(GradientArguments<__half> const&, Workspace const&, cudaStream_t);

}  // namespace annulus::cuda::detail::hopper
