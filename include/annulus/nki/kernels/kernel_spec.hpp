#pragma once
// Shapes, options, tuning and limits of an attention kernel.

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "annulus/nki/hardware/hardware.hpp"

namespace annulus::nki {

inline constexpr Index tile_rows = 128;             ///< rows of a row tile: one per partition
inline constexpr Index most_rows = Index{1} << 21;  ///< most queries or keys per rank
inline constexpr Index widest_dim = 512;            ///< one PSUM bank of fp32

/// lse of a masked row (one that sees no key): -inf as everywhere in Annulus, or 0 as in the vendor's kernels.
enum class MaskedRow {
  minus_infinity,  ///< the logarithm of an empty sum
  zero,            ///< as the vendor's kernels write it
};

/// Operands that rotate in the backward pass.
enum class RotatingSide {
  queries,  ///< pass-Q: q, dout, lse, delta and dq
  keys,     ///< pass-KV: k, v, dk and dv
};

/// An additive bias of the logits, an input [other ranks, batch * query_heads or 1, queries or 1, keys or 1], after the
/// soft cap. Values below -1e30 hide a pair; -2^127 is such a value in float32 and bfloat16. All must be finite.
struct BiasSpec {
  bool given = false;                       ///< there is a bias
  bool by_head = true;                      ///< false: the same for all heads and batch items, extent 1
  bool by_query = true;                     ///< false: the same for all queries, extent 1
  bool by_key = true;                       ///< false: the same for all keys, extent 1
  bool gradient = false;                    ///< the backward kernel also returns dbias, float32, of each head,
                                            ///< query and key: the caller adds what shares an element of the bias
  ElementType type = ElementType::float32;  ///< float32 or bfloat16

  bool operator==(BiasSpec const&) const = default;
};

/// Bias of a pair that a query may not see, exact in bfloat16.
inline constexpr float hiding_bias = -0x1p127f;

/// Shapes and options of a kernel. All ranks hold equally many rows.
struct KernelSpec {
  Target target = Target::trn2;              ///< hardware generation
  int cores = 2;                             ///< LNC: physical cores per rank, 1 or 2
  int ranks = 1;                             ///< ranks of a ring
  int groups = 1;                            ///< rings that run concurrently; rank ids may count through all of them
  AttentionShape shape{};                    ///< heads of one kernel
  Index local_queries = 1;                   ///< query rows of each rank
  Index local_keys = 1;                      ///< key rows of each rank
  ElementType type = ElementType::bfloat16;  ///< of q, k, v, dout: float32, bfloat16, float16
  ElementType output_type = ElementType::bfloat16;  ///< of output
  ElementType lse_type = ElementType::float32;      ///< of lse
  double softmax_scale = 1;                         ///< factor of the product of query and key
  double logit_softcap = 0;                         ///< 0: none
  Index sinks = 0;                                  ///< sink logits per query head
  BiasSpec bias{};                                  ///< of the logits
  /// With dropout 1 / (1 - probability), and an input `kept` of 1 or 0 for each head and pair, as a bias; 0: none. In a
  /// step kernel accumulators are without this factor.
  double keep_scale = 0;
  bool queries_by_token = false;  ///< q is [batch, heads, rows, dim] instead of [batch, heads, dim, rows]
  bool keys_by_token = false;     ///< the same for k
  bool training = true;           ///< the forward kernel also returns lse
  MaskedRow masked_row = MaskedRow::minus_infinity;  ///< lse of a row that sees no key
  RotatingSide travels = RotatingSide::queries;      ///< backward pass only
  bool keys_stationary = false;                      ///< forward ring only: see ForwardKernel::ring

  Index items() const { return shape.batch * shape.kv_heads; }  ///< pairs of batch item and kv head
  Index query_heads_per_item() const { return shape.group(); }  ///< that share a kv head
  /// Of per-row values, [128, columns].
  Index columns() const { return detail::ceil_divide(local_queries, tile_rows); }
  Index widest() const { return std::max(shape.head_dim, shape.value_dim); }  ///< the larger of head_dim and value_dim
  /// [batch, query_heads, local_queries, value_dim].
  std::vector<Index> output_shape() const { return {shape.batch, shape.query_heads, local_queries, shape.value_dim}; }
  /// [batch, query_heads, 128, columns].
  std::vector<Index> lse_shape() const { return {shape.batch, shape.query_heads, tile_rows, columns()}; }
};

/// Largest accepted magnitude of the largest logit of a row. Above it the spacing of float32 exceeds 1, and the
/// exponent depends, up to infinity, on whether ScalarE rounds the product before it adds the bias.
inline constexpr float largest_logit = 0x1p24f;

/// Throws UnsupportedError for options, ShapeError for extents that no kernel supports.
inline void check_spec(KernelSpec const& spec) {
  auto const& shape = spec.shape;
  detail::check<UnsupportedError>(spec.cores == 1 || spec.cores == 2, "nki: lnc is ", spec.cores,
                                  "; a logical core is 1 or 2 physical cores");
  detail::check<UnsupportedError>(spec.ranks >= 1 && spec.groups >= 1, "nki: ", spec.groups, " groups of ", spec.ranks,
                                  " ranks; at least 1 each");
  Index const queries = spec.local_queries, keys = spec.local_keys;
  detail::check<ShapeError>(std::min({shape.batch, shape.query_heads, shape.kv_heads, queries, keys}) >= 1,
                            "nki: batch ", shape.batch, ", query heads ", shape.query_heads, ", kv heads ",
                            shape.kv_heads, ", queries ", queries, ", keys ", keys,
                            "; a kernel needs at least 1 of each");
  detail::check<ShapeError>(std::max(queries, keys) <= most_rows, "nki: ", queries, " queries and ", keys,
                            " keys per rank; range_select counts in fp32, so at most ", most_rows, " of each");
  detail::check<ShapeError>(shape.query_heads % shape.kv_heads == 0, "nki: ", shape.query_heads,
                            " query heads are no multiple of ", shape.kv_heads, " kv heads");
  detail::check<ShapeError>(std::min(shape.head_dim, shape.value_dim) >= 1 && spec.widest() <= widest_dim,
                            "nki: head_dim ", shape.head_dim, ", value_dim ", shape.value_dim, "; each must be 1 to ",
                            widest_dim, ", one PSUM bank");
  detail::check<UnsupportedError>(spec.sinks >= 0, "nki: ", spec.sinks,
                                  " sink logits per query head; accepted: 0 (none) or more");
  detail::check<UnsupportedError>(spec.bias.type == ElementType::float32 || spec.bias.type == ElementType::bfloat16,
                                  "nki: a bias of ", name_of(spec.bias.type),
                                  "; accepted are float32, bfloat16, which hold values that hide a pair");
  detail::check<UnsupportedError>(spec.keep_scale == 0 || spec.keep_scale >= 1, "nki: keep_scale is ", spec.keep_scale,
                                  "; accepted: 0 (no dropout), or 1 and more");
  auto const accepted = [](double factor) { return factor == 0 || (factor >= 0x1p-20 && factor <= 0x1p20); };
  detail::check<UnsupportedError>(
      accepted(std::abs(spec.softmax_scale)), "nki: softmax scale is ", spec.softmax_scale,
      "; its magnitude must be 0 or 2^-20 to 2^20, so that masked scores stay below all others");
  detail::check<UnsupportedError>(accepted(spec.logit_softcap), "nki: logit soft cap is ", spec.logit_softcap,
                                  "; it must be 0 (none) or 2^-20 to 2^20");
}

/// Rows of the shortest halves of a zigzag shard between which a kernel chooses at run time, and at whose ends it cuts
/// row tiles: a choice of shorter ones would take longer than their products.
inline constexpr Index least_half = 400;

/// Distribution of the work over engines and buffers, tuned with the cost model.
struct ForwardTuning {
  Index dma_transposed = 9;            ///< of every 16 full 128 x 128 blocks of P^T, this many are transposed by DMA
  Index least_half = nki::least_half;  ///< see there

  static constexpr Index group_keys = 4096;  ///< most keys between two corrections of the accumulator
  static constexpr Index slot_keys = 2304;   ///< short units share a pipeline slot until it has this many keys
  static constexpr Index query_tiles = 2;    ///< adjacent row tiles whose queries one DMA loads
  static constexpr Index load_keys = 1024;   ///< keys that one DMA loads
  static constexpr Index span_keys = 512;    ///< keys that one instruction moves out of PSUM: a bank
  static constexpr Index vector_share = 3;   ///< of the other blocks VectorE copies one in this many, ScalarE the rest
  static constexpr Index dma_shortest = 2048;  ///< keys; shorter slots would wait for the latency of DMA transposes
  static constexpr Index dma_blocks = 4;       ///< blocks of P^T per DMA, to amortise its latency
  static constexpr Index permute_keys = 640;   ///< TensorE transposes all blocks of so many keys per us of a permute
  static constexpr Index permute_vector_share = 2;  ///< vector_share during a permute
};

/// Throws UnsupportedError for more units of work (a query tile with a key group) than a program may have.
inline void check_units(std::size_t units) {
  constexpr std::size_t most = std::size_t{1} << 19;
  detail::check<UnsupportedError>(
      units <= most, "nki: a kernel of more than ", most,
      " pairs of query tile and key group; its program would fill the memory of this machine, and no "
      "compiler would take it: use more ranks, or fewer heads to a kernel");
}

/// Negated maximum of a row that has seen no key yet. Masked scores, which are the lowest float times the multiplier,
/// stay far below -1e30.
inline constexpr float empty_negated_maximum = 1e30f;

/// True for a bias that hides its pair of a query and a key.
constexpr bool hides_pair(float bias) { return bias < -empty_negated_maximum; }

/// Two bfloat16 numbers whose sum is within 2^-17 of the factor. The second of a power of two is 0.
inline std::array<float, 2> bfloat16_parts(float factor) {
  std::array<float, 2> parts{};
  for (float& part : parts) {
    int exponent = 0;
    part = std::nearbyint(std::frexp(factor, &exponent) * 256);
    factor -= part = std::ldexp(part, exponent - 8);
  }
  return parts;
}

/// True if TensorE adds the bias, times bfloat16_parts(1 / multiplier), to the product of query and key of several
/// keys. Logits are within 2^-17 of the bias then: no soft cap stands between them, and operands of 16 bits are less
/// precise. With a scale below 2^-9 the two parts of a bias that hides its pair could be infinities of opposite signs.
inline bool adds_bias_to_product(KernelSpec const& spec) {
  return spec.bias.given && spec.bias.by_key && spec.local_keys > 1 && spec.bias.type == ElementType::bfloat16 &&
         bytes_of(spec.type) == 2 && spec.logit_softcap == 0 &&
         (spec.softmax_scale == 0 || std::abs(spec.softmax_scale) >= 0x1p-9);
}

/// Factors of a logit: multiplier * f(product * inner), f = tanh with a soft cap, else the identity. With a bias that
/// is not added to the product it is before_bias * f(product * inner) + bias, and the multiplier is 1. The multiplier
/// is positive: the sign of the scale, or zero, is applied to the queries, which is exact.
struct LogitFactors {
  float query_factor = 1;  ///< of the queries: 1, -1 or 0
  float inner = 1;         ///< of the product of query and key
  float multiplier = 1;    ///< of the result
  float before_bias = 1;   ///< of f, with a bias
  bool capped = false;     ///< f is tanh
};
/// Factors for the softmax_scale and logit_softcap of a spec.
inline LogitFactors logit_factors(KernelSpec const& spec) {
  LogitFactors factors;
  double const positive = spec.softmax_scale == 0 ? 1 : std::abs(spec.softmax_scale);
  factors.query_factor = spec.softmax_scale > 0 ? 1.0f : spec.softmax_scale < 0 ? -1.0f : 0.0f;
  factors.multiplier = static_cast<float>(positive);
  if (spec.logit_softcap > 0) {
    factors.capped = true;
    factors.inner = static_cast<float>(positive / spec.logit_softcap);
    factors.multiplier = static_cast<float>(spec.logit_softcap);
  }
  if (spec.bias.given && !adds_bias_to_product(spec)) factors.before_bias = std::exchange(factors.multiplier, 1.0f);
  return factors;
}

/// Chunks of up to 128 partitions into which a contraction over `dim` elements is cut.
struct Chunks {
  Index dim = 0;                                                                          ///< elements
  Index count() const { return detail::ceil_divide(dim, tile_rows); }                     ///< number of chunks
  Index size(Index chunk) const { return std::min(tile_rows, dim - chunk * tile_rows); }  ///< partitions of a chunk
  Index largest() const { return std::min(tile_rows, dim); }  ///< partitions of the largest chunk
};

}  // namespace annulus::nki
