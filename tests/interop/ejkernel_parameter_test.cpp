// Every parameter of ejkernel's ring_attention changes the result, or is refused with a reason on all ranks.

#include <annulus/annulus.hpp>
#include <annulus/interop/ejkernel.hpp>
#include <functional>
#include <random>

#include "support/catch.hpp"

namespace ejkernel = annulus::ejkernel;
using annulus::Index;
using Catch::Matchers::ContainsSubstring;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Options = ejkernel::RingAttentionOptions<float>;

constexpr int ranks = 2;
constexpr Index rows = 5;  // of each rank

Tensor operand(int rank, unsigned seed) {
  Tensor tensor(1, rows, 2, 4);
  std::mt19937 engine(seed + static_cast<unsigned>(rank));
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>(engine() % 2001) / 1000.0f - 1.0f;
  return tensor;
}

/// Operands that any rank may be passed.
struct Operands {
  Eigen::Tensor<std::int32_t, 2> ids{1, rows};
  Eigen::Tensor<float, 1> sinks{2};
  Tensor bias{1, 2, rows, ranks*rows}, local_bias{1, 2, rows, rows};
  Eigen::Tensor<bool, 4> mask{1, 1, rows, ranks* rows};

  Operands() {
    ids.setValues({{1, 1, 2, 2, 2}});
    sinks.setConstant(0.5f);
    for (Index i = 0; i < bias.size(); ++i) bias.data()[i] = static_cast<float>(i % 7) / 7.0f;
    local_bias.setZero();
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < ranks * rows; ++j) mask(0, 0, i, j) = (i + j) % 3 != 0;
  }
};
Operands const operands;

struct Seen {
  std::vector<float> output, gradient;
  std::string reason;
};

template <class MaskBuilder = annulus::EveryPair>
Seen on_rank(annulus::SimulatedRing& ring, Options const& options, MaskBuilder mask_builder = {}) {
  annulus::ReferenceBackend backend;
  Tensor const q = operand(ring.rank(), 1), k = operand(ring.rank(), 2), v = operand(ring.rank(), 3);
  try {
    auto const residuals = ejkernel::ring_attention_fwd(ring, backend, q, k, v, options, mask_builder);
    auto const gradients = ejkernel::ring_attention_bwd(ring, backend, residuals, operand(ring.rank(), 4));
    return {{residuals.o.data(), residuals.o.data() + residuals.o.size()},
            {gradients.dk.data(), gradients.dk.data() + gradients.dk.size()},
            ""};
  } catch (annulus::UnsupportedError const& error) {
    return {{}, {}, std::string("UnsupportedError: ") + error.what()};
  } catch (annulus::ShapeError const& error) {
    return {{}, {}, std::string("ShapeError: ") + error.what()};
  }
}

struct Case {
  char const* name;
  std::function<void(Options&)> set;
  char const* refusal = nullptr;  ///< part of the message; nullptr: accepted, and the result changes
  std::function<void(Options&)> base{};
};

void check_changed(std::vector<Seen> const& before, std::vector<Seen> const& after) {
  bool output = false, gradient = false;
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    CHECK(before[rank].reason == "");
    CHECK(after[rank].reason == "");
    output = output || before[rank].output != after[rank].output;
    gradient = gradient || before[rank].gradient != after[rank].gradient;
  }
  CHECK(output);
  CHECK(gradient);
}

}  // namespace

TEST_CASE("ejkernel: each option is honoured or refused", "[ejkernel][C7][C40]") {
  auto const nan = std::nan("");
  std::vector<Case> const cases{
      {"q_segment_ids and kv_segment_ids",
       [](Options& o) {
         o.q_segment_ids = operands.ids;
         o.kv_segment_ids = operands.ids;
       }},
      {"q_segment_ids alone", [](Options& o) { o.q_segment_ids = operands.ids; },
       "only one of q_segment_ids and kv_segment_ids"},
      {"kv_segment_ids alone", [](Options& o) { o.kv_segment_ids = operands.ids; },
       "only one of q_segment_ids and kv_segment_ids"},
      {"softmax_aux", [](Options& o) { o.softmax_aux = operands.sinks; }},
      {"bias", [](Options& o) { o.bias = operands.bias; }},
      {"attention_mask", [](Options& o) { o.attention_mask = operands.mask; }},
      {"sliding_window of one number", [](Options& o) { o.sliding_window = 2; }},
      {"sliding_window of a pair",
       [](Options& o) {
         o.sliding_window = {1, 3};
       },
       nullptr,
       [](Options& o) {
         o.sliding_window = {3, 1};
       }},
      {"sliding_window of 0 is the query's own position", [](Options& o) { o.sliding_window = 0; }},
      {"sliding_window below 0", [](Options& o) { o.sliding_window = -1; }, "sliding_window is (-1, -1)"},
      {"sliding_window with a side below 0",
       [](Options& o) {
         o.sliding_window = {4, -1};
       },
       "sliding_window is (4, -1)"},
      {"chunk_size", [](Options& o) { o.chunk_size = 3; }},
      {"chunk_size of 0", [](Options& o) { o.chunk_size = 0; }, "chunk_size is 0"},
      {"causal", [](Options& o) { o.causal = true; }},
      {"logits_soft_cap", [](Options& o) { o.logits_soft_cap = 0.4; }},
      {"logits_soft_cap of 0", [](Options& o) { o.logits_soft_cap = 0; }, "logits_soft_cap is 0"},
      {"logits_soft_cap that is no number", [=](Options& o) { o.logits_soft_cap = nan; }, "logits_soft_cap is nan"},
      {"softmax_scale", [](Options& o) { o.softmax_scale = 1.5; }},
      {"softmax_scale of 0 means 0", [](Options& o) { o.softmax_scale = 0; }, nullptr,
       [](Options& o) { o.softmax_scale = 0.01; }},
      {"softmax_scale that is no number", [=](Options& o) { o.softmax_scale = nan; }, "softmax_scale is nan"},
      {"fwd_params.q_blocksize", [](Options& o) { o.fwd_params.q_blocksize = 128; }, "fwd_params.q_blocksize is 128"},
      {"fwd_params.kv_blocksize", [](Options& o) { o.fwd_params.kv_blocksize = 64; }, "fwd_params.kv_blocksize is 64"},
      {"fwd_params.num_warps", [](Options& o) { o.fwd_params.num_warps = 4; }, "fwd_params.num_warps is 4"},
      {"fwd_params.num_stages", [](Options& o) { o.fwd_params.num_stages = 2; }, "fwd_params.num_stages is 2"},
      {"bwd_params.q_blocksize", [](Options& o) { o.bwd_params.q_blocksize = 128; }, "bwd_params.q_blocksize is 128"},
      {"bwd_params.kv_blocksize", [](Options& o) { o.bwd_params.kv_blocksize = 64; }, "bwd_params.kv_blocksize is 64"},
      {"bwd_params.num_warps", [](Options& o) { o.bwd_params.num_warps = 4; }, "bwd_params.num_warps is 4"},
      {"bwd_params.num_stages", [](Options& o) { o.bwd_params.num_stages = 2; }, "bwd_params.num_stages is 2"},
      {"fused_backward", [](Options& o) { o.fused_backward = true; }, "fused_backward = true"},
      {"dropout_prob",
       [](Options& o) {
         o.dropout_prob = 0.5;
         o.dropout_seed = 7;
       }},
      {"dropout_prob without dropout_seed", [](Options& o) { o.dropout_prob = 0.5; },
       "dropout_prob is 0.5 without a dropout_seed"},
      {"dropout_prob of 1",
       [](Options& o) {
         o.dropout_prob = 1;
         o.dropout_seed = 7;
       },
       "dropout probability is 1"},
      {"dropout_prob that is no number",
       [=](Options& o) {
         o.dropout_prob = nan;
         o.dropout_seed = 7;
       },
       "dropout probability is nan"},
      {"dropout_seed",
       [](Options& o) {
         o.dropout_prob = 0.5;
         o.dropout_seed = 8;
       },
       nullptr,
       [](Options& o) {
         o.dropout_prob = 0.5;
         o.dropout_seed = 7;
       }},
      {"bias_gradient without a bias", [](Options& o) { o.bias_gradient = true; },
       "bias_gradient is set but no bias is given"},
  };
  for (auto const& tested : cases) DYNAMIC_SECTION(tested.name) {
      Options without;
      if (tested.base) tested.base(without);
      Options with = without;
      tested.set(with);
      if (tested.refusal) {
        // Only the last rank sets the refused option; both ranks must throw with the reason.
        auto const seen = annulus::run_ring(
            ranks, [&](auto& ring) { return on_rank(ring, ring.rank() + 1 == ranks ? with : without); });
        for (Seen const& rank : seen) {
          CHECK(rank.output.empty());
          CHECK_THAT(rank.reason, ContainsSubstring(tested.refusal));
        }
      } else {
        check_changed(annulus::run_ring(ranks, [&](auto& ring) { return on_rank(ring, without); }),
                      annulus::run_ring(ranks, [&](auto& ring) { return on_rank(ring, with); }));
      }
    }
}

TEST_CASE("ejkernel: a bias or mask of this rank's keys only is refused", "[ejkernel][C20]") {
  Options options;
  SECTION("bias") { options.bias = operands.local_bias; }
  SECTION("attention_mask") { options.attention_mask = annulus::view_of(operands.mask).slice(3, 0, rows); }
  for (Seen const& rank : annulus::run_ring(ranks, [&](auto& ring) { return on_rank(ring, options); }))
    CHECK_THAT(rank.reason, ContainsSubstring("covers 5 keys; expected global_keys = 10"));
}

TEST_CASE("ejkernel: mask_builder is honoured", "[ejkernel]") {
  auto const builder = [](Index, Index, Index query, Index key) { return (query + key) % 2 == 0; };
  check_changed(annulus::run_ring(ranks, [&](auto& ring) { return on_rank(ring, Options{}); }),
                annulus::run_ring(ranks, [&](auto& ring) { return on_rank(ring, Options{}, builder); }));
}

TEST_CASE("ejkernel: axis_name determines the ranks that hold the keys", "[ejkernel]") {
  auto const together = annulus::run_ring(ranks, [](auto& ring) { return on_rank(ring, {}); });
  auto const alone = annulus::run_ring(1, [](auto& ring) { return on_rank(ring, {}); });
  check_changed({together[0]}, alone);
}

TEST_CASE("ejkernel: with a causal mask the right side of the window has no effect", "[ejkernel]") {
  auto const run = [](ejkernel::SlidingWindow window) {
    return annulus::run_ring(ranks,
                             [&](auto& ring) { return on_rank(ring, {.sliding_window = window, .causal = true}); });
  };
  auto const number = run(2), pair = run({2, 0});
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    CHECK(number[rank].output == pair[rank].output);
    CHECK(number[rank].gradient == pair[rank].gradient);
  }
}

TEST_CASE("ejkernel: dropout_seed has no effect without dropout", "[ejkernel]") {
  auto const run = [](Options const& options) {
    return annulus::run_ring(ranks, [&](auto& ring) { return on_rank(ring, options); });
  };
  CHECK(run({})[0].output == run({.dropout_seed = 5})[0].output);
}

TEST_CASE("ejkernel: ring_attention returns the output of ring_attention_fwd", "[ejkernel]") {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  Tensor const q = operand(0, 1), k = operand(0, 2), v = operand(0, 3);
  Tensor const output = ejkernel::ring_attention(ring, backend, q, k, v, {.causal = true});
  auto const residuals = ejkernel::ring_attention_fwd(ring, backend, q, k, v, {.causal = true});
  REQUIRE(output.size() == residuals.o.size());
  CHECK(std::equal(output.data(), output.data() + output.size(), residuals.o.data()));
}

TEST_CASE("ejkernel: a dout of other extents is refused", "[ejkernel]") {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  Tensor const x = operand(0, 1), short_one(1, rows - 1, 2, 4);
  auto const residuals = ejkernel::ring_attention_fwd(ring, backend, x, x, x);
  CHECK_THROWS_AS(ejkernel::ring_attention_bwd(ring, backend, residuals, short_one), annulus::ShapeError);
}
