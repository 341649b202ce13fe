#pragma once
// Byte-level transformer: embedding, layers, and a head that shares the embedding's matrix. Rows of one or more
// sequences go through it together; only attention connects them, and the caller supplies it (layer.hpp).

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "embedding.hpp"
#include "layer.hpp"
#include "linear.hpp"
#include "matrix.hpp"
#include "parameters.hpp"
#include "rms_norm.hpp"
#include "rotary.hpp"

namespace train_bytes {

/// Logits of a forward pass, and what the backward pass reads.
template <class T>
struct Activations {
  std::vector<std::uint8_t> bytes;
  std::vector<LayerActivations<T>> layers;
  Matrix<T> last;  ///< residual stream after the last layer so far
  Normalised<T> head_input;
  Matrix<T> logits;  ///< [rows, 256]: of the byte that follows each row
};

/// Begins a forward pass: the residual stream is that of the embedded bytes. bytes: of each row, sequence after
/// sequence.
template <class T>
Activations<T> embedded(Parameters<T> const& parameters, std::vector<std::uint8_t> bytes) {
  Activations<T> result;
  result.bytes = std::move(bytes);
  result.layers.resize(static_cast<std::size_t>(parameters.shape().layers));
  result.last = embed<T>(result.bytes, parameters.embedding());
  return result;
}

/// Ends a forward pass, after the last layer: computes the logits.
template <class T>
void head(Parameters<T> const& parameters, Activations<T>& activations) {
  activations.head_input = rms_norm<T>(activations.last, parameters.final_norm());
  activations.logits = activations.head_input.output * parameters.embedding().transpose();
}

/// Backward pass of head, given the gradient of the logits: adds the gradients of the parameters to `gradient`, and
/// returns that of the residual stream.
template <class T>
Matrix<T> head_backward(Parameters<T> const& parameters, Activations<T> const& saved, Matrix<T> const& dlogits,
                        Parameters<T>& gradient) {
  gradient.embedding().noalias() += dlogits.transpose() * saved.head_input.output;
  Matrix<T> const dhead_input = dlogits * parameters.embedding();
  return rms_norm_backward<T>(dhead_input, saved.last, saved.head_input.scale, parameters.final_norm(),
                              gradient.final_norm());
}

/// rotary: for the rows of a sequence.
template <class T, class Attention>
Activations<T> model_forward(Parameters<T> const& parameters, std::vector<std::uint8_t> bytes, Rotary<T> const& rotary,
                             Attention& attention) {
  Activations<T> result = embedded(parameters, std::move(bytes));
  for (Index i = 0; i < parameters.shape().layers; ++i)
    result.last = layer_forward<T>(parameters.layer(i), i, std::move(result.last), rotary, attention,
                                   result.layers[static_cast<std::size_t>(i)]);
  head(parameters, result);
  return result;
}

}  // namespace train_bytes
