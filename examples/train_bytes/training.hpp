#pragma once
// One training step on a ring: every rank computes the rows of its shard with its own copy of the parameters, and the
// gradients are summed over the ranks.

#include <annulus/annulus.hpp>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "adamw.hpp"
#include "cross_entropy.hpp"
#include "parameters.hpp"
#include "ring_layers.hpp"
#include "row_blocks.hpp"
#include "text.hpp"

namespace train_bytes {

struct TrainingOptions {
  ModelShape shape;
  Index context = 512;  ///< positions of a window, which are spread over the ranks
  Index batch = 4;      ///< windows of a step
  double learning_rate = 2e-3;
  Index warm_up_steps = 20;
  double weight_decay = 0.1;
  double longest_gradient = 1;
  std::uint64_t seed = 1;
  annulus::Sharding sharding{};
  /// Positions of a leaf: a run has the same bits on any number of ranks whose pieces are whole leaves. 0: not asked
  /// for.
  Index leaf = 0;
};

/// The model and its optimizer on one rank. All ranks start from the same parameters and apply the same summed
/// gradient, so their parameters have the same bits at every step. All members but the accessors are collective.
template <class T, class Ring>
class Trainer {
 public:
  /// initial: equal on all ranks.
  Trainer(Ring& ring, TrainingOptions const& options, Parameters<T> initial)
      : ring_(&ring),
        options_(options),
        positions_(annulus::positions(ring, options.sharding, options.context)),
        blocks_(row_blocks<T>(positions_, options.leaf, options.shape)),
        attention_(ring, options.shape, options.batch, options.sharding, options.leaf),
        parameters_(std::move(initial)),
        gradient_(options.shape),
        optimizer_(options.shape, options.weight_decay) {}

  Parameters<T> const& parameters() const { return parameters_; }
  Parameters<T> const& gradient() const { return gradient_; }

  /// Mean cross entropy of the windows in nats per byte.
  double loss(Windows const& windows) {
    forward(windows);
    return mean_loss(windows, 0);
  }

  /// Mean cross entropy of the windows, and sets gradient() to its gradient by the parameters: a forward and a backward
  /// pass, and the sum over the ranks.
  double loss_and_gradient(Windows const& windows) {
    forward(windows);
    double const mean = mean_loss(windows, 1 / static_cast<double>(options_.batch * options_.context));
    blocks_backward(parameters_, blocks_, options_.batch, attention_);
    gradient_.values() = sum_over_ranks<T>(
        gradient_.values().size(), [](auto const& block) -> auto const& { return block.gradient.values(); });
    return mean;
  }

  struct Report {
    double loss;           ///< before the step, nats per byte
    double gradient_norm;  ///< before clipping
  };

  Report step(Windows const& windows, double learning_rate) {
    double const loss = loss_and_gradient(windows);
    double const norm = clip(gradient_.values(), options_.longest_gradient);
    optimizer_.step(parameters_, gradient_.values(), learning_rate);
    return {loss, norm};
  }

 private:
  void forward(Windows const& windows) {
    blocks_forward(parameters_, blocks_, options_.batch, attention_,
                   [&](RowBlock<T> const& block) { return bytes_of(block, windows, 0); });
  }

  /// The bytes of the windows that are `ahead` of the positions of a block.
  Bytes bytes_of(RowBlock<T> const& block, Windows const& windows, Index ahead) const {
    Bytes bytes;
    for (Index window = 0; window < windows.batch; ++window)
      for (Index position : block.positions) bytes.push_back(windows.at(window, position + ahead));
    return bytes;
  }

  /// The mean cross entropy of all rows of all ranks. The logits become the gradient of `weight` times its sum.
  double mean_loss(Windows const& windows, double weight) {
    auto const loss_of = [&](RowBlock<T>& block) {
      return Column<double>::Constant(1, cross_entropy(block.activations.logits, bytes_of(block, windows, 1), weight));
    };
    return sum_over_ranks<double>(1, loss_of)[0] / static_cast<double>(options_.batch * options_.context);
  }

  /// The sum over the blocks of all ranks of the `size` numbers that share(block) returns. Each leaf has a row of its
  /// own, which one rank sets and the others leave 0, so that the sum over the ranks is exact; the rows are then added
  /// in the order of the leaves. Without leaves there is one row, and shares are added in the order of the ranks.
  template <class A, class Share>
  Column<A> sum_over_ranks(Index size, Share&& share) {
    Index const leaves = options_.leaf == 0 ? 1 : (options_.context + options_.leaf - 1) / options_.leaf;
    Matrix<A> shares = Matrix<A>::Zero(leaves, size);
    for (RowBlock<T>& block : blocks_) shares.row(block.leaf) = share(block).transpose();
    annulus::all_reduce(*ring_, annulus::TensorView<A, 1>(shares.data(), {shares.size()}));
    Column<A> sum = shares.row(0).transpose();
    for (Index leaf = 1; leaf < leaves; ++leaf) sum += shares.row(leaf).transpose();
    return sum;
  }

  Ring* ring_;
  TrainingOptions options_;
  std::vector<Index> positions_;
  std::vector<RowBlock<T>> blocks_;
  RingLayers<T, Ring> attention_;
  Parameters<T> parameters_, gradient_;
  AdamW<T> optimizer_;
};

}  // namespace train_bytes
