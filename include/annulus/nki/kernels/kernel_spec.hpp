#pragma once
// Shapes, options, tuning and limits of an attention kernel.

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
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
  Index columns() const {
    return detail::ceil_divide(local_queries, tile_rows);
  }                                                                           ///< of per-row values, [128, columns]
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
  detail::check<ShapeError>(shape.batch >= 1 && shape.query_heads >= 1 && shape.kv_heads >= 1 &&
                                spec.local_queries >= 1 && spec.local_keys >= 1,
                            "nki: batch ", shape.batch, ", query heads ", shape.query_heads, ", kv heads ",
                            shape.kv_heads, ", queries ", spec.local_queries, ", keys ", spec.local_keys,
                            "; a kernel needs at least 1 of each");
  detail::check<ShapeError>(spec.local_queries <= most_rows && spec.local_keys <= most_rows,
                            "nki: ", spec.local_queries, " queries and ", spec.local_keys,
                            " keys per rank; range_select counts in fp32, so at most ", most_rows, " of each");
  detail::check<ShapeError>(shape.query_heads % shape.kv_heads == 0, "nki: ", shape.query_heads,
                            " query heads are no multiple of ", shape.kv_heads, " kv heads");
  detail::check<ShapeError>(
      shape.head_dim >= 1 && shape.head_dim <= widest_dim && shape.value_dim >= 1 && shape.value_dim <= widest_dim,
      "nki: head_dim ", shape.head_dim, ", value_dim ", shape.value_dim, "; each must be 1 to ", widest_dim,
      ", one PSUM bank");
  detail::check<UnsupportedError>(spec.sinks >= 0, "nki: ", spec.sinks,
                                  " sink logits per query head; accepted: 0 (none) or more");
  detail::check<UnsupportedError>(spec.bias.type == ElementType::float32 || spec.bias.type == ElementType::bfloat16,
                                  "nki: a bias of ", name_of(spec.bias.type),
                                  "; accepted are float32, bfloat16, which hold values that hide a pair");
  detail::check<UnsupportedError>(spec.keep_scale == 0 || spec.keep_scale >= 1, "nki: keep_scale is ", spec.keep_scale,
                                  "; accepted: 0 (no dropout), or 1 and more");
  double const scale = std::abs(spec.softmax_scale);
  detail::check<UnsupportedError>(
      scale == 0 || (scale >= 0x1p-20 && scale <= 0x1p20), "nki: softmax_scale is ", spec.softmax_scale,
      "; its magnitude must be 0 or 2^-20 to 2^20, so that masked scores stay below all others");
  detail::check<UnsupportedError>(
      spec.logit_softcap == 0 || (spec.logit_softcap >= 0x1p-20 && spec.logit_softcap <= 0x1p20),
      "nki: logit_softcap is ", spec.logit_softcap, "; it must be 0 (none) or 2^-20 to 2^20");
}

/// Distribution of the work over engines and buffers, tuned with the cost model. Key counts are multiples of 128.
struct ForwardTuning {
  Index group_keys = 4096;    ///< keys between two corrections of the accumulator
  Index slot_keys = 2304;     ///< short units share a pipeline slot until it has this many keys
  Index query_tiles = 2;      ///< adjacent row tiles whose queries one DMA loads
  Index load_keys = 1024;     ///< keys that one DMA loads
  Index span_keys = 512;      ///< keys that one instruction moves out of PSUM; 512 are a bank
  Index dma_transposed = 9;   ///< of every 16 full 128 x 128 blocks of P^T, this many are transposed by DMA
  Index vector_share = 3;     ///< of the others, VectorE copies one in this many out of PSUM, ScalarE the rest
  Index dma_shortest = 2048;  ///< keys; shorter slots use no DMA transposes, whose latency would stall them
  Index dma_blocks = 4;       ///< blocks of P^T per DMA, to amortise its latency, as in published kernels
  Index permute_keys = 640;   ///< for each microsecond of a permute, TensorE transposes all blocks of this many keys
  Index permute_vector_share = 2;  ///< vector_share during a permute
  /// Rows of a half of a zigzag shard; shorter ones are not chosen at run time: it would take longer than their
  /// products. At most 512 count with stationary keys.
  Index least_half = 576;
};

/// Throws UnsupportedError if a member is out of range.
inline void check_tuning(ForwardTuning const& tuning) {
  auto const keys = [](char const* name, Index value, Index least) {
    detail::check<UnsupportedError>(value >= least && value % tile_rows == 0 && value <= most_rows, "nki: ", name,
                                    " is ", value, "; it must be a multiple of ", tile_rows, " from ", least, " to ",
                                    most_rows);
  };
  keys("group_keys", tuning.group_keys, tile_rows);
  keys("slot_keys", tuning.slot_keys, 0);
  keys("load_keys", tuning.load_keys, tile_rows);
  keys("dma_shortest", tuning.dma_shortest, 0);
  detail::check<UnsupportedError>(tuning.span_keys == 512 || tuning.span_keys == 1024 || tuning.span_keys == 2048,
                                  "nki: span_keys is ", tuning.span_keys,
                                  "; PSUM has banks of 512 scores: 512, 1024 or 2048");
  auto const within = [](char const* name, Index value, Index least, Index most) {
    detail::check<UnsupportedError>(value >= least && value <= most, "nki: ", name, " is ", value, "; ", least, " to ",
                                    most);
  };
  within("query_tiles", tuning.query_tiles, 1, 16);
  within("dma_transposed, which counts of 16 blocks,", tuning.dma_transposed, 0, 16);
  within("vector_share", tuning.vector_share, 1, most_rows);
  within("dma_blocks", tuning.dma_blocks, 1, 16);
  within("permute_keys", tuning.permute_keys, 0, most_rows);
  within("permute_vector_share", tuning.permute_vector_share, 1, most_rows);
  within("least_half", tuning.least_half, 1, most_rows);
}

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
  double const scale = std::abs(spec.softmax_scale);
  factors.query_factor = spec.softmax_scale > 0 ? 1.0f : spec.softmax_scale < 0 ? -1.0f : 0.0f;
  factors.multiplier = scale > 0 ? static_cast<float>(scale) : 1.0f;
  if (spec.logit_softcap > 0) {
    factors.capped = true;
    factors.inner = static_cast<float>((scale > 0 ? scale : 1.0) / spec.logit_softcap);
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
