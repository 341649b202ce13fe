#pragma once
// Small problems with chosen extents, and shardings of every kind for them.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>
#include <vector>

#include "support/ring_problem.hpp"

namespace annulus_test {

/// key_length and value_dim: 0 stands for query_length and head_dim.
struct Extents {
  std::int64_t batch = 1;
  std::int64_t query_heads = 2;
  std::int64_t kv_heads = 1;
  std::int64_t query_length = 24;
  std::int64_t key_length = 0;
  std::int64_t head_dim = 4;
  std::int64_t value_dim = 0;
};

/// Random operands of these extents on a ring; no options. A test then changes `dense`, and calls `settle`.
inline RingProblem small_ring_problem(Extents const& extents, int ranks, annulus::Sharding sharding = {},
                                      annulus::Rotation rotation = annulus::Rotation::automatic,
                                      std::uint64_t seed = 1) {
  RingProblem problem;
  OracleProblem& d = problem.dense;
  d.batch = extents.batch;
  d.query_heads = extents.query_heads;
  d.kv_heads = extents.kv_heads;
  d.query_length = extents.query_length;
  d.key_length = extents.key_length == 0 ? extents.query_length : extents.key_length;
  d.head_dim = extents.head_dim;
  d.value_dim = extents.value_dim == 0 ? extents.head_dim : extents.value_dim;
  problem.ranks = ranks;
  problem.options.sharding = std::move(sharding);
  problem.options.rotation = rotation;
  std::mt19937_64 engine(seed);
  fill_operands(problem, engine);
  return problem;
}

/// Copies the options of `dense`, and sets the lengths of the shards unless the test has set them.
inline void settle(RingProblem& problem) {
  take_options_from_dense(problem);
  if (problem.query_lengths.empty()) take_lengths_from_sharding(problem);
  std::ostringstream text;
  OracleProblem const& d = problem.dense;
  text << problem.ranks << " ranks, " << problem.options.sharding.name() << ", rotation "
       << name_of(problem.options.rotation) << ", lengths " << d.query_length << " x " << d.key_length;
  problem.text = text.str();
}

/// A random bias in [-reach, reach] for every pair of query and key.
inline void give_bias(RingProblem& problem, std::int64_t batch, std::int64_t heads, double reach = 2) {
  std::mt19937_64 engine(77);
  OracleProblem& d = problem.dense;
  d.bias = {batch, heads, uniform(engine, batch * heads * d.query_length * d.key_length, reach)};
}

/// A boolean mask in which about `visible` of 4 pairs are visible.
inline void give_mask(RingProblem& problem, std::int64_t batch, std::int64_t heads, unsigned visible = 3) {
  std::mt19937_64 engine(78);
  OracleProblem& d = problem.dense;
  d.mask = {batch, heads, {}};
  for (std::int64_t i = 0; i < batch * heads * d.query_length * d.key_length; ++i)
    d.mask->values.push_back(engine() % 4 < visible ? 1 : 0);
}

inline void give_sinks(RingProblem& problem, std::int64_t count, double reach = 2) {
  std::mt19937_64 engine(79);
  problem.dense.sinks = {count, uniform(engine, problem.dense.query_heads * count, reach)};
}

/// The same documents for queries and keys of every batch item: `lengths` rows of the ids 1, 2, ... one after another.
inline std::vector<int> documents_of_lengths(std::int64_t batch, std::vector<int> const& lengths) {
  std::vector<int> ids;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::size_t document = 0; document < lengths.size(); ++document)
      ids.insert(ids.end(), static_cast<std::size_t>(lengths[document]), static_cast<int>(document) + 1);
  return ids;
}

inline void give_documents(RingProblem& problem, std::vector<int> const& ids) {
  problem.dense.query_documents = ids;
  problem.dense.key_documents = ids;
}

using PositionMap = std::vector<std::vector<annulus::Index>>;

/// The interleaved variant of zigzag: rank r owns the positions p with p mod 2W == r or 2W - 1 - r.
inline PositionMap interleaved_zigzag(int ranks, std::int64_t length) {
  PositionMap map(static_cast<std::size_t>(ranks));
  for (annulus::Index p = 0; p < length; ++p) {
    annulus::Index const place = p % (2 * ranks);
    map[static_cast<std::size_t>(std::min<annulus::Index>(place, 2 * ranks - 1 - place))].push_back(p);
  }
  return map;
}

/// Near-equal blocks; rank r owns block order(r).
template <class Order>
PositionMap blocks_in_order(int ranks, std::int64_t length, Order&& order) {
  PositionMap map(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    annulus::Index const block = order(r);
    for (annulus::Index p = block * length / ranks; p < (block + 1) * length / ranks; ++p)
      map[static_cast<std::size_t>(r)].push_back(p);
  }
  return map;
}

/// A random permutation of all positions over the ranks.
inline PositionMap shuffled_positions(int ranks, std::int64_t length, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  PositionMap map(static_cast<std::size_t>(ranks));
  std::vector<annulus::Index> positions(static_cast<std::size_t>(length));
  std::iota(positions.begin(), positions.end(), annulus::Index{0});
  std::shuffle(positions.begin(), positions.end(), engine);
  for (annulus::Index p : positions) map[engine() % map.size()].push_back(p);
  return map;
}

/// One sharding of each kind.
inline std::vector<annulus::Sharding> every_sharding(int ranks, std::int64_t queries, std::int64_t keys) {
  using annulus::ExplicitMap;
  auto const backwards = [ranks](int r) { return ranks - 1 - r; };
  return {annulus::Contiguous{},
          annulus::Striped{},
          annulus::Striped{3},
          annulus::Zigzag{},
          ExplicitMap{interleaved_zigzag(ranks, queries), interleaved_zigzag(ranks, keys)},
          ExplicitMap{blocks_in_order(ranks, queries, backwards), blocks_in_order(ranks, keys, backwards)},
          ExplicitMap{shuffled_positions(ranks, queries, 5), shuffled_positions(ranks, keys, 6)}};
}

/// A named change of a problem.
struct ProblemChange {
  char const* name;
  std::function<void(RingProblem&)> change;
};

/// Options and optional operands that change logits or weights pair by pair.
inline std::vector<ProblemChange> const logit_options{
    {"soft cap", [](RingProblem& p) { p.dense.logit_softcap = 0.7; }},
    {"bias", [](RingProblem& p) { give_bias(p, 1, p.dense.query_heads); }},
    {"bias shared by heads", [](RingProblem& p) { p.dense.causal = true, give_bias(p, 1, 1); }},
    {"boolean mask", [](RingProblem& p) { give_mask(p, 1, 1); }},
    {"sink logits", [](RingProblem& p) { give_sinks(p, 2); }},
    {"dropout",
     [](RingProblem& p) { p.dense.dropout_probability = 0.3, p.dense.dropout_seed = 5, p.dense.causal = true; }},
    {"soft cap, bias, dropout",
     [](RingProblem& p) {
       p.dense.logit_softcap = 2, p.dense.dropout_probability = 0.2, p.dense.dropout_seed = 6;
       give_bias(p, 1, p.dense.query_heads);
     }},
};

}  // namespace annulus_test
