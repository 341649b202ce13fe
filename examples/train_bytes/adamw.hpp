#pragma once
// AdamW (Loshchilov and Hutter, arXiv 1711.05101), clipping of the gradient, and the learning rate over a run.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "matrix.hpp"
#include "parameters.hpp"

namespace train_bytes {

/// Scales the gradient to the norm `limit` if it is longer. Returns its norm before, summed in double.
template <class T>
double clip(Column<T>& gradient, double limit) {
  double const norm = gradient.template cast<double>().norm();
  if (norm > limit) gradient *= static_cast<T>(limit / norm);
  return norm;
}

/// Factor of the peak learning rate: a linear warm-up, then half a cosine from 1 to 0.1. `progress`: share of the run
/// that is done, 0 to 1.
inline double learning_rate_factor(Index step, Index warm_up_steps, double progress) {
  double const warm_up = static_cast<double>(step + 1) / static_cast<double>(warm_up_steps + 1);
  double const decay = 0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * std::clamp(progress, 0.0, 1.0)));
  return std::min(warm_up, decay);
}

template <class T>
class AdamW {
 public:
  AdamW(ModelShape const& shape, double weight_decay)
      : weight_decay_(weight_decay),
        mean_(Column<T>::Zero(shape.parameters())),
        square_(Column<T>::Zero(shape.parameters())) {}

  /// One step. The weights decay, but the gains of the norms do not.
  void step(Parameters<T>& parameters, Column<T> const& gradient, double learning_rate) {
    ++steps_;
    mean_ = static_cast<T>(beta1) * mean_ + static_cast<T>(1 - beta1) * gradient;
    square_ = static_cast<T>(beta2) * square_ + static_cast<T>(1 - beta2) * gradient.cwiseAbs2();
    double const n = static_cast<double>(steps_);
    T const rate = static_cast<T>(learning_rate / (1 - std::pow(beta1, n)));
    T const bias = static_cast<T>(1 / (1 - std::pow(beta2, n)));
    parameters.values().head(parameters.shape().matrix_elements()) *= static_cast<T>(1 - learning_rate * weight_decay_);
    parameters.values().array() -= rate * mean_.array() / ((bias * square_.array()).sqrt() + static_cast<T>(epsilon));
  }

 private:
  static constexpr double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;

  double weight_decay_;
  Column<T> mean_, square_;  ///< running averages of the gradient and its squares
  Index steps_ = 0;
};

}  // namespace train_bytes
