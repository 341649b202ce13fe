#pragma once
// From the product of a query and a key to the logit: scale, then soft cap. A bias is added after it.

#include <cmath>
#include <concepts>

namespace annulus {

/// logit = cap(x) with x = product * scale; cap(x) = softcap * tanh(x / softcap), or x where softcap is 0.
template <std::floating_point A>
struct LogitRule {
  A scale;
  A softcap;

  A operator()(A product) const {
    A const x = product * scale;
    return softcap > A(0) ? softcap * std::tanh(x / softcap) : x;
  }

  /// d logit / d product, given the logit before any bias.
  A slope(A capped) const {
    if (!(softcap > A(0))) return scale;
    A const tanh = capped / softcap;
    return scale * (A(1) - tanh * tanh);
  }
};

}  // namespace annulus
