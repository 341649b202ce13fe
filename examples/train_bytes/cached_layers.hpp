#pragma once
// Attention of all layers against caches that are spread over the ranks of a ring: each layer keeps the keys and values
// of all rows that it has seen.

#include <annulus/annulus.hpp>
#include <array>
#include <optional>
#include <vector>

#include "layer.hpp"
#include "matrix.hpp"
#include "parameters.hpp"

namespace train_bytes {

/// Causal attention of a model's layers over one sequence, which grows with each call. All ranks call it alike.
template <class T, class Ring>
class CachedLayers {
 public:
  /// The rows of a call: the same on every rank, or a contiguous shard of them on each.
  enum class Rows { equal, sharded };

  /// capacity: rows in all; window: how many of the last rows a row sees; unset: all.
  CachedLayers(Ring& ring, ModelShape const& shape, Index capacity, std::optional<Index> window = {})
      : shape_(shape), attention_(ring, backend_, {.mask = {.causal = true, .window = {.left = left_of(window)}}}) {
    constexpr Index page_rows = 64;
    Index const pages = capacity / page_rows / ring.size() + 1;
    for (Index layer = 0; layer < shape.layers; ++layer) {
      Cache& cache = caches_.emplace_back(ring, backend_,
                                          annulus::CacheShape{.kv_heads = shape.kv_heads,
                                                              .head_dim = shape.head_dim(),
                                                              .value_dim = shape.head_dim(),
                                                              .pages = pages,
                                                              .page_rows = page_rows});
      sequence_ = {cache.create()};
    }
  }
  /// attention_ and the caches refer to backend_.
  CachedLayers(CachedLayers const&) = delete;
  CachedLayers& operator=(CachedLayers const&) = delete;

  /// Of the calls from now on; equal at first.
  void set_rows(Rows rows) { rows_ = rows; }

  /// Appends the rows to the layer's cache; returns the attention output of these rows.
  Matrix<T> forward(Index layer, Projections<T> const& x) {
    Cache& cache = caches_[static_cast<std::size_t>(layer)];
    Matrix<T> output(x.q.rows(), x.q.cols());
    auto views = view(output);
    Eigen::Tensor<T, 3, Eigen::RowMajor> lse(1, shape_.heads, x.q.rows());
    if (rows_ == Rows::equal) {
      attention_.decode_into(cache, sequence_, view(x.q), view(x.k), view(x.v), views, lse);
    } else {
      attention_.append_shards(cache, sequence_, view(x.k), view(x.v));
      attention_.prefill_into(cache, sequence_, view(x.q), views, lse);
    }
    return output;
  }

  /// Bytes of keys and values that a rank has room for, in all layers.
  Index bytes() const {
    Index sum = 0;
    for (Cache const& cache : caches_) sum += cache.bytes();
    return sum;
  }
  /// Bytes that a rank has sent for the last row of the last layer.
  Index bytes_sent(annulus::Rank rank) const { return attention_.merge_plan().bytes_sent(rank); }

 private:
  using Cache = annulus::KvCache<T>;

  static std::optional<Index> left_of(std::optional<Index> window) {
    return window ? std::optional(*window - 1) : std::nullopt;
  }
  /// A matrix [rows, heads * head_dim] as a tensor [1, rows, heads, head_dim].
  std::array<Index, 4> extents(Matrix<T> const& x) const {
    return {1, x.rows(), x.cols() / shape_.head_dim(), shape_.head_dim()};
  }
  annulus::TensorView<T const, 4> view(Matrix<T> const& x) const { return {x.data(), extents(x)}; }
  annulus::TensorView<T, 4> view(Matrix<T>& x) const { return {x.data(), extents(x)}; }

  ModelShape shape_;
  annulus::CpuBackend backend_;
  std::vector<Cache> caches_;
  std::array<Index, 1> sequence_{};  ///< its number is the same in every cache
  annulus::CachedAttention<Ring, annulus::CpuBackend> attention_;
  Rows rows_ = Rows::equal;
};

}  // namespace train_bytes
