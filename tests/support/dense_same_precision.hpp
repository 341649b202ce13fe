#pragma once
// Plain dense attention in mixed precision: its error against the oracle is the reference for that of the library.
//
// `round_to` must not change the operands of the problem, nor dout. Arithmetic, logits and softmax
// statistics are float; probabilities as they multiply v, logit gradients as they multiply q and k, output and
// gradients are narrowed by `round_to` (double -> double), once each; lse stays float.

#include <vector>

#include "support/dense_attention.hpp"

namespace annulus_test {

template <class Round>
OracleForward dense_same_precision_forward(OracleProblem const& problem, Round const& round_to) {
  return oracle_detail::dense_forward<float>(problem, round_to);
}

template <class Round>
OracleGradients dense_same_precision_backward(OracleProblem const& problem, std::vector<double> const& dout,
                                              Round const& round_to) {
  return oracle_detail::dense_backward<float>(problem, dout, round_to);
}

}  // namespace annulus_test
