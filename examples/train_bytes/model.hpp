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
  Matrix<T> last;  ///< residual stream after the last layer
  Normalised<T> head_input;
  Matrix<T> logits;  ///< [rows, 256]: of the byte that follows each row
};

/// bytes: of each row, sequence after sequence; rotary: for the rows of a sequence.
template <class T, class Attention>
Activations<T> model_forward(Parameters<T> const& parameters, std::vector<std::uint8_t> bytes, Rotary<T> const& rotary,
                             Attention& attention) {
  Activations<T> result;
  result.bytes = std::move(bytes);
  result.layers.resize(static_cast<std::size_t>(parameters.shape().layers));
  Matrix<T> x = embed<T>(result.bytes, parameters.embedding());
  for (Index i = 0; i < parameters.shape().layers; ++i)
    x = layer_forward<T>(parameters.layer(i), i, std::move(x), rotary, attention,
                         result.layers[static_cast<std::size_t>(i)]);
  result.last = std::move(x);
  result.head_input = rms_norm<T>(result.last, parameters.final_norm());
  result.logits = result.head_input.output * parameters.embedding().transpose();
  return result;
}

/// Adds the gradients of the parameters to `gradient`, given that of the logits.
template <class T, class Attention>
void model_backward(Parameters<T> const& parameters, Activations<T> const& saved, Matrix<T> const& dlogits,
                    Rotary<T> const& rotary, Attention& attention, Parameters<T>& gradient) {
  gradient.embedding().noalias() += dlogits.transpose() * saved.head_input.output;
  Matrix<T> const dhead_input = dlogits * parameters.embedding();
  Matrix<T> dx = rms_norm_backward<T>(dhead_input, saved.last, saved.head_input.scale, parameters.final_norm(),
                                      gradient.final_norm());
  for (Index i = parameters.shape().layers; i-- > 0;)
    dx = layer_backward<T>(parameters.layer(i), i, dx, rotary, attention, saved.layers[static_cast<std::size_t>(i)],
                           gradient.layer(i));
  embed_backward<T>(dx, saved.bytes, gradient.embedding());
}

}  // namespace train_bytes
