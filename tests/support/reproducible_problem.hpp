#pragma once
// Reproducible versions of ring problems: cut into leaves that are dealt to any number of ranks.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "support/random_ring_problem.hpp"

namespace annulus_test {

/// The numbers of ranks that results must not depend on.
inline constexpr int reproducible_ranks[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32};

/// How leaves are dealt to ranks.
enum class Deal { contiguous, zigzag, block_striped, shuffled };

/// The positions of each rank, made of whole leaves. Zigzag: as Zigzag{}, with pieces that differ by a leaf at most.
inline std::vector<std::vector<annulus::Index>> dealt_positions(Deal deal, int ranks, annulus::Index length,
                                                                annulus::Index leaf, RandomChoice& choose) {
  std::vector<std::vector<annulus::Index>> positions(static_cast<std::size_t>(ranks));
  annulus::Index const leaves = (length + leaf - 1) / leaf;
  for (annulus::Index i = 0; i < leaves; ++i) {
    annulus::Index const piece = i * 2 * ranks / leaves;
    annulus::Index const rank = deal == Deal::contiguous ? i * ranks / leaves
                                : deal == Deal::zigzag   ? std::min(piece, 2 * ranks - 1 - piece)
                                                         : choose.below(ranks);
    auto& own = positions[static_cast<std::size_t>(rank)];
    std::vector<annulus::Index> added;
    for (annulus::Index p = i * leaf; p < std::min((i + 1) * leaf, length); ++p) added.push_back(p);
    // The order of the leaves on a rank is arbitrary, too.
    own.insert(deal == Deal::shuffled && choose.one_in(2) ? own.begin() : own.end(), added.begin(), added.end());
  }
  return positions;
}

/// The problem on another ring, as a reproducible call with leaves of `leaf` positions.
inline RingProblem reproducible_on(RingProblem problem, int ranks, Deal deal, annulus::Index leaf,
                                   annulus::Rotation rotation, std::uint64_t seed) {
  RandomChoice choose(seed);
  OracleProblem const& d = problem.dense;
  problem.ranks = ranks;
  problem.options.reproducible = true;
  problem.options.reproducible_leaf = leaf;
  problem.options.rotation = d.bias || d.mask ? annulus::Rotation::keys : rotation;
  if (deal == Deal::block_striped)
    problem.options.sharding = annulus::Striped{leaf};
  else
    problem.options.sharding = annulus::ExplicitMap{dealt_positions(deal, ranks, d.query_length, leaf, choose),
                                                    dealt_positions(deal, ranks, d.key_length, leaf, choose)};
  take_lengths_from_sharding(problem);
  problem.text += "; reproducible on " + std::to_string(ranks) + " ranks, deal " +
                  std::to_string(static_cast<int>(deal)) + ", leaf " + std::to_string(leaf) + ", rotation " +
                  std::string(annulus::name_of(rotation));
  return problem;
}

}  // namespace annulus_test
