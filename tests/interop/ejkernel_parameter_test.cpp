// Every parameter of ejkernel's ring_attention changes the result, or is refused with a reason on all ranks.

#include <annulus/annulus.hpp>
#include <annulus/interop/ejkernel.hpp>
#include <functional>
#include <random>
#include <type_traits>

#include "support/refusal.hpp"

namespace ejkernel = annulus::ejkernel;
using annulus::Index;
using namespace annulus_test;

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
  Thrown thrown{};
};

template <class MaskBuilder = annulus::EveryPair>
Seen on_rank(annulus::SimulatedRing& ring, Options const& options, MaskBuilder mask_builder = {}) {
  annulus::ReferenceBackend backend;
  Tensor const q = operand(ring.rank(), 1), k = operand(ring.rank(), 2), v = operand(ring.rank(), 3);
  Seen seen;
  seen.thrown = attempt([&] {
    auto const residuals = ejkernel::ring_attention_fwd(ring, backend, q, k, v, options, mask_builder);
    auto const gradients = ejkernel::ring_attention_bwd(ring, backend, residuals, operand(ring.rank(), 4));
    seen.output.assign(residuals.o.data(), residuals.o.data() + residuals.o.size());
    seen.gradient.assign(gradients.dk.data(), gradients.dk.data() + gradients.dk.size());
  });
  return seen;
}

using Change = std::function<void(Options&)>;

/// Sets an option, and another one.
template <class T>
Change set(
    T Options::*option, std::type_identity_t<T> value, Change also = [](Options&) {}) {
  return [=](Options& o) { o.*option = value, also(o); };
}

/// Sets one of the parameters of kernels.
template <class P, class T>
Change set(P Options::*parameters, T P::*parameter, std::type_identity_t<T> value) {
  return [=](Options& o) { o.*parameters.*parameter = value; };
}

struct Case {
  char const* name;
  Change set;
  char const* refusal = nullptr;  ///< words of the message; nullptr: accepted, and the result changes
  Change base{};
};

void check_changed(std::vector<Seen> const& before, std::vector<Seen> const& after) {
  bool output = false, gradient = false;
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    CHECK(before[rank].thrown == Thrown{});
    CHECK(after[rank].thrown == Thrown{});
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
      {"q_segment_ids alone", set(&Options::q_segment_ids, operands.ids),
       "only one of q_segment_ids and kv_segment_ids"},
      {"kv_segment_ids alone", set(&Options::kv_segment_ids, operands.ids),
       "only one of q_segment_ids and kv_segment_ids"},
      {"softmax_aux", set(&Options::softmax_aux, operands.sinks)},
      {"bias", set(&Options::bias, operands.bias)},
      {"attention_mask", set(&Options::attention_mask, operands.mask)},
      {"sliding_window of one number", set(&Options::sliding_window, 2)},
      {"sliding_window of a pair", set(&Options::sliding_window, {1, 3}), nullptr,
       set(&Options::sliding_window, {3, 1})},
      {"sliding_window of 0 is the query's own position", set(&Options::sliding_window, 0)},
      {"sliding_window below 0", set(&Options::sliding_window, -1), "sliding_window is (-1, -1)"},
      {"sliding_window with a side below 0", set(&Options::sliding_window, {4, -1}), "sliding_window is (4, -1)"},
      {"chunk_size", set(&Options::chunk_size, 3)},
      {"chunk_size of 0", set(&Options::chunk_size, 0), "chunk_size is 0"},
      {"causal", set(&Options::causal, true)},
      {"logits_soft_cap", set(&Options::logits_soft_cap, 0.4)},
      {"logits_soft_cap of 0", set(&Options::logits_soft_cap, 0), "logits_soft_cap is 0"},
      {"logits_soft_cap that is no number", set(&Options::logits_soft_cap, nan), "logits_soft_cap is nan"},
      {"softmax_scale", set(&Options::softmax_scale, 1.5)},
      {"softmax_scale of 0 means 0", set(&Options::softmax_scale, 0), nullptr, set(&Options::softmax_scale, 0.01)},
      {"softmax_scale that is no number", set(&Options::softmax_scale, nan), "softmax scale is nan"},
      {"fwd_params.q_blocksize", set(&Options::fwd_params, &decltype(Options::fwd_params)::q_blocksize, 128),
       "fwd_params.q_blocksize is 128"},
      {"fwd_params.kv_blocksize", set(&Options::fwd_params, &decltype(Options::fwd_params)::kv_blocksize, 64),
       "fwd_params.kv_blocksize is 64"},
      {"fwd_params.num_warps", set(&Options::fwd_params, &decltype(Options::fwd_params)::num_warps, 4),
       "fwd_params.num_warps is 4"},
      {"fwd_params.num_stages", set(&Options::fwd_params, &decltype(Options::fwd_params)::num_stages, 2),
       "fwd_params.num_stages is 2"},
      {"bwd_params.q_blocksize", set(&Options::bwd_params, &decltype(Options::bwd_params)::q_blocksize, 128),
       "bwd_params.q_blocksize is 128"},
      {"bwd_params.kv_blocksize", set(&Options::bwd_params, &decltype(Options::bwd_params)::kv_blocksize, 64),
       "bwd_params.kv_blocksize is 64"},
      {"bwd_params.num_warps", set(&Options::bwd_params, &decltype(Options::bwd_params)::num_warps, 4),
       "bwd_params.num_warps is 4"},
      {"bwd_params.num_stages", set(&Options::bwd_params, &decltype(Options::bwd_params)::num_stages, 2),
       "bwd_params.num_stages is 2"},
      {"fused_backward", set(&Options::fused_backward, true), "fused_backward = true"},
      {"dropout_prob", set(&Options::dropout_prob, 0.5, set(&Options::dropout_seed, 7))},
      {"dropout_prob without dropout_seed", set(&Options::dropout_prob, 0.5),
       "dropout_prob is 0.5 without a dropout_seed"},
      {"dropout_prob of 1", set(&Options::dropout_prob, 1, set(&Options::dropout_seed, 7)), "dropout probability is 1"},
      {"dropout_prob that is no number", set(&Options::dropout_prob, nan, set(&Options::dropout_seed, 7)),
       "dropout probability is nan"},
      {"dropout_seed", set(&Options::dropout_prob, 0.5, set(&Options::dropout_seed, 8)), nullptr,
       set(&Options::dropout_prob, 0.5, set(&Options::dropout_seed, 7))},
      {"bias_gradient without a bias", set(&Options::bias_gradient, true), "bias_gradient is set but no bias is given"},
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
        for (Seen const& rank : seen) check_thrown(rank.thrown, "UnsupportedError", tested.refusal);
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
    check_thrown(rank.thrown, "ShapeError", "covers 5 keys; expected global_keys = 10");
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
  check_thrown(attempt([&] { ejkernel::ring_attention_bwd(ring, backend, residuals, short_one); }), "ShapeError",
               "dout has extents [1, 4, 2, 4]");
}
