#pragma once
// Logit rule: the product of a query and a key is scaled, then soft-capped. A bias is added afterwards.

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
