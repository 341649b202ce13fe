#pragma once
// Benchmark case: one pass of self-attention over one sequence.

#include <annulus/attention/options.hpp>
#include <annulus/core/index.hpp>
#include <annulus/core/scalar.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/values.hpp"

namespace annulus_bench {

using annulus::DataType;
using annulus::Index;
using annulus::Pass;

enum class MaskKind {
  full,
  causal,
  window,  ///< each query sees itself and the 1023 keys before it
  packed,            ///< 16 documents of different lengths, which do not see each other
  documents,         ///< 16 documents of one length
  causal_documents,  ///< the same, each with a causal mask
};

inline std::string name_of(MaskKind kind) {
  constexpr char const* names[] = {"full", "causal", "window", "packed", "documents", "causal_documents"};
  return names[static_cast<int>(kind)];
}

inline bool is_causal(MaskKind kind) { return kind == MaskKind::causal || kind == MaskKind::causal_documents; }
inline bool has_documents(MaskKind kind) { return kind >= MaskKind::packed; }

/// An option or optional operand that a case has beside its mask.
enum class OptionKind {
  none,
  soft_cap,
  bias,           ///< [1, heads, queries, keys]
  bias_row,       ///< [1, heads, 1, keys]
  bias_gradient,  ///< bias with its gradient, in the backward pass
  dropout,
  mask_true,    ///< boolean mask [1, 1, queries, keys], all true
  mask_random,  ///< 7 of 8 pairs are visible, at random
  mask_blocks,  ///< 1 of 4 blocks of 256 x 256 pairs is visible, and the diagonal
  predicate,    ///< k <= q; counted like a causal mask
};

inline std::string name_of(OptionKind kind) {
  constexpr char const* names[] = {"none",    "soft_cap",  "bias",        "bias_row",    "bias_gradient",
                                   "dropout", "mask_true", "mask_random", "mask_blocks", "predicate"};
  return names[static_cast<int>(kind)];
}

struct AttentionCase {
  Pass pass = Pass::forward;
  MaskKind mask = MaskKind::full;
  OptionKind option = OptionKind::none;
  DataType type = DataType::float32;
  Index tokens = 4096;
  Index head_dim = 64;
  Index heads = 4;
  int threads = 1;

  std::string name() const {
    std::string name = pass == Pass::forward ? "forward/" : "backward/";
    name += name_of(mask);
    if (option != OptionKind::none) name += "+" + name_of(option);
    name += "/" + std::string(annulus::name_of(type)) + "/tokens:" + std::to_string(tokens);
    return name + "/dim:" + std::to_string(head_dim) + "/heads:" + std::to_string(heads) +
           "/threads:" + std::to_string(threads);
  }
};

inline constexpr Index window_keys = 1024, documents_of_case = 16;

/// First position of document `document`, 0 to documents_of_case. Lengths of MaskKind::packed are about 0.5 to 1.5
/// times the mean.
inline Index document_begin(MaskKind mask, Index document, Index tokens) {
  if (document == 0 || document == documents_of_case) return document == 0 ? 0 : tokens;
  Index const moved = mask == MaskKind::packed ? (document * 37) % 16 - 8 : 0;  // in 1/32 of the mean length
  return (tokens * (32 * document + moved)) / (32 * documents_of_case);
}

/// Document id of each token, counted from 1.
inline std::vector<std::int32_t> document_ids(MaskKind mask, Index tokens) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (Index document = 0; document < documents_of_case; ++document)
    std::fill(ids.begin() + document_begin(mask, document, tokens),
              ids.begin() + document_begin(mask, document + 1, tokens), static_cast<std::int32_t>(document + 1));
  return ids;
}

/// Visible pairs of query and key per head.
inline double visible_pairs(MaskKind mask, Index tokens) {
  auto const of_length = [&](Index length) {
    auto const n = static_cast<double>(length);
    return is_causal(mask) ? n * (n + 1) / 2 : n * n;
  };
  if (mask == MaskKind::window) {
    auto const ramp = static_cast<double>(std::min(tokens, window_keys));
    return ramp * (ramp + 1) / 2 + (static_cast<double>(tokens) - ramp) * ramp;
  }
  if (!has_documents(mask)) return of_length(tokens);
  double sum = 0;
  for (Index document = 0; document < documents_of_case; ++document)
    sum += of_length(document_begin(mask, document + 1, tokens) - document_begin(mask, document, tokens));
  return sum;
}

inline constexpr double soft_cap = 3, dropout_probability = 0.25;
inline constexpr std::uint64_t dropout_seed = 7;

/// Whether the boolean mask of a case shows a pair.
inline bool mask_at(OptionKind kind, Index query, Index key) {
  if (kind == OptionKind::mask_random) return value_at(20, static_cast<std::uint64_t>(query << 20 | key)) < 1.3f;
  if (kind == OptionKind::mask_blocks) return query / 256 == key / 256 || (query / 256 + 3 * (key / 256)) % 4 == 0;
  return true;
}

/// Pairs that count as work. A random mask hides pairs within every block, so that all of them are computed.
inline double counted_pairs(AttentionCase const& c) {
  if (c.option == OptionKind::predicate) return visible_pairs(MaskKind::causal, c.tokens);
  if (c.option != OptionKind::mask_blocks) return visible_pairs(c.mask, c.tokens);
  double pairs = 0;
  for (Index query = 0; query < c.tokens; query += 256)
    for (Index key = 0; key < c.tokens; key += 256)
      if (mask_at(c.option, query, key))
        pairs += static_cast<double>(std::min<Index>(256, c.tokens - query) * std::min<Index>(256, c.tokens - key));
  return pairs;
}

/// Floating-point operations: two products per visible pair in the forward pass, five in the backward pass.
inline double operations(AttentionCase const& c) {
  double const products = c.pass == Pass::forward ? 2 : 5;
  return 2 * products * counted_pairs(c) * static_cast<double>(c.heads * c.head_dim);
}

inline annulus::Mask mask_of(MaskKind kind) {
  if (is_causal(kind)) return annulus::causal();
  if (kind == MaskKind::window) return annulus::sliding_window(window_keys - 1, 0);
  return annulus::full();
}

}  // namespace annulus_bench
