#pragma once
// Runs a ring problem through the ejkernel adapter, forward and backward.

#include <annulus/interop/ejkernel.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "support/random_ring_problem.hpp"
#include "support/ring_run.hpp"

namespace annulus_test {

/// A random sweep problem without features that ejkernel does not have: contiguous shards, query_offset 0, no sink
/// tokens, a window with both sides or none, no wire type.
inline RingProblem random_ejkernel_problem(std::uint64_t seed, int ranks) {
  RingProblem problem = random_ring_problem(seed);
  OracleProblem& d = problem.dense;
  problem.ranks = ranks;
  problem.options.sharding = annulus::Contiguous{};
  problem.options.rotation = annulus::Rotation::automatic;
  problem.options.wire = annulus::Wire::as_stored;
  take_lengths_from_sharding(problem);
  d.sink_tokens = 0;
  d.query_offset = 0;
  auto const unbounded = [](std::optional<std::int64_t> side) { return !side || *side < 0; };
  if (unbounded(d.window_left) != unbounded(d.window_right))
    (unbounded(d.window_left) ? d.window_left : d.window_right) = d.query_length + d.key_length;
  take_options_from_dense(problem);
  problem.text = "ejkernel: " + describe(problem, seed);
  return problem;
}

/// The options of the adapter that are not operands.
template <class T, class Space>
annulus::ejkernel::RingAttentionOptions<T, Space> ejkernel_options(OracleProblem const& d) {
  annulus::ejkernel::RingAttentionOptions<T, Space> options{.causal = d.causal, .softmax_scale = d.softmax_scale};
  if (d.window_left && *d.window_left >= 0) options.sliding_window = {*d.window_left, *d.window_right};
  if (d.chunk > 0) options.chunk_size = d.chunk;
  if (d.logit_softcap > 0) options.logits_soft_cap = d.logit_softcap;
  options.dropout_prob = d.dropout_probability;
  if (d.dropout_probability > 0) options.dropout_seed = d.dropout_seed;
  return options;
}

/// Runs one rank and returns its results. shared_sinks: the heads share the sink logits of the first one.
template <class T, class Placement = HostPlacement, class Ring, class Backend, class MaskBuilder = annulus::EveryPair>
RingResult run_ejkernel_rank(RingProblem const& problem, Ring& ring, Backend& backend, MaskBuilder mask_builder = {},
                             bool shared_sinks = false) {
  namespace ar = annulus;
  OracleProblem const& d = problem.dense;
  auto const query_rows = problem.segments(ar::Side::query, ring.rank());
  auto const key_rows = problem.segments(ar::Side::key, ring.rank());
  auto const shard = [&]<class U, std::size_t N, class V>(std::type_identity<U>, std::vector<V> const& global,
                                                          std::array<Index, N> const& extents, std::size_t sequence,
                                                          auto const& rows) {
    return ring_run_detail::shard_of<U, Placement>(global, extents, sequence, rows);
  };
  using E = std::type_identity<T>;
  using Four = std::array<Index, 4>;
  using Two = std::array<Index, 2>;
  auto const q = shard(E{}, d.q, Four{d.batch, d.query_length, d.query_heads, d.head_dim}, 1, query_rows);
  auto const k = shard(E{}, d.k, Four{d.batch, d.key_length, d.kv_heads, d.head_dim}, 1, key_rows);
  auto const v = shard(E{}, d.v, Four{d.batch, d.key_length, d.kv_heads, d.value_dim}, 1, key_rows);
  auto const dout = shard(E{}, problem.dout, Four{d.batch, d.query_length, d.query_heads, d.value_dim}, 1, query_rows);

  auto options = ejkernel_options<T, typename Backend::memory_space>(d);
  auto const pairs = [&](auto element, auto const& operand) {
    return shard(element, operand.values, Four{operand.batch, operand.heads, d.query_length, d.key_length}, 2,
                 query_rows);
  };
  using L = std::type_identity<ar::Accumulator<T>>;
  std::optional<decltype(pairs(E{}, *d.bias))> bias;
  std::optional<decltype(pairs(std::type_identity<bool>{}, *d.mask))> mask;
  std::optional<decltype(shard(std::type_identity<std::int32_t>{}, *d.query_documents, Two{}, 1, query_rows))>
      query_ids, key_ids;
  std::optional<decltype(shard(L{}, d.q, Two{}, 0, query_rows))> sinks;
  if (d.bias) {
    options.bias = bias.emplace(pairs(E{}, *d.bias));
    options.bias_gradient = true;
  }
  if (d.mask) options.attention_mask = mask.emplace(pairs(std::type_identity<bool>{}, *d.mask));
  if (d.query_documents) {
    std::type_identity<std::int32_t> const id;
    options.q_segment_ids =
        query_ids.emplace(shard(id, *d.query_documents, Two{d.batch, d.query_length}, 1, query_rows));
    options.kv_segment_ids = key_ids.emplace(shard(id, *d.key_documents, Two{d.batch, d.key_length}, 1, key_rows));
  }
  if (d.sinks) {
    std::vector<ar::Segment> const heads{{0, shared_sinks ? 1 : d.query_heads, 0, 1}};
    options.softmax_aux = sinks.emplace(shard(L{}, d.sinks->values, Two{d.query_heads, d.sinks->count}, 0, heads));
  }

  auto const residuals = ar::ejkernel::ring_attention_fwd(ring, backend, q, k, v, options, mask_builder);
  auto const gradients = ar::ejkernel::ring_attention_bwd(ring, backend, residuals, dout);
  auto const widen = [](auto const& tensor) {
    auto const view = Placement::host(ar::view_of(tensor));
    return ring_run_detail::widened(view);
  };
  RingResult result;
  result.output = widen(residuals.o);
  result.lse = widen(residuals.lse);
  result.dq = widen(gradients.dq);
  result.dk = widen(gradients.dk);
  result.dv = widen(gradients.dv);
  if (gradients.dbias) result.dbias = widen(*gradients.dbias);
  if (gradients.dsinks) result.dsinks = widen(*gradients.dsinks);
  return result;
}

/// Runs all ranks and returns the results in global order.
template <class T, class MaskBuilder = annulus::EveryPair>
RingResult run_ejkernel(RingProblem const& problem, MaskBuilder mask_builder = {}) {
  return assemble(problem, annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
                    annulus::ReferenceBackend backend;
                    return run_ejkernel_rank<T>(problem, ring, backend, mask_builder);
                  }));
}

}  // namespace annulus_test
