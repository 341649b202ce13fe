#pragma once
// Random problems over mask x sharding x ranks x heads x operands, with sizes that are edge cases.

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "support/ring_problem.hpp"

namespace annulus_test {

class RandomChoice {
 public:
  explicit RandomChoice(std::uint64_t seed) : engine_(seed) {}

  std::mt19937_64& engine() { return engine_; }
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(limit));
  }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

/// Positions assigned to the ranks at random: runs of random length and stride, in random order.
inline std::vector<std::vector<annulus::Index>> random_map(RandomChoice& choose, int ranks, std::int64_t length) {
  std::vector<std::vector<annulus::Index>> map(static_cast<std::size_t>(ranks));
  std::vector<annulus::Index> positions(static_cast<std::size_t>(length));
  std::iota(positions.begin(), positions.end(), annulus::Index{0});
  if (choose.one_in(2)) std::shuffle(positions.begin(), positions.end(), choose.engine());
  for (annulus::Index position : positions) map[static_cast<std::size_t>(choose.below(ranks))].push_back(position);
  return map;
}

inline void choose_sharding(RandomChoice& choose, RingProblem& problem) {
  std::int64_t const kind = choose.below(6);
  bool lengths_are_set = false;
  auto const uneven = [&](std::int64_t length) {
    std::vector<annulus::Index> cuts{0, length};
    for (int i = 1; i < problem.ranks; ++i) cuts.push_back(choose.between(0, length));
    std::sort(cuts.begin(), cuts.end());
    std::vector<annulus::Index> lengths;
    for (std::size_t i = 1; i < cuts.size(); ++i) lengths.push_back(cuts[i] - cuts[i - 1]);
    return lengths;
  };
  if (kind == 1) {
    problem.query_lengths = uneven(problem.dense.query_length);
    problem.key_lengths = uneven(problem.dense.key_length);
    lengths_are_set = true;
  }
  if (kind == 2) problem.options.sharding = annulus::Striped{};
  if (kind == 3) problem.options.sharding = annulus::Zigzag{};
  if (kind == 4) problem.options.sharding = annulus::Striped{choose.between(2, 9)};
  if (kind == 5)
    problem.options.sharding = annulus::ExplicitMap{random_map(choose, problem.ranks, problem.dense.query_length),
                                                    random_map(choose, problem.ranks, problem.dense.key_length)};
  if (!lengths_are_set) take_lengths_from_sharding(problem);
}

inline void choose_mask(RandomChoice& choose, OracleProblem& dense) {
  std::int64_t const longest = std::max(dense.query_length, dense.key_length);
  dense.causal = choose.one_in(2);
  if (choose.one_in(3)) dense.window_left = choose.between(-1, longest);
  if (choose.one_in(4)) dense.window_right = choose.between(-1, longest);
  if (choose.one_in(4)) dense.sink_tokens = choose.between(0, longest / 2 + 1);
  if (choose.one_in(6)) dense.chunk = choose.between(1, longest + 1);
  if (choose.one_in(4)) dense.query_offset = choose.between(-longest, longest);
}

/// Document ids of random runs; sometimes padding, ids out of order, or a document in several runs.
inline std::vector<int> random_documents(RandomChoice& choose, std::int64_t batch, std::int64_t length) {
  std::vector<int> ids;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t remaining = 0;
    int id = 0;
    for (std::int64_t i = 0; i < length; ++i, --remaining) {
      if (remaining <= 0) {
        remaining = choose.between(1, 12);
        id = choose.one_in(6) ? static_cast<int>(choose.between(-1, 3)) : id + 1;
      }
      ids.push_back(id);
    }
  }
  return ids;
}

inline void choose_operands(RandomChoice& choose, RingProblem& problem) {
  OracleProblem& d = problem.dense;
  auto const pairs = [&] { return std::pair{choose.one_in(2) ? d.batch : 1, choose.one_in(2) ? d.query_heads : 1}; };
  if (choose.one_in(4)) {
    auto const [batch, heads] = pairs();
    d.bias = {batch, heads, uniform(choose.engine(), batch * heads * d.query_length * d.key_length, 2)};
  }
  if (choose.one_in(5)) {
    auto const [batch, heads] = pairs();
    d.mask = {batch, heads, {}};
    for (std::int64_t i = 0; i < batch * heads * d.query_length * d.key_length; ++i)
      d.mask->values.push_back(choose.one_in(3) ? 0 : 1);
  }
  if (choose.one_in(4)) {
    d.query_documents = random_documents(choose, d.batch, d.query_length);
    d.key_documents = d.query_length == d.key_length && choose.one_in(2)
                          ? *d.query_documents
                          : random_documents(choose, d.batch, d.key_length);
  }
  if (choose.one_in(4)) {
    d.sinks.emplace();
    d.sinks->count = choose.between(1, 3);
    d.sinks->values = uniform(choose.engine(), d.query_heads * d.sinks->count, 2);
  }
}

inline std::string describe(RingProblem const& problem, std::uint64_t seed) {
  OracleProblem const& d = problem.dense;
  std::ostringstream out;
  out << "seed " << seed << ": " << problem.ranks << " ranks, " << problem.options.sharding.name() << ", rotation "
      << name_of(problem.options.rotation) << ", batch " << d.batch << ", heads " << d.query_heads << ":" << d.kv_heads
      << ", dims " << d.head_dim << "/" << d.value_dim << ", lengths " << d.query_length << " x " << d.key_length
      << ", causal " << d.causal << ", window " << d.window_left.value_or(-1) << "," << d.window_right.value_or(-1)
      << ", sink tokens " << d.sink_tokens << ", chunk " << d.chunk << ", offset " << d.query_offset << ", softcap "
      << d.logit_softcap << ", dropout " << d.dropout_probability << (d.bias ? ", bias" : "")
      << (d.mask ? ", mask" : "") << (d.query_documents ? ", documents" : "") << (d.sinks ? ", sinks" : "");
  return out.str();
}

/// Chooses everything but ranks, heads, dims and lengths, which are set.
inline void choose_options_and_operands(RandomChoice& choose, RingProblem& problem, std::uint64_t seed) {
  OracleProblem& d = problem.dense;
  choose_mask(choose, d);
  if (choose.one_in(4)) d.softmax_scale = choose.of({0.0, -0.3, 0.11, 1.0, 2.5});
  if (choose.one_in(5)) d.logit_softcap = choose.of({0.5, 2.0, 30.0});
  if (choose.one_in(5)) {
    d.dropout_probability = choose.of({0.1, 0.5, 0.9});
    d.dropout_seed = choose.engine()();
  }
  choose_sharding(choose, problem);
  fill_operands(problem, choose.engine());
  choose_operands(choose, problem);
  take_options_from_dense(problem);
  bool const bound = d.bias || d.mask;
  problem.options.rotation =
      bound ? choose.of({annulus::Rotation::automatic, annulus::Rotation::keys})
            : choose.of({annulus::Rotation::automatic, annulus::Rotation::keys, annulus::Rotation::queries});
  problem.text = describe(problem, seed);
}

/// Chooses a type for the operands to travel in. Call it last: the other choices of a seed do not depend on it.
inline void choose_wire(RandomChoice& choose, RingProblem& problem) {
  using annulus::Wire;
  problem.options.wire = choose.of({Wire::as_stored, Wire::as_stored, Wire::bfloat16, Wire::half});
  problem.text += ", wire " + std::string(name_of(problem.options.wire));
}

/// The random problem of a seed; equal for equal seeds.
inline RingProblem random_ring_problem(std::uint64_t seed) {
  RandomChoice choose(seed);
  RingProblem problem;
  OracleProblem& d = problem.dense;
  problem.ranks =
      static_cast<int>(choose.one_in(3) ? choose.between(1, 16) : choose.of<std::int64_t>({1, 2, 3, 4, 5, 7, 8}));
  d.batch = choose.of<std::int64_t>({1, 1, 2, 3});
  d.kv_heads = choose.of<std::int64_t>({1, 1, 2, 3});
  d.query_heads = d.kv_heads * choose.of<std::int64_t>({1, 1, 2, 3});
  d.head_dim = choose.of<std::int64_t>({1, 2, 3, 4, 7, 8, 13, 16, 17, 32, 33, 64, 127, 128, 256});
  d.value_dim = choose.one_in(2) ? d.head_dim : choose.of<std::int64_t>({1, 2, 5, 8, 16, 31, 64});
  auto const length = [&] {
    return choose.one_in(12)
               ? choose.of<std::int64_t>({0, 1, 2})
               : choose.of<std::int64_t>({3, 5, 7, 11, 15, 16, 17, 23, 31, 32, 33, 47, 61, 63, 64, 65, 97});
  };
  d.query_length = length();
  d.key_length = choose.one_in(3) ? length() : d.query_length;
  choose_options_and_operands(choose, problem, seed);
  choose_wire(choose, problem);
  return problem;
}

/// Gives the problem `count` random joint keys, without the dropout that they exclude.
inline void give_joint_keys(RingProblem& problem, std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  OracleProblem const& d = problem.dense;
  problem.dense.dropout_probability = problem.options.dropout.probability = 0;
  problem.joint_length = count;
  problem.joint_keys = uniform(engine, d.batch * count * d.kv_heads * d.head_dim);
  problem.joint_values = uniform(engine, d.batch * count * d.kv_heads * d.value_dim);
}

}  // namespace annulus_test
