#pragma once
// The fast path of CudaBackend: the steps that the Hopper kernels take, as these read them, and their workspace.

#include <algorithm>
#include <concepts>
#include <optional>

#include "annulus/backend/cuda/hopper/hopper.hpp"
#include "annulus/backend/cuda/row_ranges.hpp"
#include "annulus/backend/cuda/strided.hpp"
#include "annulus/backend/cuda/uploaded_steps.hpp"
#include "annulus/backend/cuda/visible_ranges.hpp"
#include "annulus/backend/step.hpp"

namespace annulus::cuda::detail {

/// True for steps that the Hopper kernels may take: of 16-bit elements, without a predicate of the program.
template <class T, class Predicate>
inline constexpr bool may_be_fast = sizeof(T) == 2 && std::same_as<Predicate, EveryPair>;

/// A view [batch, rows, heads, dim] whose elements along dim are neighbours, or nothing if they are not.
template <class T>
std::optional<StridedRows<DeviceElementOf<T>>> rows_of(TensorView<T, 4, CudaMemory> const& view) {
  if (view.extent(axis::dim) > 1 && view.stride(axis::dim) != 1) return {};
  return StridedRows<DeviceElementOf<T>>{reinterpret_cast<DeviceElementOf<T>*>(view.data()), view.stride(axis::batch),
                                         view.stride(axis::sequence), view.stride(axis::heads)};
}
template <class T>
StridedStatistic<T> statistic_of(TensorView<T, 3, CudaMemory> const& view) {
  return {view.data(), view.stride(0), view.stride(1), view.stride(2)};
}

/// Memory of the kernels, which grows with the largest step; and the steps, put on a stream of the current GPU.
class FastPath {
 public:
  /// The visible keys of a step that has tiles, found on the stream where they are ranges; empty: the kernels do not take
  /// them. Valid until the next call.
  template <class T>
  std::optional<VisibleKeys> visible_keys(Step<T, EveryPair, CudaMemory> const& step, UploadedStep const& uploaded,
                                          Index batch, cudaStream_t stream) {
    if (!hopper::is_hopper() || step.bias.data() || step.rules.dropout.active()) return {};
    std::optional<VisibleForm> const form = visible_form(step, uploaded.visible);
    if (!form) return {};
    if (form->coverage == Coverage::full) return VisibleKeys{};
    if (form->coverage == Coverage::band)
      return VisibleKeys{Coverage::band, clamped(form->band.lo), clamped(form->band.hi)};
    RangeSearch search{.mask = step.rules.mask,
                       .batch = batch,
                       .queries = std::ssize(step.query_positions),
                       .keys = std::ssize(step.key_positions),
                       .query_positions = uploaded.query_positions,
                       .key_positions = uploaded.key_positions};
    if (step.has_documents()) {
      search.query_documents = strided(step.query_documents);
      search.key_documents = strided(step.key_documents);
    }
    return ranges_.find(search, stream);
  }

  template <class T>
  void fold(FoldArguments<T> const& arguments, cudaStream_t stream) {
    hopper::fold(arguments, workspace_of(arguments, stream), stream);
  }
  template <class T>
  void add_gradients(GradientArguments<T> const& arguments, cudaStream_t stream) {
    hopper::add_gradients(arguments, workspace_of(arguments, stream), stream);
  }

 private:
  static int clamped(Index row) {
    constexpr Index far = Index{1} << 30;
    return static_cast<int>(std::clamp(row, -far, far));
  }

  template <class Arguments>
  hopper::Workspace workspace_of(Arguments const& arguments, cudaStream_t stream) {
    hopper::WorkspaceSize const size = hopper::workspace_size(arguments);
    Index const counters = size.counters * Index{sizeof(int)}, bounds = size.bounds * Index{sizeof(int4)};
    if (counters_.size() < counters) {
      counters_ = allocate_device(counters);
      check(cudaMemsetAsync(counters_.data(), 0, static_cast<std::size_t>(counters), stream), "cudaMemsetAsync");
    }
    if (bounds_.size() < bounds) bounds_ = allocate_device(bounds);
    return {reinterpret_cast<int*>(counters_.data()), reinterpret_cast<int4*>(bounds_.data())};
  }

  RowRanges ranges_;
  DeviceBytes counters_, bounds_;
};

/// What the steps of both passes have, as the kernels read it; empty: its rows are not in the order that they read.
template <class T>
std::optional<StepArguments<DeviceElementOf<T>>> step_arguments(Step<T, EveryPair, CudaMemory> const& step,
                                                                StepOperands<T, CudaMemory> const& operands,
                                                                VisibleKeys const& visible) {
  auto const q = rows_of(operands.q), k = rows_of(operands.k), v = rows_of(operands.v);
  if (!q || !k || !v) return {};
  auto const extent = [](TensorView<T const, 4, CudaMemory> const& view, std::size_t a) {
    return static_cast<int>(view.extent(a));
  };
  StepExtents const extents{extent(operands.q, axis::batch),    extent(operands.q, axis::sequence),
                            extent(operands.k, axis::sequence), extent(operands.q, axis::heads),
                            extent(operands.k, axis::heads),    extent(operands.q, axis::dim),
                            extent(operands.v, axis::dim)};
  return StepArguments<DeviceElementOf<T>>{
      extents, visible, static_cast<float>(step.softmax_scale()), static_cast<float>(step.rules.logit_softcap), *q,
      *k,      *v};
}

/// A step of the forward pass; empty as above. results: read where `closes`.
template <class T>
std::optional<FoldArguments<DeviceElementOf<T>>> fold_arguments(Step<T, EveryPair, CudaMemory> const& step,
                                                                StepOperands<T, CudaMemory> const& operands,
                                                                RunningState<float, CudaMemory> const& state,
                                                                ForwardResults<T, float, CudaMemory> const& results,
                                                                VisibleKeys const& visible) {
  using E = DeviceElementOf<T>;
  bool const closes = has(step.closes, Sums::queries);
  auto const both = step_arguments(step, operands, visible);
  auto const output = closes ? rows_of(results.output) : StridedRows<E>{};
  if (!both || !output) return {};
  FoldArguments<E> arguments{*both};
  arguments.opens = has(step.opens, Sums::queries);
  arguments.accumulator = *rows_of(state.accumulator);
  arguments.maximum = statistic_of(state.maximum);
  arguments.sum = statistic_of(state.sum);
  arguments.closes = closes;
  if (!closes) return arguments;
  arguments.output = *output;
  arguments.lse = statistic_of(results.lse);
  arguments.lse_remainder = statistic_of(results.lse_remainder);
  if (!results.sinks.data()) return arguments;
  arguments.sinks = results.sinks.data();
  arguments.sink_count = static_cast<int>(results.sinks.extent(1));
  arguments.sink_head = results.sinks.stride(0);
  arguments.sink = results.sinks.stride(1);
  return arguments;
}

/// The same for the backward pass.
template <class T>
std::optional<GradientArguments<DeviceElementOf<T>>> gradient_arguments(
    Step<T, EveryPair, CudaMemory> const& step, StepOperands<T, CudaMemory> const& operands,
    BackwardOperands<T, float, float, CudaMemory> const& backward, StepGradients<float, CudaMemory> const& gradients,
    GradientResults<T, CudaMemory> const& results, VisibleKeys const& visible) {
  using E = DeviceElementOf<T>;
  bool const closes_queries = has(step.closes, Sums::queries), closes_keys = has(step.closes, Sums::keys);
  auto const both = step_arguments(step, operands, visible);
  auto const dout = rows_of(backward.dout);
  auto const dq = closes_queries ? rows_of(results.dq) : StridedRows<E>{};
  auto const dk = closes_keys ? rows_of(results.dk) : StridedRows<E>{};
  auto const dv = closes_keys ? rows_of(results.dv) : StridedRows<E>{};
  if (!both || !dout || !dq || !dk || !dv) return {};
  GradientArguments<E> arguments{*both};
  arguments.dout = *dout;
  arguments.lse = statistic_of(backward.lse);
  arguments.lse_remainder = statistic_of(backward.lse_remainder);
  arguments.delta = statistic_of(backward.delta);
  arguments.dq = *rows_of(gradients.dq);
  arguments.dk = *rows_of(gradients.dk);
  arguments.dv = *rows_of(gradients.dv);
  arguments.opens_queries = has(step.opens, Sums::queries);
  arguments.opens_keys = has(step.opens, Sums::keys);
  arguments.closes_queries = closes_queries;
  arguments.closes_keys = closes_keys;
  arguments.dq_result = *dq;
  arguments.dk_result = *dk;
  arguments.dv_result = *dv;
  return arguments;
}

}  // namespace annulus::cuda::detail
