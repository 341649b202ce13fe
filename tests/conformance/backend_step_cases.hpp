#pragma once
// Backend cases of fold and add_gradients, compared with the oracle: every option and every coverage, in one step or in
// many, in any order.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "conformance/backend_state_cases.hpp"
#include "conformance/checkerboard.hpp"
#include "conformance/step_solver.hpp"
#include "support/huge_logits.hpp"
#include "support/judge.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/small_ring_problem.hpp"
#include "support/three_way.hpp"

namespace annulus_test::backend_cases {

template <class T>
inline constexpr Bounds bounds_of = std::is_same_v<T, double> ? double_bounds : float_bounds;

/// Cycles through orders and layouts; every third choice passes only the needed key rows.
inline StepChoice choice_number(std::size_t n) {
  return {static_cast<StepChoice::Order>(n % 3), n % 3 == 1, every_layout[n % every_layout.size()], n};
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

/// Random problems of one step, which may open and close all sums.
template <class T, class Implementation>
void random_single_steps(Implementation const& implementation, std::uint64_t first_seed, std::uint64_t count) {
  for (std::uint64_t seed = first_seed, solved = 0; solved < count; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    if (problem.ranks > 1) continue;
    problem.options.wire = annulus::Wire::as_stored;
    INFO(problem.text);
    judge_steps<T>(implementation, problem, choice_number(solved++));
  }
}

/// Random problems with 16-bit operands and results.
template <class T, class Implementation>
void narrow_steps(Implementation const& implementation, std::uint64_t first_seed, std::uint64_t count) {
  ThreeWayJudge<T> three_way;
  for (std::uint64_t i = 0; i < count; ++i) {
    RingProblem problem = random_ring_problem(first_seed + i);
    problem.options.wire = annulus::Wire::as_stored;
    round_operands<T>(problem);
    StepSolver<T, Implementation> solver(implementation, problem, choice_number(i));
    CHECK(three_way.complaint(problem, assemble(problem, solver.solve())) == "");
  }
  CHECK(three_way.complaint_about_all() == "");
}

/// Every set of sums of queries and keys.
inline constexpr std::array row_sums{annulus::Sums::none, annulus::Sums::queries, annulus::Sums::keys,
                                     annulus::Sums::queries | annulus::Sums::keys};

/// A step without tiles, which changes no bit of a state or gradient, whatever values they hold, except that opened sums
/// become empty, and that closed ones become results.
template <class T, class Implementation>
class EmptySteps {
  using Placement = typename Implementation::Placement;
  using Backend = typename Implementation::Backend;
  using Space = typename Backend::memory_space;
  using A = annulus::AccumulatorOf<Backend, T>;
  using L = annulus::Accumulator<T>;
  using Sums = annulus::Sums;
  template <class U, std::size_t N>
  using Array = PlacedArray<Placement, U, N>;

 public:
  explicit EmptySteps(Implementation const& implementation) : backend_(implementation.make(12)) {}

  void fold(Sums opens, Sums closes) {
    PlacedState<Placement, A> state(rows_of_every_kind<A>(queries, 0), Layout::payload),
        expected(rows_of_every_kind<A>(queries, 0), Layout::payload);
    Array<T, 4> output(queries, Layout::dense), expected_output(queries, Layout::dense);
    Array<L, 3> lse(statistics, Layout::dense), remainder(statistics, Layout::dense),
        expected_lse(statistics, Layout::dense), expected_remainder(statistics, Layout::dense);
    annulus::detail::fold(backend_, step_.opening_and_closing(opens, closes), operands_, state.view(),
                          annulus::ForwardResults<T, L, Space>{output.view(), lse.view(), remainder.view()});
    if (has(opens, Sums::queries)) backend_.reset(expected.view());
    if (has(closes, Sums::queries))
      backend_.normalise(expected.view(), annulus::TensorView<L const, 2, Space>(), expected_output.view(),
                         expected_lse.view(), expected_remainder.view());
    backend_.synchronize();
    CHECK((has(closes, Sums::queries) || state.bytes() == expected.bytes()));
    CHECK(output.bytes() == expected_output.bytes());
    CHECK((lse.bytes() == expected_lse.bytes() && remainder.bytes() == expected_remainder.bytes()));
  }

  void add_gradients(Sums opens, Sums closes) {
    Gradient dq(queries, Sums::queries), dk(keys, Sums::keys), dv(keys, Sums::keys), dbias(pairs, Sums::pairs);
    annulus::StepGradients<A, Space> gradients{dq.sum.view(), dk.sum.view(), dv.sum.view(), {}};
    if (!has(closes, Sums::pairs)) gradients.dbias = dbias.sum.view();
    annulus::detail::add_gradients(
        backend_, step_.opening_and_closing(opens, closes), operands_,
        annulus::BackwardOperands<T, L, A, Space>{dout_.constant(), lse_.constant(), delta_.constant()}, gradients,
        annulus::GradientResults<T, Space>{dq.result.view(), dk.result.view(), dv.result.view(), dbias.result.view()});
    backend_.synchronize();
    for (Gradient const* gradient : {&dq, &dk, &dv}) CHECK(gradient->is_right(opens, closes));
    if (has(closes, Sums::pairs))
      CHECK(dbias.result.values() == values_without_step());
    else
      CHECK(dbias.is_right(opens, closes));
  }

 private:
  static constexpr std::array<Index, 4> queries{2, 7, 4, 3}, keys{2, 5, 2, 3}, pairs{2, 4, 7, 8};
  static constexpr std::array<Index, 3> statistics{2, 4, 7};

  template <std::size_t N>
  static std::vector<double> filled(std::array<Index, N> const& extents) {
    return numbers<T>(product(extents));
  }

  /// The values of a result of dbias, with 0 for the keys of the step.
  std::vector<double> values_without_step() const {
    std::vector<double> values = filled(pairs);
    std::reverse(values.begin(), values.end());
    for (std::size_t i = 0; i < values.size(); ++i)
      if (std::find(key_positions_.begin(), key_positions_.end(), static_cast<Index>(i) % pairs[3]) !=
          key_positions_.end())
        values[i] = 0;
    return values;
  }

  struct Gradient {
    Gradient(std::array<Index, 4> const& extents, Sums of)
        : which(of),
          before(filled(extents)),
          reversed(before.rbegin(), before.rend()),
          sum(extents, Layout::payload, before),
          result(extents, Layout::dense, reversed) {}

    bool is_right(Sums opens, Sums closes) const {
      std::vector<double> const now = has(opens, which) ? std::vector<double>(before.size(), 0.0) : before;
      if (has(closes, which)) return result.values() == now;
      return sum.values() == now && result.values() == reversed;
    }

    Sums which;
    std::vector<double> before, reversed;
    Array<A, 4> sum;
    Array<T, 4> result;
  };

  Array<T, 4> q_{queries, Layout::dense, filled(queries)}, k_{keys, Layout::dense, filled(keys)},
      v_{keys, Layout::dense, filled(keys)}, dout_{queries, Layout::dense, filled(queries)};
  Array<A, 3> delta_{statistics, Layout::payload, filled(statistics), 2};
  Array<L, 3> lse_{statistics, Layout::payload, filled(statistics), 2};
  std::vector<Index> query_positions_ = std::vector<Index>(7, 0), key_positions_{6, 1, 2, 4, 5};
  annulus::EveryPair every_pair_;
  annulus::Step<T, annulus::EveryPair, Space> step_{
      .tiles = {}, .query_positions = query_positions_, .key_positions = key_positions_, .predicate = &every_pair_};
  annulus::StepOperands<T, Space> operands_{q_.constant(), k_.constant(), v_.constant()};
  Backend backend_;  // last, so that it is destroyed before the memory that its work reads
};

template <class T, class Implementation>
void empty_steps(Implementation const& implementation) {
  using annulus::Sums;
  EmptySteps<T, Implementation> steps(implementation);
  for (Sums const opens : row_sums)
    for (Sums const closes : row_sums) {
      INFO("opens " << static_cast<int>(opens) << ", closes " << static_cast<int>(closes));
      steps.fold(opens, closes);
      steps.add_gradients(opens, closes);
      steps.add_gradients(opens | Sums::pairs, closes);
      if (annulus::ClosingBackend<typename Implementation::Backend>)
        steps.add_gradients(opens | Sums::pairs, closes | Sums::pairs);
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
  random_single_steps<T>(implementation, std::is_same_v<T, double> ? 511'000 : 521'000, 32);
}

}  // namespace annulus_test::backend_cases
