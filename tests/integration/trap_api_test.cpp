// Traps of the interface: ignored options, and keys that are not on the ring.

#include <annulus/annulus.hpp>
#include <functional>

#include "integration/solve.hpp"
#include "support/catch.hpp"
#include "support/shards.hpp"

using namespace annulus_test;
using annulus::Rotation;
using annulus::SimulatedRing;

namespace {

using Change = std::function<void(RingProblem&)>;

bool differ(RingResult const& a, RingResult const& b) {
  return distance(a.output, b.output) > 1e-6 * norm(b.output) && distance(a.dq, b.dq) > 1e-6 * norm(b.dq);
}

}  // namespace

TEST_CASE("a block of keys replicated on every rank counts once, and so does its gradient", "[trap][C30]") {
  // The library does not support replicated keys. Users merge two results by the public rule, and give both backward
  // passes the merged output and lse.
  constexpr int on_ring = 18, replicated = 5, ranks = 3;
  RingProblem whole = small_ring_problem({.query_length = 18, .key_length = on_ring + replicated, .value_dim = 3}, 1);
  settle(whole);
  RingProblem ring_part = whole;
  ring_part.ranks = ranks;
  ring_part.dense.key_length = on_ring;
  ring_part.dense.k.resize(on_ring * 4);
  ring_part.dense.v.resize(on_ring * 3);
  take_lengths_from_sharding(ring_part);
  std::vector<double> k_tail(whole.dense.k.begin() + on_ring * 4, whole.dense.k.end());
  std::vector<double> v_tail(whole.dense.v.begin() + on_ring * 3, whole.dense.v.end());
  Eigen::TensorMap<RowMajorTensor<double>> const k_replicated(k_tail.data(), 1, replicated, 1, 4);
  Eigen::TensorMap<RowMajorTensor<double>> const v_replicated(v_tail.data(), 1, replicated, 1, 3);

  auto const run = [&](int times) {
    std::vector<RingResult> ring_results(ranks), block_results(ranks);
    annulus::run_ring(ranks, [&](SimulatedRing& ring) {
      annulus::ReferenceBackend backend;
      annulus::SelfRing alone;
      annulus::RingAttention ring_attention(ring, backend, ring_part.options);
      annulus::RingAttention replicated_attention(alone, backend, ring_part.options);
      auto const own = shards_of<double>(ring_part, ring.rank());
      auto joined = ring_attention.forward(own.q, own.k, own.v);
      auto const block = replicated_attention.forward(own.q, k_replicated, v_replicated);
      for (int time = 0; time < times; ++time)
        for (Index i = 0; i < joined.output.dimension(1); ++i)
          for (Index h = 0; h < joined.output.dimension(2); ++h)
            annulus::merge_rows(std::span(&joined.output(0, i, h, 0), 3), joined.lse(0, h, i),
                                std::span(&block.output(0, i, h, 0), 3), block.lse(0, h, i));
      auto const of_ring = ring_attention.backward(own.dout, joined, own.q, own.k, own.v);
      auto const of_block = replicated_attention.backward(own.dout, joined, own.q, k_replicated, v_replicated);
      auto const rank = static_cast<std::size_t>(ring.rank());
      ring_results[rank] = result_of(joined, of_ring);
      block_results[rank] = result_of(joined, of_block);
      for (std::size_t i = 0; i < ring_results[rank].dq.size(); ++i)
        ring_results[rank].dq[i] += block_results[rank].dq[i];
    });
    RingResult result = assemble(ring_part, ring_results);
    // The block's gradient is a sum over the queries of all ranks.
    auto const append_sum = [&](std::vector<double> RingResult::*member) {
      std::vector<double> sum((block_results[0].*member).size());
      for (RingResult const& block : block_results)
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += (block.*member)[i];
      (result.*member).insert((result.*member).end(), sum.begin(), sum.end());
    };
    append_sum(&RingResult::dk);
    append_sum(&RingResult::dv);
    return judge(whole, result, double_bounds).complaint;
  };
  CHECK(run(1) == "");
  CHECK(run(2) != "");
  CHECK(run(ranks) != "");
}

TEST_CASE("every option and every operand changes the result", "[trap][C40]") {
  // Fails to compile when a field is added, which then needs a row below.
  // reproducible and its leaves change no more than rounding (reproducible_test.cpp), nor do schedule, group and rates
  // (grouped_sweep_test.cpp, attention/schedules_test.cpp); wire and joint keys have tests of their own (wire_test.cpp,
  // joint_keys_test.cpp); checked, require_finite and call
  // change no result, they only report errors (attention/checked_test.cpp and attention/call_number_test.cpp); an
  // observer changes none (attention/observer_test.cpp). block_mask has no row because the oracle knows it as a boolean
  // mask alone (block_mask_test.cpp).
  [[maybe_unused]] auto const& [mask, block_mask, scale, softcap, dropout, sharding, offset, reproducible, leaf,
                                rotation, schedule, ranks_per_group, group, rates, wire, checked, require_finite,
                                observer] = annulus::Options{};
  [[maybe_unused]] auto const& [causal, window, sink_tokens, chunk] = annulus::Mask{};
  [[maybe_unused]] auto const& [probability, seed] = annulus::Dropout{};
  [[maybe_unused]] auto const& [bias, pairs, query_ids, old_query_ids, key_ids, old_key_ids, sinks, joint_keys,
                                joint_values, bias_gradient, call] = annulus::Operands<float>{};

  Change const nothing = [](RingProblem&) {};
  Change const is_causal = [](RingProblem& p) { p.dense.causal = true; };
  Change const has_window = [](RingProblem& p) { p.dense.window_left = 4; };
  Change const has_dropout = [](RingProblem& p) { p.dense.dropout_probability = 0.3; };
  Change const has_documents = [](RingProblem& p) { give_documents(p, documents_of_lengths(1, {10, 14})); };
  struct Row {
    char const* what;
    Change before, change;
  };
  Row const rows[] = {
      {"mask.causal", nothing, is_causal},
      {"mask.window.left", nothing, has_window},
      {"mask.window.right", nothing, [](RingProblem& p) { p.dense.window_right = 4; }},
      {"mask.sink_tokens", has_window, [](RingProblem& p) { p.dense.sink_tokens = 2; }},
      {"mask.chunk", nothing, [](RingProblem& p) { p.dense.chunk = 6; }},
      {"softmax_scale", nothing, [](RingProblem& p) { p.dense.softmax_scale = 0.9; }},
      {"logit_softcap", nothing, [](RingProblem& p) { p.dense.logit_softcap = 0.5; }},
      {"dropout.probability", nothing, has_dropout},
      {"dropout.seed", has_dropout, [](RingProblem& p) { p.dense.dropout_seed = 1; }},
      {"query_offset", is_causal, [](RingProblem& p) { p.dense.query_offset = 3; }},
      {"bias", nothing, [](RingProblem& p) { give_bias(p, 1, 1); }},
      {"mask operand", nothing, [](RingProblem& p) { give_mask(p, 1, 1); }},
      {"documents", nothing, has_documents},
      {"query_documents", has_documents, [](RingProblem& p) { (*p.dense.query_documents)[3] = 2; }},
      {"key_documents", has_documents, [](RingProblem& p) { (*p.dense.key_documents)[3] = 2; }},
      {"sink logits", nothing, [](RingProblem& p) { give_sinks(p, 1); }},
      {"predicate", nothing,
       [](RingProblem& p) {
         p.dense.predicate = [](auto, auto, auto query, auto key) { return query % 5 != key % 5; };
       }},
  };
  for (Row const& row : rows) {
    INFO(row.what);
    RingProblem before = small_ring_problem({.query_length = 24}, 3);
    row.before(before);
    RingProblem after = before;
    row.change(after);
    RingResult const result = solve<double>(after);
    CHECK(differ(result, solve<double>(before)));
    CHECK(judge(after, result, double_bounds).complaint == "");
  }

  // The sharding defines the positions of a rank's rows: the same rows give another result.
  RingProblem contiguous = small_ring_problem({.query_length = 24}, 3);
  contiguous.dense.causal = true;
  settle(contiguous);
  auto const run_as = [&](annulus::Options const& options) {
    return annulus::run_ring(3, [&](SimulatedRing& ring) {
      annulus::ReferenceBackend backend;
      auto const own = shards_of<double>(contiguous, ring.rank());
      annulus::RingAttention attention(ring, backend, options);
      auto const forward = attention.forward(own.q, own.k, own.v);
      RingResult result = result_of(forward, attention.backward(own.dout, forward, own.q, own.k, own.v));
      return std::pair(result, attention.plan(annulus::Pass::backward)->rotation());
    });
  };
  auto const expected = run_as(contiguous.options);
  annulus::Options other = contiguous.options;
  other.sharding = annulus::Striped{};
  CHECK(differ(run_as(other)[1].first, expected[1].first));

  // The rotation changes only which side travels, not the results.
  for (Rotation wanted : {Rotation::keys, Rotation::queries}) {
    other = contiguous.options;
    other.rotation = wanted;
    auto const results = run_as(other);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(results[rank].second == wanted);
      CHECK(distance(results[rank].first.dk, expected[rank].first.dk) <= 1e-14 * norm(expected[rank].first.dk));
    }
  }
}

TEST_CASE("bias_gradient decides whether dbias is returned", "[trap][C40]") {
  RingProblem problem = small_ring_problem({.query_length = 24}, 3);
  settle(problem);
  for (bool asked : {false, true}) {
    auto const given = annulus::run_ring(3, [&](SimulatedRing& ring) {
      annulus::ReferenceBackend backend;
      auto const own = shards_of<float>(problem, ring.rank());
      Eigen::Tensor<float, 4> bias(1, 1, 8, 24);
      bias.setConstant(0.5f);
      annulus::Operands<float> const operands{.bias = bias, .bias_gradient = asked};
      annulus::RingAttention attention(ring, backend, problem.options);
      auto const forward = attention.forward(own.q, own.k, own.v, operands);
      auto const gradients = attention.backward(own.dout, forward, own.q, own.k, own.v, operands);
      return gradients.dbias.has_value() && norm(values_of(*gradients.dbias)) > 0;
    });
    CHECK(given == std::vector<bool>(3, asked));
  }
}
