#pragma once
// The work of one step as kernels read it: pointers, element strides and extents, without types of the library, so that
// host compilers and nvcc share it.

#include <vector_types.h>

namespace annulus::cuda::detail {

/// Rows of an operand, a sum or a result: [batch, rows, heads, dim], element strides, unit stride along dim.
template <class T>
struct StridedRows {
  T* data = nullptr;  ///< null: not given
  long long batch = 0, row = 0, head = 0;
};

/// One value a row and head: [batch, heads, rows], element strides.
template <class T>
struct StridedStatistic {
  T* data = nullptr;  ///< null: not given
  long long batch = 0, head = 0, row = 0;
};

/// Extents of a step. Query head h reads kv head h / (query_heads / kv_heads).
struct StepExtents {
  int batch = 0, queries = 0, keys = 0, query_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
};

/// How the visible keys of a query row are given.
enum class Coverage {
  full,    ///< all
  band,    ///< key row j is visible to query row i if i + low <= j <= i + high
  ranges,  ///< key rows [begin, end), which are ranges[batch item * ranges_batch + query row]
};

/// Visible keys of all query rows of a step, where those of a row are consecutive.
struct VisibleKeys {
  Coverage coverage = Coverage::full;
  int low = 0, high = 0;
  int2 const* ranges = nullptr;
  long long ranges_batch = 0;  ///< 0: all batch items have the same ranges
  int const* exact = nullptr;  ///< in device memory; where it is 0, the ranges are not those of the step: do nothing
};

/// What the steps of both passes have.
template <class T>
struct StepArguments {
  StepExtents extents{};
  VisibleKeys visible{};
  float softmax_scale = 1, logit_softcap = 0;  ///< 0: no soft cap
  StridedRows<T const> q{}, k{}, v{};
};

/// A step of the forward pass: adds keys to running states, in the arithmetic of numerics/softmax.hpp.
template <class T>
struct FoldArguments : StepArguments<T> {
  bool opens = false;   ///< the state holds nothing yet
  bool closes = false;  ///< the results are written, and the state is unspecified afterwards
  StridedRows<float> accumulator{};
  StridedStatistic<float> maximum{}, sum{};
  StridedRows<T> output{};
  StridedStatistic<float> lse{}, lse_remainder{};  ///< lse_remainder: may be null
  float const* sinks = nullptr;                    ///< logits [query_heads, sink_count] at these strides
  int sink_count = 0;
  long long sink_head = 0, sink = 0;
};

/// A step of the backward pass: adds the shares of its pairs to sums of gradients, in a fixed order.
template <class T>
struct GradientArguments : StepArguments<T> {
  StridedRows<T const> dout{};
  StridedStatistic<float const> lse{}, lse_remainder{}, delta{};  ///< lse_remainder: null counts as 0
  StridedRows<float> dq{}, dk{}, dv{};
  bool opens_queries = false, opens_keys = false;    ///< dq; dk and dv: they hold nothing yet
  bool closes_queries = false, closes_keys = false;  ///< the results below are written, the sums unspecified afterwards
  StridedRows<T> dq_result{}, dk_result{}, dv_result{};
};

}  // namespace annulus::cuda::detail
