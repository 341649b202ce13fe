#pragma once
// A step with few query rows as the decode kernels read it, shared by host compilers and nvcc.

#include <cstdint>

#include "annulus/backend/cuda/row_operations.hpp"
#include "annulus/backend/cuda/step_arguments.hpp"

namespace annulus::cuda::detail {

/// Keys that a warp reads at a time.
inline constexpr int key_unit = 16;

/// Key rows that some query rows of a step see. No row between tiles is read.
struct KeyTile {
  int begin, end;            ///< rows of the operands
  int full_begin, full_end;  ///< of these, the rows that all queries see by position
  int first_unit;            ///< units of keys in the tiles before
};

/// The visible keys of a step, in the parameters of a kernel, so that nothing is uploaded.
struct KeyTiles {
  static constexpr int most_tiles = 64, most_ranges = 256;

  int count = 0, units = 0;
  KeyTile tiles[most_tiles];
  int2 ranges[most_ranges];  ///< [tile, query]: the rows that a query sees by position
};

/// A step. Row r of a kv head is query r / group of its query head r % group.
template <class T>
struct DecodeStep {
  StepExtents extents{};
  double softmax_scale = 1, logit_softcap = 0;
  Strided<T const, 4> q, k, v;                                    ///< [batch, rows, heads, dim]
  Strided<std::int32_t const, 2> query_documents, key_documents;  ///< [batch, rows]; null: not given
  KeyTiles visible{};

  ANNULUS_HOST_DEVICE int group() const { return extents.query_heads / extents.kv_heads; }
  ANNULUS_HOST_DEVICE int rows() const { return extents.queries * group(); }  ///< of a kv head
};

/// Results of parts of the keys, for each row of all kv heads: [batch, kv_heads, rows, splits], outputs with value_dim
/// elements each.
template <class A>
struct PartialResults {
  A *outputs = nullptr, *maximum = nullptr, *sum = nullptr;
  int splits = 1;
};

/// How blocks share a step of these extents and strides.
struct DecodeShape {
  int rows_of_block = 1;             ///< query rows that share the loads of a key
  int blocks_of_multiprocessor = 1;  ///< that run at a time
};

/// The shape by which split_keys() computes a step.
template <class T>
DecodeShape decode_shape(DecodeStep<T> const& step);
/// Computes the results of each part of the keys.
template <class T>
void split_keys(cudaStream_t stream, DecodeStep<T> const& step, PartialResults<SumOfElement<T>> const& partial);
/// Merges them into the running state, in the order of the keys.
template <class A>
void merge_splits(cudaStream_t stream, StepExtents const& extents, PartialResults<A> const& partial,
                  State<A> const& state);

}  // namespace annulus::cuda::detail
