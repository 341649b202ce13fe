#pragma once
// One layer of the model: attention and a gated feed-forward network, each on normalised rows and added to the residual
// stream.

#include <utility>

#include "linear.hpp"
#include "matrix.hpp"
#include "parameters.hpp"
#include "rms_norm.hpp"
#include "rotary.hpp"
#include "swiglu.hpp"

namespace train_bytes {

/// Queries, keys and values [batch * positions, heads * head_dim], or their gradients.
template <class T>
struct Projections {
  Matrix<T> q, k, v;
};

/// What the backward pass of a layer reads.
template <class T>
struct LayerActivations {
  Matrix<T> input;
  Normalised<T> attention_input;
  Projections<T> rotated;  ///< q and k with their rotary positions
  Matrix<T> attended;
  Matrix<T> middle;  ///< residual stream between attention and the feed-forward network
  Normalised<T> feed_forward_input;
  Matrix<T> gate, up, hidden;
};

// A layer is computed in two halves, before and after its attention, which connects rows of all blocks and ranks.

/// The half before the attention: stores the input and its rotated projections.
template <class T>
void project(LayerWeights<T const> const& weights, Matrix<T> input, Rotary<T> const& rotary,
             LayerActivations<T>& saved) {
  saved.input = std::move(input);
  saved.attention_input = rms_norm<T>(saved.input, weights.attention_norm);
  Matrix<T> const& x = saved.attention_input.output;
  saved.rotated = {x * weights.query, x * weights.key, x * weights.value};
  rotary.rotate(saved.rotated.q);
  rotary.rotate(saved.rotated.k);
}

/// The half after it: returns the residual stream after the layer, and stores what the backward pass reads.
template <class T>
Matrix<T> feed_forward(LayerWeights<T const> const& weights, Matrix<T> attended, LayerActivations<T>& saved) {
  saved.attended = std::move(attended);
  saved.middle = saved.input;
  saved.middle.noalias() += saved.attended * weights.output;

  saved.feed_forward_input = rms_norm<T>(saved.middle, weights.feed_forward_norm);
  saved.gate = saved.feed_forward_input.output * weights.gate;
  saved.up = saved.feed_forward_input.output * weights.up;
  saved.hidden = swiglu(saved.gate, saved.up);
  Matrix<T> output = saved.middle;
  output.noalias() += saved.hidden * weights.down;
  return output;
}

/// Returns the residual stream after layer number `layer`, and stores what the backward pass reads.
///
/// attention.forward(layer, projections) returns the attention output of all rows: the layer does not know where the
/// other keys are, on this rank, on a ring or in a cache.
template <class T, class Attention>
Matrix<T> layer_forward(LayerWeights<T const> const& weights, Index layer, Matrix<T> input, Rotary<T> const& rotary,
                        Attention& attention, LayerActivations<T>& saved) {
  project(weights, std::move(input), rotary, saved);
  return feed_forward(weights, attention.forward(layer, saved.rotated), saved);
}

/// Gradients of what follows the attention of a layer.
template <class T>
struct MiddleGradients {
  Matrix<T> middle;    ///< of the residual stream
  Matrix<T> attended;  ///< of the output of the attention
};

/// Backward pass of feed_forward: adds the gradients of its weights to `gradient`.
template <class T>
MiddleGradients<T> feed_forward_backward(LayerWeights<T const> const& weights, Matrix<T> const& doutput,
                                         LayerActivations<T> const& saved, LayerWeights<T> gradient) {
  Matrix<T> const dhidden = linear_backward<T>(doutput, saved.hidden, weights.down, gradient.down);
  auto const [dgate, dup] = swiglu_backward(dhidden, saved.gate, saved.up);
  Matrix<T> const& y = saved.feed_forward_input.output;
  Matrix<T> dnormalised = linear_backward<T>(dgate, y, weights.gate, gradient.gate);
  dnormalised += linear_backward<T>(dup, y, weights.up, gradient.up);
  Matrix<T> dmiddle = doutput + rms_norm_backward<T>(dnormalised, saved.middle, saved.feed_forward_input.scale,
                                                     weights.feed_forward_norm, gradient.feed_forward_norm);

  Matrix<T> dattended = linear_backward<T>(dmiddle, saved.attended, weights.output, gradient.output);
  return {std::move(dmiddle), std::move(dattended)};
}

/// Backward pass of project, given the gradients of the residual stream and of the projections: adds the gradients of
/// its weights to `gradient`, and returns that of the layer's input.
template <class T>
Matrix<T> project_backward(LayerWeights<T const> const& weights, Matrix<T> const& dmiddle, Projections<T> d,
                           Rotary<T> const& rotary, LayerActivations<T> const& saved, LayerWeights<T> gradient) {
  rotary.rotate_backward(d.q);
  rotary.rotate_backward(d.k);
  Matrix<T> const& x = saved.attention_input.output;
  Matrix<T> dnormalised = linear_backward<T>(d.q, x, weights.query, gradient.query);
  dnormalised += linear_backward<T>(d.k, x, weights.key, gradient.key);
  dnormalised += linear_backward<T>(d.v, x, weights.value, gradient.value);
  return dmiddle + rms_norm_backward<T>(dnormalised, saved.input, saved.attention_input.scale, weights.attention_norm,
                                        gradient.attention_norm);
}

/// Adds the gradients of the weights to `gradient`, and returns that of the layer's input.
///
/// attention.backward(layer, dattended, projections, attended) returns the gradients of the projections.
template <class T, class Attention>
Matrix<T> layer_backward(LayerWeights<T const> const& weights, Index layer, Matrix<T> const& doutput,
                         Rotary<T> const& rotary, Attention& attention, LayerActivations<T> const& saved,
                         LayerWeights<T> gradient) {
  auto const [dmiddle, dattended] = feed_forward_backward(weights, doutput, saved, gradient);
  return project_backward(weights, dmiddle, attention.backward(layer, dattended, saved.rotated, saved.attended), rotary,
                          saved, gradient);
}

}  // namespace train_bytes
