#pragma once
// Gated activation silu(gate) * up, element by element (Shazeer, arXiv 2002.05202); silu(x) = x / (1 + exp(-x)).

#include "matrix.hpp"

namespace train_bytes {

template <class T>
Matrix<T> swiglu(Matrix<T> const& gate, Matrix<T> const& up) {
  return gate.array() / (T(1) + (-gate.array()).exp()) * up.array();
}

/// Gradients of gate and up.
template <class T>
struct SwigluGradients {
  Matrix<T> dgate, dup;
};

template <class T>
SwigluGradients<T> swiglu_backward(Matrix<T> const& doutput, Matrix<T> const& gate, Matrix<T> const& up) {
  Matrix<T> const sigmoid = (T(1) + (-gate.array()).exp()).inverse();
  SwigluGradients<T> result;
  result.dup = doutput.array() * gate.array() * sigmoid.array();
  result.dgate = doutput.array() * up.array() * sigmoid.array() * (T(1) + gate.array() * (T(1) - sigmoid.array()));
  return result;
}

}  // namespace train_bytes
