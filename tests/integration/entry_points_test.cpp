// Entry points of the library: returned results, results in the caller's memory, free functions, and repeated calls.

#include <annulus/annulus.hpp>

#include "integration/solve.hpp"
#include "support/catch.hpp"
#include "support/operand_layouts.hpp"
#include "support/shards.hpp"

using namespace annulus_test;
using annulus::Rotation;
using annulus::SimulatedRing;

namespace {

RingProblem causal_problem(int ranks, Rotation rotation = Rotation::automatic) {
  RingProblem problem =
      small_ring_problem({.batch = 2, .query_length = 26, .value_dim = 3}, ranks, annulus::Zigzag{}, rotation);
  problem.dense.causal = true;
  settle(problem);
  round_operands<float>(problem);
  return problem;
}

/// Sink logits of a problem, [query_heads, count].
Eigen::Tensor<float, 2> sinks_of(RingProblem const& problem) {
  auto const& sinks = *problem.dense.sinks;
  Eigen::Tensor<float, 2> tensor(problem.dense.query_heads, sinks.count);
  for (Index h = 0; h < problem.dense.query_heads; ++h)
    for (Index s = 0; s < sinks.count; ++s)
      tensor(h, s) = static_cast<float>(sinks.values[static_cast<std::size_t>(h * sinks.count + s)]);
  return tensor;
}

}  // namespace

TEST_CASE("free functions and *_into calls give what RingAttention returns") {
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
    RingProblem problem = causal_problem(3, rotation);
    give_sinks(problem, 2);
    round_operands<float>(problem);
    RingResult const expected = assemble(problem, solve_by_rank<float>(problem));
    REQUIRE(judge(problem, expected, float_bounds).complaint == "");

    auto const by_free_functions = annulus::run_ring(3, [&](SimulatedRing& ring) {
      annulus::ReferenceBackend backend;
      auto const own = shards_of<float>(problem, ring.rank());
      auto const sinks = sinks_of(problem);
      auto const forward =
          annulus::ring_attention_forward(ring, backend, problem.options, own.q, own.k, own.v, {.sinks = sinks});
      auto const gradients = annulus::ring_attention_backward(ring, backend, problem.options, own.dout, forward, own.q,
                                                              own.k, own.v, {.sinks = sinks});
      return result_of(forward, gradients);
    });
    CHECK(assemble(problem, by_free_functions) == expected);

    // Results in another tensor family than the operands: with gaps, in another axis order.
    auto const into = annulus::run_ring(3, [&](SimulatedRing& ring) {
      annulus::ReferenceBackend backend;
      auto const own = shards_of<float>(problem, ring.rank());
      auto const sinks = sinks_of(problem);
      auto const q = annulus::view_of(own.q), k = annulus::view_of(own.k), v = annulus::view_of(own.v);
      auto const extents = annulus::view_of(own.dout).extents();
      GappedTensor<float, 4> output(extents), dq(q.extents()), dk(k.extents());
      Eigen::Tensor<float, 4> dv_transposed(v.extent(0), v.extent(2), v.extent(3), v.extent(1));
      GappedTensor<float, 3> lse({extents[0], extents[2], extents[1]}), remainder({extents[0], extents[2], extents[1]});
      GappedTensor<float, 2> dsinks({2, 2});
      annulus::ring_attention_forward_into(ring, backend, problem.options, own.q, own.k, own.v, output, lse,
                                           {.sinks = sinks}, remainder);
      annulus::GradientViews<float, annulus::HostMemory> const gradients{
          .dq = dq.view(),
          .dk = dk.view(),
          .dv = annulus::view_of(annulus::bhds(dv_transposed)),
          .dsinks = dsinks.view()};
      annulus::ring_attention_backward_into(ring, backend, problem.options, own.dout, output, lse, own.q, own.k, own.v,
                                            gradients, {.sinks = sinks}, remainder);
      RingResult result;
      result.output = values_of(output);
      result.lse = values_of(lse);
      result.dq = values_of(dq);
      result.dk = values_of(dk);
      result.dv = values_of(annulus::bhds(dv_transposed));
      result.dsinks = values_of(dsinks);
      bool const intact =
          output.intact() && lse.intact() && remainder.intact() && dq.intact() && dk.intact() && dsinks.intact();
      return std::pair(result, intact);
    });
    std::vector<RingResult> results;
    for (auto const& [result, intact] : into) {
      CHECK(intact);
      results.push_back(result);
    }
    CHECK(assemble(problem, results) == expected);
  }
}

TEST_CASE("gradients of 16-bit operands can be written in float, without rounding to 16 bits") {
  using T = Eigen::bfloat16;
  RingProblem problem = causal_problem(3);
  round_operands<T>(problem);
  auto const run = [&](auto gradient_type) {
    using G = decltype(gradient_type);
    return assemble(problem, annulus::run_ring(3, [&](SimulatedRing& ring) {
                      annulus::ReferenceBackend backend;
                      auto const own = shards_of<T>(problem, ring.rank());
                      annulus::RingAttention attention(ring, backend, problem.options);
                      auto const forward = attention.forward(own.q, own.k, own.v);
                      annulus::Gradients<RowMajorTensor<G>> gradients{RowMajorTensor<G>(own.q.dimensions()),
                                                                      RowMajorTensor<G>(own.k.dimensions()),
                                                                      RowMajorTensor<G>(own.v.dimensions())};
                      attention.backward_into(own.dout, forward.output, forward.lse, own.q, own.k, own.v,
                                              annulus::GradientViews<G, annulus::HostMemory>{
                                                  annulus::view_of(gradients.dq), annulus::view_of(gradients.dk),
                                                  annulus::view_of(gradients.dv)},
                                              {}, forward.lse_remainder);
                      return result_of(forward, gradients);
                    }));
  };
  RingResult const wide = run(float{}), narrow = run(T{});
  for (auto member : {&RingResult::dq, &RingResult::dk, &RingResult::dv}) {
    bool narrowed_once = true, wider_than_16_bits = false;
    for (std::size_t i = 0; i < (wide.*member).size(); ++i) {
      double const rounded = static_cast<double>(static_cast<T>((wide.*member)[i]));
      narrowed_once = narrowed_once && rounded == (narrow.*member)[i];
      wider_than_16_bits = wider_than_16_bits || rounded != (wide.*member)[i];
    }
    CHECK(narrowed_once);
    CHECK(wider_than_16_bits);
  }
}

TEST_CASE("a forward pass on other values before a backward pass does not change its result") {
  for (Rotation rotation : {Rotation::keys, Rotation::queries})
    for (bool local : {false, true}) {
      RingProblem problem = causal_problem(4, rotation);
      if (local) problem.dense.window_left = 9;
      settle(problem);
      auto const by_rank = annulus::run_ring(4, [&](SimulatedRing& ring) {
        annulus::ReferenceBackend backend;
        auto const own = shards_of<float>(problem, ring.rank());
        RowMajorTensor<float> const other_keys = own.k * 2.0f;
        annulus::RingAttention attention(ring, backend, problem.options);
        std::array<RingResult, 2> results;
        for (bool other : {false, true}) {
          auto const forward = attention.forward(own.q, own.k, own.v);
          if (other) attention.forward(own.q, other_keys, own.v);
          results[other] = result_of(forward, attention.backward(own.dout, forward, own.q, own.k, own.v));
        }
        return results;
      });
      for (auto const& [plain, with_other] : by_rank) CHECK(plain == with_other);
    }
}

TEST_CASE("calls with and without optional operands alternate on one RingAttention") {
  RingProblem plain = causal_problem(3);
  RingProblem with = plain;
  give_sinks(with, 2);
  round_operands<float>(with);
  auto const results = annulus::run_ring(3, [&](SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    auto const own = shards_of<float>(plain, ring.rank());
    auto const sinks = sinks_of(with);
    annulus::RingAttention attention(ring, backend, plain.options);
    std::array<RingResult, 3> calls;
    for (std::size_t call = 0; call < 3; ++call) {
      annulus::Operands<float> operands;
      if (call == 1) operands.sinks = sinks;
      auto const forward = attention.forward(own.q, own.k, own.v, operands);
      calls[call] = result_of(forward, attention.backward(own.dout, forward, own.q, own.k, own.v, operands));
    }
    return calls;
  });
  auto const call = [&](std::size_t which, RingProblem const& problem) {
    std::vector<RingResult> by_rank;
    for (auto const& calls : results) by_rank.push_back(calls[which]);
    return assemble(problem, by_rank);
  };
  CHECK(judge(plain, call(0, plain), float_bounds).complaint == "");
  CHECK(judge(with, call(1, with), float_bounds).complaint == "");
  CHECK(call(2, plain) == call(0, plain));
}

TEST_CASE("calls of two RingAttentions alternate on one ring") {
  RingProblem first = causal_problem(4, Rotation::keys), second = causal_problem(4, Rotation::queries);
  second.dense.causal = false;
  settle(second);
  auto const results = annulus::run_ring(4, [&](SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    auto const of_first = shards_of<float>(first, ring.rank()), of_second = shards_of<float>(second, ring.rank());
    annulus::RingAttention one(ring, backend, first.options), other(ring, backend, second.options);
    auto const one_forward = one.forward(of_first.q, of_first.k, of_first.v);
    auto const other_forward = other.forward(of_second.q, of_second.k, of_second.v);
    auto const one_gradients = one.backward(of_first.dout, one_forward, of_first.q, of_first.k, of_first.v);
    auto const other_gradients = other.backward(of_second.dout, other_forward, of_second.q, of_second.k, of_second.v);
    return std::pair(result_of(one_forward, one_gradients), result_of(other_forward, other_gradients));
  });
  std::vector<RingResult> of_first, of_second;
  for (auto const& [one, other] : results) {
    of_first.push_back(one);
    of_second.push_back(other);
  }
  CHECK(judge(first, assemble(first, of_first), float_bounds).complaint == "");
  CHECK(judge(second, assemble(second, of_second), float_bounds).complaint == "");
}
