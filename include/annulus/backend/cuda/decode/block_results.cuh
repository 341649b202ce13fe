#pragma once
// What the decode kernels have in common: the places of a block and of its keys, the rules of a pair, and the merge of the
// results of its warps.

#include "annulus/backend/cuda/decode/arguments.hpp"
#include "annulus/backend/cuda/elements.cuh"
#include "annulus/mask/mask.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cuda::detail {

inline constexpr int decode_warps = 4, decode_threads = 32 * decode_warps;

/// The query rows of a block.
struct DecodePlace {
  int batch, kv_head, first_row;
};

/// One unit of keys after another of those that a warp reads.
class KeyUnits {
 public:
  /// From `unit` to `end`, every `step`-th.
  __device__ KeyUnits(KeyTiles const& visible, int unit, int end, int step)
      : visible_(&visible), unit_(unit), end_(end), step_(step) {
    find_tile();
  }
  __device__ bool valid() const { return unit_ < end_; }
  __device__ int tile_number() const { return tile_; }
  __device__ KeyTile const& tile() const { return visible_->tiles[tile_]; }
  __device__ int first_key() const { return tile().begin + (unit_ - tile().first_unit) * key_unit; }
  __device__ KeyUnits after() const {
    KeyUnits next = *this;
    next.unit_ += step_;
    next.find_tile();
    return next;
  }

 private:
  __device__ void find_tile() {
    while (tile_ + 1 < visible_->count && unit_ >= visible_->tiles[tile_ + 1].first_unit) ++tile_;
  }

  KeyTiles const* visible_;
  int unit_, end_, step_, tile_ = 0;
};

/// The rules of a step for the pairs of a block's rows.
template <class T>
class DecodeRules {
 public:
  using A = SumOfElement<T>;

  __device__ DecodeRules(DecodeStep<T> const& step, DecodePlace const& place)
      : step_(step), place_(place), rule_{static_cast<A>(step.softmax_scale), static_cast<A>(step.logit_softcap)} {}

  __device__ int rows() const { return step_.rows() - place_.first_row; }  ///< from the first one of the block on
  __device__ Index query(int row) const { return (place_.first_row + row) / step_.group(); }
  __device__ Index head(int row) const {
    return Index{place_.kv_head} * step_.group() + (place_.first_row + row) % step_.group();
  }

  /// True if some row may not see some key of a unit.
  __device__ bool tests(KeyUnits const& unit) const {
    KeyTile const& tile = unit.tile();
    return step_.key_documents || unit.first_key() < tile.full_begin || unit.first_key() + key_unit > tile.full_end;
  }
  __device__ bool visible(KeyUnits const& unit, int row, int key) const {
    if (row >= rows()) return false;
    int2 const seen = step_.visible.ranges[unit.tile_number() * step_.extents.queries + query(row)];
    if (key < seen.x || key >= seen.y) return false;
    return !step_.key_documents || annulus::detail::same_document(step_.query_documents(place_.batch, query(row)),
                                                                  step_.key_documents(place_.batch, key));
  }

  /// True if logits are products times the scale.
  __device__ bool is_plain() const { return !(rule_.softcap > A(0)); }
  __device__ A scale() const { return rule_.scale; }
  /// The logit of a pair, given the product of query and key.
  __device__ A logit(int row, int key, A product) const {
    return isfinite(product) ? rule_(product) : rule_.cap(scaled_product(row, key));
  }

 private:
  /// The product of the scaled query and the key, for products that overflow.
  __device__ A scaled_product(int row, int key) const {
    if (row >= rows()) return A(0);
    return detail::scaled_product(&step_.q(place_.batch, query(row), head(row), 0), step_.q.strides[3],
                                  &step_.k(place_.batch, key, place_.kv_head, 0), step_.k.strides[3],
                                  step_.extents.head_dim, rule_.scale);
  }

  DecodeStep<T> const& step_;
  DecodePlace place_;
  LogitRule<A> rule_;
};

/// The results of the warps of a block, in shared memory.
template <class A>
class BlockResults {
 public:
  static std::size_t bytes(int rows, int dim) { return sizeof(A) * decode_warps * rows * (dim + 2); }

  __device__ BlockResults(void* shared, int rows, int dim)
      : maximum_(static_cast<A*>(shared)),
        sum_(maximum_ + decode_warps * rows),
        outputs_(sum_ + decode_warps * rows),
        rows_(rows),
        dim_(dim) {}

  __device__ void set_row(int row, SoftmaxRow<A> const& of_warp) const {
    maximum_[warp() * rows_ + row] = of_warp.maximum;
    sum_[warp() * rows_ + row] = of_warp.sum;
  }
  __device__ A& output(int row, int d) const { return outputs_[(warp() * rows_ + row) * dim_ + d]; }

  /// Merges the warps in order, and writes the rows that there are to those of a split, `partial` rows of the kv head.
  __device__ void store(PartialResults<A> const& partial, Index first_partial, int split, int rows) const {
    __syncthreads();  // all warps have set theirs
    int const count = rows < rows_ ? rows : rows_;
    for (int i = static_cast<int>(threadIdx.x); i < count * dim_; i += decode_threads) {
      int const row = i / dim_, d = i % dim_;
      SoftmaxRow<A> merged = of_warp(0, row);
      A output = outputs_[row * dim_ + d];
#pragma unroll
      for (int w = 1; w < decode_warps; ++w) {
        auto const factors = merged.merge(of_warp(w, row));
        output = weighed(factors.own, output) + weighed(factors.other, outputs_[(w * rows_ + row) * dim_ + d]);
      }
      Index const place = (first_partial + row) * partial.splits + split;
      partial.outputs[place * dim_ + d] = output;
      if (d != 0) continue;
      partial.maximum[place] = merged.maximum;
      partial.sum[place] = merged.sum;
    }
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ SoftmaxRow<A> of_warp(int w, int row) const { return {maximum_[w * rows_ + row], sum_[w * rows_ + row]}; }
  /// What has the factor 0 may be infinite.
  __device__ static A weighed(A factor, A value) { return factor == A(0) ? A(0) : factor * value; }

  A *maximum_, *sum_, *outputs_;
  int rows_, dim_;
};

}  // namespace annulus::cuda::detail
