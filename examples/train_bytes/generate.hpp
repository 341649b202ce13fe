#pragma once
// Text drawn from a trained model, byte by byte, on one rank. Each byte costs a forward pass over all bytes before it.

#include <annulus/annulus.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "model.hpp"
#include "ring_layers.hpp"
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

/// `count` bytes that continue the prompt, which has at least one byte. The model sees the last `context` bytes.
template <class T>
std::string generate(Parameters<T> const& parameters, std::string_view prompt, Index count, Index context,
                     double temperature, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  Bytes bytes(prompt.begin(), prompt.end());
  std::string generated;
  annulus::SelfRing ring;
  for (Index i = 0; i < count; ++i) {
    auto const seen = std::min(static_cast<Index>(bytes.size()), context);
    std::vector<Index> positions(static_cast<std::size_t>(seen));
    std::iota(positions.begin(), positions.end(), Index{0});
    // A new one for each byte, since the first call fixes the number of rows.
    RingLayers<T, annulus::SelfRing> attention(ring, parameters.shape(), 1, annulus::Contiguous{});
    auto const activations = model_forward(parameters, Bytes(bytes.end() - seen, bytes.end()),
                                           Rotary<T>(positions, parameters.shape().head_dim()), attention);
    bytes.push_back(sample<T>(activations.logits.row(seen - 1), temperature, engine));
    generated += static_cast<char>(bytes.back());
  }
  return generated;
}

}  // namespace train_bytes
