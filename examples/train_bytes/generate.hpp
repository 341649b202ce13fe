#pragma once
// Text drawn from a trained model, byte by byte, on one rank. The keys and values of earlier bytes are cached, so each
// byte costs a forward pass of one row.

#include <annulus/annulus.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cached_layers.hpp"
#include "model.hpp"
#include "rotary.hpp"
#include "text.hpp"

namespace train_bytes {

/// A byte drawn from softmax(logits / temperature); at temperature 0 the most likely one.
template <class T>
std::uint8_t sample(Row<T> const& logits, double temperature, std::mt19937_64& engine) {
  Index likeliest = 0;
  double const largest = static_cast<double>(logits.maxCoeff(&likeliest));
  if (temperature == 0) return static_cast<std::uint8_t>(likeliest);
  std::vector<double> weights;
  for (Index i = 0; i < logits.size(); ++i)
    weights.push_back(std::exp((static_cast<double>(logits[i]) - largest) / temperature));
  return static_cast<std::uint8_t>(std::discrete_distribution<int>(weights.begin(), weights.end())(engine));
}

/// `count` bytes that continue the prompt, which has at least one byte. A byte sees the last `context` bytes.
template <class T>
std::string generate(Parameters<T> const& parameters, std::string_view prompt, Index count, Index context,
                     double temperature, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::string generated;
  annulus::SelfRing ring;
  CachedLayers<T, annulus::SelfRing> attention(ring, parameters.shape(), static_cast<Index>(prompt.size()) + count,
                                               context);
  Bytes bytes(prompt.begin(), prompt.end());
  Index position = 0;
  for (Index i = 0; i < count; ++i) {
    std::vector<Index> positions(bytes.size());
    std::iota(positions.begin(), positions.end(), position);
    position += static_cast<Index>(bytes.size());
    auto const activations =
        model_forward(parameters, bytes, Rotary<T>(positions, parameters.shape().head_dim()), attention);
    bytes = {sample<T>(activations.logits.row(activations.logits.rows() - 1), temperature, engine)};
    generated += static_cast<char>(bytes.front());
  }
  return generated;
}

}  // namespace train_bytes
