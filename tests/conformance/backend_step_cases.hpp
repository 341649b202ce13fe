#pragma once
// Backend cases of fold and add_gradients, compared with the oracle: every option and every coverage, in one step or in
// many, in any order.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "conformance/backend_state_cases.hpp"
#include "conformance/step_solver.hpp"
#include "support/huge_logits.hpp"
#include "support/judge.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/small_ring_problem.hpp"

namespace annulus_test::backend_cases {

template <class T>
inline constexpr Bounds bounds_of = std::is_same_v<T, double> ? double_bounds : float_bounds;

/// Cycles through orders and layouts; every third choice passes only the needed key rows.
inline StepChoice choice_number(std::size_t n) {
  return {static_cast<StepChoice::Order>(n % 3), n % 3 == 1, every_layout[n % every_layout.size()]};
}

/// Compares a problem solved by steps with the oracle; returns its numbers of tiles by coverage, or none if the backend
/// refuses it.
template <class T, class Implementation, class Predicate = annulus::EveryPair>
std::optional<std::array<int, 5>> judge_steps(Implementation const& implementation, RingProblem problem,
                                              StepChoice const& choice, Predicate predicate = {}) {
  bool const restricts = !std::is_same_v<Predicate, annulus::EveryPair>;
  if (!refusal_of<T>(implementation.make(0), problem, restricts).empty()) return std::nullopt;
  round_operands<T>(problem);
  StepSolver<T, Implementation, Predicate> solver(implementation, problem, choice, predicate);
  auto const results = solver.solve();
  CHECK(judge(problem, assemble(problem, results), bounds_of<T>).complaint == "");
  return solver.tiles_of_coverage();
}

/// A checkerboard of blocks, which no other mask rule can express.
struct Checkerboard {
  bool operator()(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const {
    return (batch + head + query / 2 + key / 3) % 2 == 0;
  }
};

template <class T, class Implementation>
void every_coverage(Implementation const& implementation) {
  using annulus::Coverage;
  auto const has = [](std::optional<std::array<int, 5>> const& counts, Coverage coverage) {
    return !counts || (*counts)[static_cast<std::size_t>(coverage)] > 0;
  };
  for (std::size_t n = 0; n < 6; ++n) {
    auto const problem_with = [&](auto change) {
      RingProblem problem = small_ring_problem({.batch = 2,
                                                .query_heads = 4,
                                                .kv_heads = 2,
                                                .query_length = 29,
                                                .key_length = 31,
                                                .head_dim = 5,
                                                .value_dim = 3},
                                               3, n % 2 ? annulus::Sharding(annulus::Zigzag{}) : annulus::Contiguous{});
      change(problem);
      settle(problem);
      return problem;
    };
    StepChoice const choice = choice_number(n);
    INFO("choice " << n);
    CHECK(has(judge_steps<T>(implementation, problem_with([](auto&) {}), choice), Coverage::full));
    auto const banded = problem_with([](RingProblem& p) { p.dense.causal = true; });
    CHECK(has(judge_steps<T>(implementation, banded, choice), Coverage::band));
    auto const chunked = problem_with([](RingProblem& p) { p.dense.chunk = 7; });
    CHECK(has(judge_steps<T>(implementation, chunked, choice), Coverage::ranges));
    auto const masked = problem_with([](RingProblem& p) { give_mask(p, 1, p.dense.query_heads); });
    CHECK(has(judge_steps<T>(implementation, masked, choice), Coverage::elements));
    if constexpr (std::is_same_v<T, float>) {  // a predicate is a type: every kernel is compiled for it again
      auto const restricted = problem_with([](RingProblem& p) {
        p.dense.causal = true;
        p.dense.predicate = Checkerboard{};
      });
      CHECK(has(judge_steps<T>(implementation, restricted, choice, Checkerboard{}), Coverage::elements));
    }
    // Query and key segments of different strides: no band describes their visible pairs.
    auto const strided = problem_with([](RingProblem& p) {
      p.dense.causal = true;
      auto const rows = [&](annulus::Sharding const& sharding, annulus::Side side, Index length) {
        PositionMap map;
        auto const lengths = sharding.lengths(side, p.ranks, length);
        for (int rank = 0; rank < p.ranks; ++rank)
          map.push_back(annulus::positions_of(sharding.segments(side, rank, lengths)));
        return map;
      };
      p.options.sharding = annulus::ExplicitMap{rows(annulus::Striped{}, annulus::Side::query, p.dense.query_length),
                                                rows(annulus::Contiguous{}, annulus::Side::key, p.dense.key_length)};
    });
    CHECK(has(judge_steps<T>(implementation, strided, choice), Coverage::ranges));
  }
}

/// Each option alone, on every sharding.
template <class T, class Implementation>
void every_option(Implementation const& implementation) {
  using Change = std::function<void(RingProblem&)>;
  std::vector<std::pair<char const*, Change>> const options{
      {"scale 0", [](RingProblem& p) { p.dense.softmax_scale = 0; }},
      {"negative scale", [](RingProblem& p) { p.dense.softmax_scale = -0.7; }},
      {"soft cap", [](RingProblem& p) { p.dense.logit_softcap = 0.5; }},
      {"dropout", [](RingProblem& p) { p.dense.dropout_probability = 0.4, p.dense.dropout_seed = 99; }},
      {"window", [](RingProblem& p) { p.dense.window_left = 5, p.dense.window_right = 2; }},
      {"sink tokens", [](RingProblem& p) { p.dense.causal = true, p.dense.window_left = 2, p.dense.sink_tokens = 4; }},
      {"query offset", [](RingProblem& p) { p.dense.causal = true, p.dense.query_offset = 6; }},
      {"bias", [](RingProblem& p) { give_bias(p, 1, p.dense.query_heads); }},
      {"bias of each batch item", [](RingProblem& p) { give_bias(p, p.dense.batch, 1); }},
      {"sink logits", [](RingProblem& p) { give_sinks(p, 2); }},
      {"documents",
       [](RingProblem& p) {
         give_documents(p, documents_of_lengths(p.dense.batch, {3, 7, 1, 9, 3}));
       }},
      {"masked rows", [](RingProblem& p) { p.dense.causal = true, p.dense.query_offset = -9; }},
  };
  std::size_t n = 0;
  for (auto const& [name, change] : options)
    for (auto const& sharding : every_sharding(3, 23, 23)) {
      RingProblem problem = small_ring_problem(
          {.batch = 2, .query_heads = 6, .kv_heads = 2, .query_length = 23, .head_dim = 7, .value_dim = 4}, 3,
          sharding);
      change(problem);
      settle(problem);
      INFO(name << ", " << problem.text);
      judge_steps<T>(implementation, problem, choice_number(n++));
    }
}

/// The same problem in one step and in many, in three orders.
template <class T, class Implementation>
void any_number_of_steps(Implementation const& implementation) {
  for (int steps : {1, 2, 5, 11})
    for (auto order : {StepChoice::forwards, StepChoice::backwards, StepChoice::shuffled}) {
      RingProblem problem = small_ring_problem({.query_heads = 3, .kv_heads = 1, .query_length = 37, .head_dim = 8},
                                               steps, annulus::Striped{});
      problem.dense.causal = true;
      settle(problem);
      INFO(steps << " steps, order " << order);
      judge_steps<T>(implementation, problem, {order, false, Layout::dense});
    }
}

template <class T, class Implementation>
void random_steps(Implementation const& implementation, std::uint64_t first_seed, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    RingProblem problem = random_ring_problem(first_seed + i);
    problem.options.wire = annulus::Wire::as_stored;  // Nothing travels.
    INFO(problem.text);
    judge_steps<T>(implementation, problem, choice_number(i));
  }
}

/// A step without tiles changes no bit of a state or gradient, whatever values they hold; new gradients of keys become
/// 0.
template <class T, class Implementation>
void empty_steps(Implementation const& implementation) {
  using Placement = typename Implementation::Placement;
  using Backend = typename Implementation::Backend;
  using Space = typename Backend::memory_space;
  using A = annulus::AccumulatorOf<Backend, T>;
  using L = annulus::Accumulator<T>;
  std::array<Index, 4> const queries{2, 7, 4, 3}, keys{2, 5, 2, 3};
  std::array<Index, 3> const statistics{2, 4, 7};
  auto const filled = [](auto const& extents) { return numbers<T>(product(extents)); };
  PlacedArray<Placement, T, 4> q(queries, Layout::dense, filled(queries)), k(keys, Layout::dense, filled(keys)),
      v(keys, Layout::dense, filled(keys)), dout(queries, Layout::dense, filled(queries));
  PlacedArray<Placement, A, 4> dq(queries, Layout::payload), dk(keys, Layout::payload), dv(keys, Layout::payload);
  PlacedArray<Placement, A, 3> delta(statistics, Layout::payload, filled(statistics), 2);
  PlacedArray<Placement, L, 3> lse(statistics, Layout::payload, filled(statistics), 2);
  PlacedState<Placement, A> state(rows_of_every_kind<A>(queries, 0), Layout::payload);
  auto const all = [&] { return std::array{state.bytes(), dq.bytes(), dk.bytes(), dv.bytes()}; };
  auto const before = all();

  std::vector<Index> const query_positions(7, 0), key_positions(5, 0);
  annulus::EveryPair const every_pair;
  annulus::Step<T, annulus::EveryPair, Space> const step{
      .tiles = {}, .query_positions = query_positions, .key_positions = key_positions, .predicate = &every_pair};
  annulus::StepOperands<T, Space> const operands{q.constant(), k.constant(), v.constant()};
  auto backend = implementation.make(12);
  backend.fold(step, operands, state.view());
  backend.add_gradients(step, operands,
                        annulus::BackwardOperands<T, L, A, Space>{dout.constant(), lse.constant(), delta.constant()},
                        annulus::StepGradients<A, Space>{dq.view(), dk.view(), dv.view(), {}});
  backend.synchronize();
  CHECK(all() == before);
  if constexpr (annulus::overwrites_key_gradients<Backend>) {
    backend.add_gradients(step, operands,
                          annulus::BackwardOperands<T, L, A, Space>{dout.constant(), lse.constant(), delta.constant()},
                          annulus::StepGradients<A, Space>{dq.view(), dk.view(), dv.view(), {}, true});
    backend.synchronize();
    std::vector<double> const zeros(static_cast<std::size_t>(product(keys)), 0.0);
    CHECK((dk.values() == zeros && dv.values() == zeros));
    CHECK(dq.bytes() == before[1]);
  }
}

/// Rows whose lse is so large that it rounds away part of the logarithm of the sum: gradients need the remainder too.
template <class T, class Implementation>
void huge_logits(Implementation const& implementation) {
  for (std::size_t n = 0; n < 6; ++n) {
    RingProblem const problem = huge_products(std::is_same_v<T, double> ? 0x1p50 : 0x1p11, 1 + static_cast<int>(n % 3),
                                              annulus::Zigzag{}, annulus::Rotation::keys, n % 2 == 0);
    INFO(problem.text);
    judge_steps<T>(implementation, problem, choice_number(n));
  }
}

template <class T, class Implementation>
void step_operations(Implementation const& implementation) {
  empty_steps<T>(implementation);
  every_coverage<T>(implementation);
  every_option<T>(implementation);
  any_number_of_steps<T>(implementation);
  huge_logits<T>(implementation);
  random_steps<T>(implementation, std::is_same_v<T, double> ? 510'000 : 520'000, 40);
}

}  // namespace annulus_test::backend_cases
