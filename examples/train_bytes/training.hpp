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
#include "model.hpp"
#include "parameters.hpp"
#include "ring_layers.hpp"
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
};

/// The model and its optimizer on one rank. All ranks start from the same parameters and apply the same summed gradient,
/// so their parameters have the same bits at every step. All members but the accessors are collective.
template <class T, class Ring>
class Trainer {
 public:
  /// initial: equal on all ranks.
  Trainer(Ring& ring, TrainingOptions const& options, Parameters<T> initial)
      : ring_(&ring),
        options_(options),
        positions_(annulus::positions(ring, options.sharding, options.context)),
        rotary_(positions_, options.shape.head_dim()),
        attention_(ring, options.shape, options.batch, options.sharding),
        parameters_(std::move(initial)),
        gradient_(options.shape),
        optimizer_(options.shape, options.weight_decay) {}

  Parameters<T> const& parameters() const { return parameters_; }
  Parameters<T> const& gradient() const { return gradient_; }

  /// Mean cross entropy of the windows in nats per byte.
  double loss(Windows const& windows) {
    auto activations = forward(windows);
    return mean_over_ranks(cross_entropy(activations.logits, targets(windows), 0));
  }

  /// Mean cross entropy of the windows, and sets gradient() to its gradient by the parameters: a forward and a backward
  /// pass, and the sum over the ranks.
  double loss_and_gradient(Windows const& windows) {
    auto activations = forward(windows);
    double const weight = 1 / static_cast<double>(options_.batch * options_.context);
    double const sum = cross_entropy(activations.logits, targets(windows), weight);
    gradient_.values().setZero();
    model_backward(parameters_, activations, activations.logits, rotary_, attention_, gradient_);
    annulus::all_reduce(*ring_, annulus::TensorView<T, 1>(gradient_.values().data(), {gradient_.values().size()}));
    return mean_over_ranks(sum);
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
  Activations<T> forward(Windows const& windows) {
    return model_forward(parameters_, own_bytes(windows, 0), rotary_, attention_);
  }

  Bytes targets(Windows const& windows) const { return own_bytes(windows, 1); }

  /// The bytes of the windows that are `ahead` of this rank's positions.
  Bytes own_bytes(Windows const& windows, Index ahead) const {
    Bytes bytes;
    for (Index window = 0; window < windows.batch; ++window)
      for (Index position : positions_) bytes.push_back(windows.at(window, position + ahead));
    return bytes;
  }

  /// Divides the sum over the rows of all ranks by their number.
  double mean_over_ranks(double sum) {
    annulus::all_reduce(*ring_, annulus::TensorView<double, 1>(&sum, {1}));
    return sum / static_cast<double>(options_.batch * options_.context);
  }

  Ring* ring_;
  TrainingOptions options_;
  std::vector<Index> positions_;
  Rotary<T> rotary_;
  RingLayers<T, Ring> attention_;
  Parameters<T> parameters_, gradient_;
  AdamW<T> optimizer_;
};

}  // namespace train_bytes
