#pragma once
// Rows of a decode step of any element type, head and strides: the lanes of a warp share a key, and each has every 32nd
// element of it.

#include "annulus/backend/cuda/decode/block_results.cuh"
#include "annulus/backend/cuda/shared_memory.cuh"

namespace annulus::cuda::detail {

/// Elements: of a row that a lane has.
template <class T, int Elements>
class LaneRows {
 public:
  using A = SumOfElement<T>;
  static constexpr int rows = Elements <= 4 ? 4 : 2;
  static constexpr int blocks = sizeof(A) == 8 ? 2 : 4;  ///< of a multiprocessor

  static std::size_t shared_bytes(StepExtents const& extents) {
    return BlockResults<A>::bytes(rows, extents.value_dim);
  }
  static bool serves(DecodeStep<T> const& step) {
    return std::max(step.extents.head_dim, step.extents.value_dim) <= 32 * Elements;
  }

  __device__ LaneRows(DecodeStep<T> const& step, DecodePlace const& place)
      : step_(step), rules_(step, place), place_(place) {
    for (int r = 0; r < rows; ++r)
      if (r < rules_.rows())
        load(&step.q(place.batch, rules_.query(r), rules_.head(r), 0), step.q.strides[3], step.extents.head_dim, q_[r]);
  }

  __device__ void fold(KeyUnits unit) {
    for (; unit.valid(); unit = unit.after()) {
      bool const tests = rules_.tests(unit);
      int const first = unit.first_key(), end = std::min(first + key_unit, unit.tile().end);
      for (int key = first; key < end; key += at_once) fold_keys(unit, tests, key, end - key);
    }
  }

  __device__ void store(PartialResults<A> const& partial, Index first_partial, int split) {
    BlockResults<A> const results(shared_memory(), rows, step_.extents.value_dim);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (lane() == 0) results.set_row(r, row_[r]);
#pragma unroll
      for (int e = 0; e < Elements; ++e)
        if (lane() + 32 * e < step_.extents.value_dim) results.output(r, lane() + 32 * e) = sums_[r][e];
    }
    results.store(partial, first_partial, split, rules_.rows());
  }

 private:
  static constexpr int at_once = Elements <= 4 ? 4 : 1;  ///< keys whose loads are in flight

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ static void load(T const* row, Index stride, int dim, A (&elements)[Elements]) {
#pragma unroll
    for (int e = 0; e < Elements; ++e)
      elements[e] = lane() + 32 * e < dim ? widened<A>(row[(lane() + 32 * e) * stride]) : A(0);
  }

  /// Adds the next at_once keys, of `count` that there are.
  __device__ void fold_keys(KeyUnits const& unit, bool tests, int first, int count) {
    A k[at_once][Elements] = {}, v[at_once][Elements] = {};
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (i >= count) continue;
      load(&step_.k(place_.batch, first + i, place_.kv_head, 0), step_.k.strides[3], step_.extents.head_dim, k[i]);
      load(&step_.v(place_.batch, first + i, place_.kv_head, 0), step_.v.strides[3], step_.extents.value_dim, v[i]);
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      A logits[at_once], largest = empty_row<A>;
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        A product = A(0);
#pragma unroll
        for (int e = 0; e < Elements; ++e) product += q_[r][e] * k[i][e];
        product = warp_sum<32>(product);
        bool const visible = i < count && (!tests || rules_.visible(unit, r, first + i));
        logits[i] = visible ? rules_.logit(r, first + i, product) : empty_row<A>;
        largest = fmax(largest, logits[i]);
      }
      A const factor = row_[r].raise(largest);
#pragma unroll
      for (A& sum : sums_[r]) sum *= factor;
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        A const weight = row_[r].weight(logits[i]);
        row_[r].sum += weight;
        if (weight == A(0)) continue;  // a hidden row may hold anything
#pragma unroll
        for (int e = 0; e < Elements; ++e) sums_[r][e] += weight * v[i][e];
      }
    }
  }

  DecodeStep<T> const& step_;
  DecodeRules<T> rules_;
  DecodePlace place_;
  A q_[rows][Elements] = {};
  SoftmaxRow<A> row_[rows];
  A sums_[rows][Elements] = {};
};

}  // namespace annulus::cuda::detail
