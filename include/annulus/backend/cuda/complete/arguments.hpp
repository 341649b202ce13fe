#pragma once
// Arguments of the complete path, which computes all options for all element types and strides: the step, its
// operands and its sums as kernels read them, shared by host compilers and nvcc.

#include <cstdint>

#include "annulus/backend/cuda/row_operations.hpp"
#include "annulus/core/dropout.hpp"
#include "annulus/mask/mask.hpp"

namespace annulus::cuda::detail {

/// Query rows x key rows of the blocks in which the visible pairs of a step are listed.
inline constexpr int pair_block = 64;

/// Blocks [begin, end) that may hold visible pairs.
struct BlockRun {
  int begin, end;
  int tested;  ///< 0: the rules by position hide none of the pairs
};

/// For each block of rows, the runs of blocks of the other side that it is paired with, in ascending order.
struct BlockRuns {
  int const* first = nullptr;  ///< runs of block i: [first[i], first[i + 1])
  BlockRun const* runs = nullptr;
};

/// BlockMask in device memory.
struct BlockGrid {
  unsigned char const* visible = nullptr;  ///< null: no block is hidden
  Index query_block = 1, key_block = 1, key_blocks = 1;

  constexpr bool operator()(Index query, Index key) const {
    return !visible || visible[query / query_block * key_blocks + key / key_block] != 0;
  }
};

/// A step: its rules and its operands, with those of Step that are not given as null. T: element in device code.
template <class T>
struct StepPairs {
  Index batch = 0, queries = 0, keys = 0, query_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  double softmax_scale = 1, logit_softcap = 0;
  BlockRuns of_queries, of_keys;  ///< key blocks of each block of queries, query blocks of each block of keys
  Index const* query_positions = nullptr;
  Index const* key_positions = nullptr;
  Mask mask{};
  BlockGrid blocks{};
  Dropout dropout{};
  Index first_batch = 0, first_head = 0;
  int const* done = nullptr;  ///< in device memory; unless it is 0, other kernels have computed the step
  Strided<T const, 4> q, k, v;                                    ///< [batch, rows, heads, dim]
  Strided<T const, 4> bias;                                       ///< [batch, query_heads, queries, global_keys]
  Strided<bool const, 4> boolean_mask;                            ///< likewise
  Strided<std::int32_t const, 2> query_documents, key_documents;  ///< [batch, rows]
};

/// Operands of the backward pass. A: sums.
template <class T, class A>
struct KnownResults {
  Strided<T const, 4> dout;
  Strided<A const, 3> lse, lse_remainder, delta;
};

/// Sums of gradients; all are added to.
template <class A>
struct GradientSums {
  Strided<A, 4> dq, dk, dv;
};

/// The gradient of the bias, [batch, heads, queries, global_keys], where extents of shared axes are 1. R: its elements.
template <class R>
struct BiasGradient {
  Strided<R, 4> dbias;
  Index batch = 1, heads = 1;
  bool adds = false;  ///< to the elements; false: replaces them
};

/// The kernels of the complete path for one predicate and element type. P is a device function object: trivially
/// copyable, with a call operator (batch, head, query, key) for device code.
template <class T, class P>
struct CompletePath {
  using A = SumOfElement<T>;

  /// Adds the keys of a step to the rows that see them.
  static void fold(cudaStream_t stream, StepPairs<T> const& step, State<A> const& state, P const& predicate);
  /// Adds the gradients of a step to their sums, each in a fixed order.
  static void add_gradients(cudaStream_t stream, StepPairs<T> const& step, KnownResults<T, A> const& known,
                            GradientSums<A> const& sums, P const& predicate);
  /// Adds the gradient of the bias, in a fixed order of batch items and heads that share an element.
  static void add_bias_gradient(cudaStream_t stream, StepPairs<T> const& step, KnownResults<T, A> const& known,
                                BiasGradient<A> const& gradient, P const& predicate);
  /// Writes it instead, as elements of the operands' type.
  static void write_bias_gradient(cudaStream_t stream, StepPairs<T> const& step, KnownResults<T, A> const& known,
                                  BiasGradient<T> const& gradient, P const& predicate);
};

}  // namespace annulus::cuda::detail
