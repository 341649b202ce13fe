// Traps of sizes, heads, and ownership of positions.

#include <annulus/sharding/scatter_gather.hpp>
#include <annulus/tensor/eigen.hpp>

#include "integration/solve.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::ExplicitMap;
using annulus::Rotation;
using annulus::Side;

TEST_CASE("shards around a multiple of 128 rows need no padding", "[trap][C8]") {
  for (std::int64_t rows : {1, 127, 128, 129, 200})
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = 2 * rows, .head_dim = 3}, 2,
                                               annulus::Zigzag{}, rotation);
      problem.dense.causal = true;
      CHECK(complaints(problem) == "");
    }
}

TEST_CASE("the sequence length need not be a multiple of any block size", "[trap][C23]") {
  for (std::int64_t length : {13, 31, 45})
    for (annulus::Index block : {1, 2, 3, 4, 7, 16, 64})
      for (int ranks : {2, 3, 4}) {
        RingProblem problem = small_ring_problem({.query_length = length}, ranks, annulus::Striped{block});
        problem.dense.causal = true;
        CHECK(complaints(problem) == "");
      }
}

TEST_CASE("a query head reads kv head h / group, and dk and dv sum over the group", "[trap][C24]") {
  for (std::int64_t kv_heads : {1, 2, 3, 6})
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem = small_ring_problem({.batch = 2, .query_heads = 6, .kv_heads = kv_heads, .query_length = 17},
                                               3, annulus::Striped{}, rotation);
      problem.dense.causal = true;
      CHECK(complaints(problem) == "");

      // The values of each kv head are its index, so the output of a query head is the index of the head it reads.
      for (std::size_t i = 0; i < problem.dense.v.size(); ++i)
        problem.dense.v[i] = static_cast<double>(static_cast<std::int64_t>(i) / 4 % kv_heads);
      RingResult const result = solve<double>(problem);
      for (std::size_t i = 0; i < result.output.size(); ++i) {
        auto const head = static_cast<std::int64_t>(i) / 4 % 6;
        CHECK(std::abs(result.output[i] - static_cast<double>(head / (6 / kv_heads))) <= 1e-14);
      }
    }
}

TEST_CASE("head_dim and value_dim may differ", "[trap][C25]") {
  for (auto const& [head_dim, value_dim] : {std::pair{192, 128}, std::pair{128, 192}, std::pair{7, 1}, std::pair{1, 7}})
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem = small_ring_problem({.query_length = 21, .head_dim = head_dim, .value_dim = value_dim}, 3,
                                               annulus::Zigzag{}, rotation);
      problem.dense.causal = true;
      CHECK(complaints(problem) == "");
    }
}

TEST_CASE("both layouts called zigzag equal dense attention", "[trap][C27]") {
  for (int ranks : {1, 2, 3, 5})
    for (std::int64_t length : {16, 30, 37})
      for (annulus::Sharding const& sharding :
           {annulus::Sharding(annulus::Zigzag{}),
            annulus::Sharding(ExplicitMap{interleaved_zigzag(ranks, length), {}})}) {
        RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = length}, ranks, sharding);
        problem.dense.causal = true;
        CHECK(complaints(problem) == "");
      }
}

TEST_CASE("shards may be empty or uneven, and so may documents", "[trap][C29]") {
  using Lengths = std::vector<annulus::Index>;
  for (auto const& [queries, keys] :
       {std::pair{Lengths{0, 1, 7, 0}, Lengths{0, 1, 7, 0}}, std::pair{Lengths{8, 0, 0, 0}, Lengths{0, 0, 0, 8}},
        std::pair{Lengths{0, 0, 3, 5}, Lengths{7, 1, 0, 0}}, std::pair{Lengths{0, 0, 0, 0}, Lengths{2, 2, 2, 2}},
        std::pair{Lengths{2, 2, 2, 2}, Lengths{0, 0, 0, 0}}})
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (bool causal : {false, true}) {
        RingProblem problem = small_ring_problem({.query_length = 1}, 4, {}, rotation);
        OracleProblem& d = problem.dense;
        problem.query_lengths = queries;
        problem.key_lengths = keys;
        d.query_length = std::accumulate(queries.begin(), queries.end(), annulus::Index{0});
        d.key_length = std::accumulate(keys.begin(), keys.end(), annulus::Index{0});
        d.causal = causal;
        std::mt19937_64 engine(3);
        fill_operands(problem, engine);
        give_sinks(problem, 1);
        CHECK(complaints(problem) == "");
      }

  // Fewer positions than ranks, in the shardings that determine their lengths; and a document with queries but no keys.
  for (annulus::Sharding const& sharding : every_sharding(5, 3, 4)) {
    RingProblem problem = small_ring_problem({.query_length = 3, .key_length = 4}, 5, sharding);
    problem.dense.query_documents = {2, 7, 2};
    problem.dense.key_documents = {2, 3, 3, 2};
    CHECK(complaints(problem) == "");
  }
}

TEST_CASE("keys and queries are sharded separately, each with its own lengths", "[trap][C32]") {
  for (auto const& [queries, keys] : {std::pair{9, 40}, std::pair{40, 9}, std::pair{16, 17}})
    for (int ranks : {2, 3, 4})
      for (annulus::Sharding const& sharding : every_sharding(ranks, queries, keys))
        for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
          RingProblem problem =
              small_ring_problem({.query_length = queries, .key_length = keys}, ranks, sharding, rotation);
          CHECK(complaints(problem) == "");
        }
}

TEST_CASE("rings of 1, 2 and prime numbers of ranks give the results of dense attention", "[trap][C35]") {
  for (int ranks : {1, 2, 3, 5, 7, 11, 16})
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (bool local : {false, true}) {
        RingProblem problem = small_ring_problem({.query_length = 40}, ranks, {}, rotation);
        problem.dense.causal = true;
        // With a window, results return directly to their owner instead of around the ring.
        if (local) problem.dense.window_left = 11;
        give_sinks(problem, 1);
        CHECK(complaints(problem) == "");
      }
}

TEST_CASE("the label of a position is the next position's token, also across shards", "[trap][C41]") {
  // The library does not shift labels: users shard labels by the same segments as tokens.
  for (int ranks : {1, 2, 3, 4})
    for (annulus::Sharding const& sharding : every_sharding(ranks, 21, 21)) {
      constexpr int ignored = -100;
      std::vector<int> tokens(21), labels(21, ignored);
      for (std::size_t i = 0; i < 21; ++i) tokens[i] = static_cast<int>(1000 + i * i);
      std::copy(tokens.begin() + 1, tokens.end(), labels.begin());

      auto const lengths = sharding.lengths(Side::query, ranks, 21);
      for (int rank = 0; rank < ranks; ++rank) {
        auto const segments = sharding.segments(Side::query, rank, lengths);
        std::vector<int> local(static_cast<std::size_t>(annulus::rows_of(segments)));
        annulus::scatter_into(annulus::TensorView<int const, 1>(labels.data(), {21}),
                              std::span(std::as_const(segments)),
                              annulus::TensorView<int, 1>(local.data(), {annulus::rows_of(segments)}), 0);
        std::vector<annulus::Index> const positions = annulus::positions_of(segments);
        REQUIRE(positions.size() == local.size());
        for (std::size_t row = 0; row < local.size(); ++row) {
          auto const next = static_cast<std::size_t>(positions[row]) + 1;
          CHECK(local[row] == (next < 21 ? tokens[next] : ignored));
        }
      }
    }
}
