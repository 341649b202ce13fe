#pragma once
// Operands made from a text: each byte is a token, embedded by a fixed table and given rotary positions.

#include <algorithm>
#include <annulus/numerics/philox.hpp>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "call_tensors.hpp"

namespace annulus_command {

namespace detail {

enum class Table : std::uint32_t { query, key, value, output_gradient };

/// Pseudo-random number, uniform between -sqrt(3) and sqrt(3) (mean 0, variance 1); a pure function of its arguments.
inline float fixed_number(Table table, annulus::Index row, annulus::Index head, annulus::Index dim) {
  auto const words = annulus::philox4x32({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(head),
                                          static_cast<std::uint32_t>(dim / 4), static_cast<std::uint32_t>(table)},
                                         {0x616e6e75u, 0x6c757321u});
  double const unit = static_cast<double>(words[static_cast<std::size_t>(dim % 4)]) / 4294967296.0;
  return static_cast<float>((2 * unit - 1) * std::sqrt(3.0));
}

/// Rotary embedding: rotates each pair of dims by its frequency times the position (Su et al., arXiv 2104.09864).
inline void rotate_pairs(float* row, annulus::Index dims, annulus::Index position) {
  for (annulus::Index d = 0; d + 1 < dims; d += 2) {
    double const frequency = std::pow(10000.0, -static_cast<double>(d) / static_cast<double>(dims));
    double const angle = static_cast<double>(position) * frequency;
    double const x = row[d], y = row[d + 1];
    row[d] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
    row[d + 1] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
  }
}

}  // namespace detail

/// Global inputs of call.shape.queries positions, axes bshd, batch 1; the text is repeated or truncated to that length.
/// dout is a fixed pseudo-random tensor.
inline Inputs<float> inputs_of_text(std::string_view text, Call const& call) {
  using detail::Table;
  annulus::Index const tokens = call.shape.queries;
  Inputs<float> inputs = make_inputs<float>(call, {tokens, tokens});
  auto const fill = [&](Tensor<float, 4>& tensor, Table table) {
    annulus::Index const heads = tensor.dimension(2), dims = tensor.dimension(3);
    for (annulus::Index i = 0; i < tokens; ++i) {
      auto const byte = static_cast<unsigned char>(text[static_cast<std::size_t>(i) % text.size()]);
      annulus::Index const row = table == Table::output_gradient ? i : byte;
      for (annulus::Index h = 0; h < heads; ++h) {
        float* const vector = &tensor(0, i, h, 0);
        for (annulus::Index d = 0; d < dims; ++d) vector[d] = detail::fixed_number(table, row, h, d);
        if (table == Table::query || table == Table::key) detail::rotate_pairs(vector, dims, i);
      }
    }
  };
  fill(inputs.q, Table::query);
  fill(inputs.k, Table::key);
  fill(inputs.v, Table::value);
  fill(*inputs.dout, Table::output_gradient);
  return inputs;
}

}  // namespace annulus_command
