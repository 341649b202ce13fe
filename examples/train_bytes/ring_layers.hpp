#pragma once
// Attention of all layers over a ring: each rank passes the rows of its shard.

#include <annulus/annulus.hpp>
#include <array>
#include <cstddef>
#include <vector>

#include "layer.hpp"
#include "matrix.hpp"
#include "parameters.hpp"

namespace train_bytes {

/// Causal attention of a model's layers over the ranks of a ring. All ranks call it alike. The layers have the same
/// shapes, so they share one RingAttention, its plan and its buffers.
template <class T, class Ring>
class RingLayers {
 public:
  /// batch: number of sequences; each rank holds sharding.lengths(...)[rank] rows of every sequence. leaf: see
  /// TrainingOptions.
  RingLayers(Ring& ring, ModelShape const& shape, Index batch, annulus::Sharding const& sharding, Index leaf = 0)
      : shape_(shape),
        batch_(batch),
        attention_(ring, backend_,
                   {.mask = annulus::causal(),
                    .sharding = sharding,
                    .reproducible = leaf > 0,
                    .reproducible_leaf = leaf > 0 ? leaf : annulus::Options{}.reproducible_leaf}),
        statistics_(static_cast<std::size_t>(shape.layers)) {}
  /// attention_ refers to backend_.
  RingLayers(RingLayers const&) = delete;
  RingLayers& operator=(RingLayers const&) = delete;

  Matrix<T> forward(Index layer, Projections<T> const& x) {
    Statistics& saved = statistics_[static_cast<std::size_t>(layer)];
    Index const rows = x.q.rows() / batch_;
    saved.lse.resize(batch_, shape_.heads, rows);
    saved.lse_remainder.resize(batch_, shape_.heads, rows);
    Matrix<T> output(x.q.rows(), x.q.cols());
    auto views = view(output);
    attention_.forward_into(view(x.q), view(x.k), view(x.v), views, saved.lse, {}, saved.lse_remainder);
    return output;
  }

  Projections<T> backward(Index layer, Matrix<T> const& doutput, Projections<T> const& x, Matrix<T> const& output) {
    Statistics const& saved = statistics_[static_cast<std::size_t>(layer)];
    Projections<T> d{Matrix<T>(x.q.rows(), x.q.cols()), Matrix<T>(x.k.rows(), x.k.cols()),
                     Matrix<T>(x.v.rows(), x.v.cols())};
    attention_.backward_into(view(doutput), view(output), saved.lse, view(x.q), view(x.k), view(x.v),
                             {view(d.q), view(d.k), view(d.v)}, {}, saved.lse_remainder);
    return d;
  }

 private:
  struct Statistics {
    Eigen::Tensor<T, 3, Eigen::RowMajor> lse, lse_remainder;
  };

  /// A matrix [batch * rows, heads * head_dim] as a tensor [batch, rows, heads, head_dim].
  std::array<Index, 4> extents(Matrix<T> const& x) const {
    return {batch_, x.rows() / batch_, x.cols() / shape_.head_dim(), shape_.head_dim()};
  }
  annulus::TensorView<T const, 4> view(Matrix<T> const& x) const { return {x.data(), extents(x)}; }
  annulus::TensorView<T, 4> view(Matrix<T>& x) const { return {x.data(), extents(x)}; }

  ModelShape shape_;
  Index batch_;
  annulus::CpuBackend backend_;
  annulus::RingAttention<Ring, annulus::CpuBackend> attention_;
  std::vector<Statistics> statistics_;
};

}  // namespace train_bytes
