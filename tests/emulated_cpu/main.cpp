// CpuBackend at an instruction set that is emulated: all element types (with ANNULUS_EMULATED_BFLOAT16_ALONE, that one
// alone), both passes, random problems with the sizes at which its kernels take other paths, judged by dense attention
// in double. Its argument is the name of the instruction set. Needs no Catch2, which is not installed for other
// architectures.

#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/backend/cpu/panel/blocking.hpp>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "support/in_place_backend.hpp"
#include "support/judge.hpp"
#include "support/random_ring_problem.hpp"
#include "support/ring_run.hpp"
#include "support/row_step.hpp"
#include "support/small_ring_problem.hpp"
#include "support/three_way.hpp"

using namespace annulus_test;

namespace {

int failures = 0;

void check(std::string_view type, std::string const& complaint) {
  if (complaint.empty()) return;
  ++failures;
  std::cerr << type << ": " << complaint << '\n';
}

/// Random options; sizes of 1, primes, and those around a panel of queries and a block of keys.
template <class A>
RingProblem edge_problem(std::uint64_t seed) {
  using Blocks = annulus::cpu::detail::Blocking<A>;
  constexpr std::int64_t panel = Blocks::panel, block = Blocks::key_block;
  RandomChoice choose(seed);
  RingProblem problem;
  OracleProblem& d = problem.dense;
  problem.ranks = static_cast<int>(choose.of<std::int64_t>({1, 1, 1, 2}));
  d.kv_heads = choose.of<std::int64_t>({1, 2});
  d.query_heads = d.kv_heads * choose.of<std::int64_t>({1, 1, 2, 3});
  d.head_dim = choose.of<std::int64_t>({8, 40, 64, 128, 1, 37, 300});
  d.value_dim = choose.one_in(2) ? d.head_dim : choose.of<std::int64_t>({8, 40, 64, 13});
  d.query_length = choose.of<std::int64_t>({1, 2, 7, panel - 1, panel, panel + 1, 2 * panel + 5});
  d.key_length = choose.of<std::int64_t>({1, 2, 3, 5, 31, block - 1, block, block + 1, block + 6});
  choose_options_and_operands(choose, problem, seed);
  return problem;
}

template <class T, class Backend = annulus::CpuBackend>
RingResult solve(RingProblem const& problem) {
  Backend backend;
  backend.threads = 1;
  return whole_result<T>(problem, backend);
}

template <class T>
void check_random_problems(std::string_view type, std::uint64_t first_seed, std::uint64_t count) {
  [[maybe_unused]] ThreeWayJudge<T> three_way;
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RingProblem problem = edge_problem<annulus::Accumulator<T>>(seed);
    round_operands<T>(problem);
    if constexpr (sizeof(T) == 2) {
      std::string const complaint = three_way.complaint(problem, solve<T>(problem));
      // The rounding error of a few values is random: problems of a few keys are judged together.
      if (problem.dense.key_length > 7) check(type, complaint);
    } else {
      check(type, judge(problem, solve<T>(problem), sizeof(T) == 8 ? double_bounds : float_bounds).complaint);
    }
  }
  if constexpr (sizeof(T) == 2) check(type, three_way.complaint_about_all());
}

/// Steps with few query rows, whose operands are not packed: one or several rows for each kv head, rows of whole
/// vectors and others.
template <class T>
void check_decoding(std::string_view type) {
  for (std::int64_t keys : {std::int64_t{129}, std::int64_t{300}})
    for (std::int64_t dim : {40, 64, 13})
      for (auto const& [query_heads, kv_heads] : {std::pair{1, 1}, {8, 1}, {4, 4}, {6, 2}}) {
        RingProblem problem = small_ring_problem(
            {.query_heads = query_heads, .kv_heads = kv_heads, .query_length = 1, .key_length = keys, .head_dim = dim},
            1);
        settle(problem);
        round_operands<T>(problem);
        RingResult const result = solve<T, InPlaceBackend>(problem);
        if constexpr (sizeof(T) == 2) {
          ThreeWayJudge<T> three_way;
          check(type, three_way.complaint(problem, result));
        } else {
          check(type, judge(problem, result, sizeof(T) == 8 ? double_bounds : float_bounds).complaint);
        }
      }
}

/// A row has the same bits alone, with few others and with many.
template <class T>
void check_rows(std::string_view type) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) check(type, RowStep<T>(seed).complaint());
}

/// With a causal mask, NaN in a key and value row reaches the queries from that row on, and no others: not those whose
/// elements are packed together with theirs.
template <class T>
void check_poisoned_rows(std::string_view type) {
  constexpr std::int64_t length = 70, dim = 40;
  for (std::int64_t bad : {33, 34, 35, 36})
    for (auto operand : {&OracleProblem::k, &OracleProblem::v}) {
      RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = length, .head_dim = dim}, 1);
      problem.dense.causal = true;
      settle(problem);
      RingResult const clean = solve<T>(problem);
      (problem.dense.*operand)[static_cast<std::size_t>(bad * dim + 3)] = std::numeric_limits<double>::quiet_NaN();
      RingResult const poisoned = solve<T>(problem);
      for (std::size_t e = 0; e < clean.output.size(); ++e) {
        bool const sees = static_cast<std::int64_t>(e) / dim >= bad;
        bool const hit = operand == &OracleProblem::k || e % dim == 3;
        if (sees ? std::isnan(poisoned.output[e]) != hit : poisoned.output[e] != clean.output[e])
          return check(type, "row " + std::to_string(e / dim) + " is wrong with NaN in row " + std::to_string(bad));
        if (!sees && poisoned.dq[e] != clean.dq[e])
          return check(type,
                       "dq of row " + std::to_string(e / dim) + " is wrong with NaN in row " + std::to_string(bad));
      }
    }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2 || arguments[1] != annulus::cpu_target_name()) {
    std::cerr << "the kernels use " << annulus::cpu_target_name() << '\n';
    return 1;
  }
#if !defined(ANNULUS_EMULATED_BFLOAT16_ALONE)
  check_random_problems<float>("float", 1'000, 60);
  check_random_problems<double>("double", 2'000, 60);
  check_random_problems<Eigen::half>("half", 3'000, 60);
  check_decoding<float>("float, decoding");
  check_decoding<double>("double, decoding");
  check_decoding<Eigen::half>("half, decoding");
  check_rows<float>("float, rows");
  check_rows<double>("double, rows");
  check_rows<Eigen::half>("half, rows");
  check_poisoned_rows<float>("float");
#endif
  check_random_problems<Eigen::bfloat16>("bfloat16", 4'000, 120);
  check_decoding<Eigen::bfloat16>("bfloat16, decoding");
  check_rows<Eigen::bfloat16>("bfloat16, rows");
  check_poisoned_rows<Eigen::bfloat16>("bfloat16");
  std::cout << annulus::cpu_target_name() << ": " << failures << " failures\n";
  return failures == 0 ? 0 : 1;
}
