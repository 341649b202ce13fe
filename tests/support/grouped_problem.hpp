#pragma once
// Random problems of the schedules in which ranks form groups.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "support/random_ring_problem.hpp"

namespace annulus_test {

/// The group sizes that a schedule accepts for the ranks and heads of a problem, and 0.
inline std::vector<int> accepted_groups(RingProblem const& problem, annulus::Schedule schedule) {
  std::vector<int> sizes{0};
  for (int size = 1; size <= problem.ranks; ++size) {
    if (problem.ranks % size != 0 || schedule == annulus::Schedule::automatic) continue;
    if (schedule == annulus::Schedule::all_gather && size != problem.ranks) continue;
    if (schedule == annulus::Schedule::two_levels && problem.dense.kv_heads % size != 0) continue;
    sizes.push_back(size);
  }
  return sizes;
}

/// The random problem of a seed, with a schedule in which ranks form groups.
inline RingProblem random_grouped_problem_on(int ranks, std::uint64_t seed) {
  using annulus::Schedule;
  RandomChoice choose(seed);
  RingProblem problem;
  OracleProblem& d = problem.dense;
  problem.ranks = ranks;
  d.batch = choose.of<std::int64_t>({1, 1, 2, 3});
  d.kv_heads = choose.of<std::int64_t>({1, 2, 3, 4, 6, 8});
  d.query_heads = d.kv_heads * choose.of<std::int64_t>({1, 1, 2, 3});
  d.head_dim = choose.of<std::int64_t>({1, 2, 3, 4, 8, 13});
  d.value_dim = choose.one_in(2) ? d.head_dim : choose.of<std::int64_t>({1, 2, 5, 8});
  auto const length = [&] {
    return choose.one_in(12) ? choose.of<std::int64_t>({0, 1, 2})
                             : choose.of<std::int64_t>({3, 7, 16, 17, 23, 31, 32, 47, 64});
  };
  d.query_length = length();
  d.key_length = choose.one_in(3) ? length() : d.query_length;
  choose_options_and_operands(choose, problem, seed);
  annulus::Options& options = problem.options;
  options.schedule =
      choose.of({Schedule::two_levels, Schedule::tiles, Schedule::tiles, Schedule::all_gather, Schedule::automatic});
  if (options.schedule == Schedule::all_gather) options.rotation = annulus::Rotation::automatic;
  auto const sizes = accepted_groups(problem, options.schedule);
  options.ranks_per_group = sizes[static_cast<std::size_t>(choose.below(static_cast<std::int64_t>(sizes.size())))];
  options.checked = choose.one_in(2);
  problem.text += ", " + std::string(name_of(options.schedule)) + " in groups of " +
                  std::to_string(options.ranks_per_group) + (*options.checked ? ", checked" : "");
  choose_wire(choose, problem);
  return problem;
}

/// The same on a number of ranks that the seed chooses.
inline RingProblem random_grouped_problem(std::uint64_t seed) {
  constexpr std::array ranks{2, 3, 4, 6, 8};
  return random_grouped_problem_on(ranks[seed % ranks.size()], seed);
}

}  // namespace annulus_test
