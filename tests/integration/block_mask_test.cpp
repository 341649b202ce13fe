// Block-sparse masks: the same results as the boolean mask that says the same, and no work, bytes or reads for hidden
// blocks.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/refusal.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

/// Random blocks that cover a problem; about `visible` of 4 may be seen.
BlockMask random_blocks(RandomChoice& choose, RingProblem const& problem, std::int64_t visible) {
  OracleProblem const& d = problem.dense;
  Index const query_block = choose.between(1, 9), key_block = choose.between(1, 9);
  Index const rows = (problem.options.query_offset.value_or(0) + d.query_length) / query_block + 1;
  Index const columns = d.key_length / key_block + 1;
  std::vector<bool> blocks;
  for (Index i = 0; i < rows * columns; ++i) blocks.push_back(choose.below(4) < visible);
  return {query_block, key_block, columns, blocks};
}

/// The problem with the boolean mask that says what the blocks say, besides a mask that it may have.
RingProblem with_tensor(RingProblem problem, BlockMask const& blocks) {
  OracleProblem& d = problem.dense;
  if (!d.mask) d.mask = {1, 1, std::vector<char>(static_cast<std::size_t>(d.query_length * d.key_length), 1)};
  std::size_t place = 0;
  for (std::int64_t item = 0; item < d.mask->batch * d.mask->heads; ++item)
    for (Index q = 0; q < d.query_length; ++q)
      for (Index k = 0; k < d.key_length; ++k, ++place)
        if (!blocks.visible(q + problem.options.query_offset.value_or(0), k)) d.mask->values[place] = 0;
  return problem;
}

/// Complaints of the oracle about the problem with blocks, by backend B.
template <class T, class B>
std::string complaint_about(RingProblem problem, BlockMask const& blocks, ZeroCopy zero_copy, Bounds bounds) {
  problem.options.block_mask = blocks;
  auto const results = results_of_ranks<T>(problem, B{}, {.zero_copy = zero_copy});
  return judge(with_tensor(problem, blocks), assemble(problem, results), bounds).complaint;
}

RingPlan plan_with(RingProblem problem, BlockMask const& blocks, Pass pass = Pass::forward) {
  problem.options.block_mask = blocks;
  return plan_of<float>(problem, pass);
}

/// Blocks of `block` positions of which those on the diagonal are visible.
BlockMask diagonal(Index block, Index count) {
  std::vector<bool> visible(static_cast<std::size_t>(count * count), false);
  for (Index i = 0; i < count; ++i) visible[static_cast<std::size_t>(i * count + i)] = true;
  return {block, block, count, visible};
}

}  // namespace

TEST_CASE("a block mask gives the results of the boolean mask that says the same", "[trap][blocks]") {
  int tested = 0;
  for (std::uint64_t seed = 940'000; tested < 80; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    if (problem.options.query_offset.value_or(0) < 0) continue;
    ++tested;
    RandomChoice choose(seed);
    BlockMask const blocks = random_blocks(choose, problem, choose.between(0, 3));
    ZeroCopy const zero_copy = seed % 2 == 0 ? ZeroCopy::automatic : ZeroCopy::never;
    INFO(problem.text);
    CHECK(complaint_about<double, ReferenceBackend>(problem, blocks, zero_copy, double_bounds) == "");
    round_operands<float>(problem);
    CHECK(complaint_about<float, CpuBackend>(problem, blocks, zero_copy, float_bounds) == "");
  }
}

TEST_CASE("a plan with a block mask counts and holds what is visible, and no more work", "[blocks]") {
  int tested = 0;
  for (std::uint64_t seed = 950'000; tested < 150; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    if (problem.options.query_offset.value_or(0) < 0 || problem.dense.mask) continue;
    ++tested;
    RandomChoice choose(seed);
    BlockMask const blocks = random_blocks(choose, problem, 1);
    for (Pass pass : {Pass::forward, Pass::backward}) {
      RingPlan const plan = plan_with(problem, blocks, pass);
      Mask const& mask = problem.options.mask;
      Index const offset = problem.options.query_offset.value_or(0);
      INFO(problem.text);
      for (Rank rank = 0; rank < plan.ranks(); ++rank)
        for (int i = 0; i < plan.steps(); ++i) {
          Rank const owner = plan.owner(rank, i);
          bool const keys = plan.rotation() == Rotation::keys;
          Index pairs = 0;
          for (Index q : positions_of(plan.query_segments(keys ? rank : owner)))
            for (Index k : positions_of(plan.key_segments(keys ? owner : rank)))
              pairs += mask.visible(q + offset, k) && blocks.visible(q + offset, k);
          CHECK(plan.step(rank, i).visible_pairs == pairs);
          Index in_tiles = 0;
          for (Tile const& tile : plan.tiles(rank, i)) in_tiles += tile.visible_pairs;
          CHECK(in_tiles == pairs);
        }
    }
  }
}

TEST_CASE("hidden blocks take no steps, bytes or reads", "[blocks]") {
  RingProblem problem = small_ring_problem({.query_length = 64, .head_dim = 8}, 4);
  settle(problem);
  RingPlan const whole = plan_with(problem, {});
  CHECK(whole.steps() == 4);

  // On the diagonal each rank sees its own keys alone.
  RingPlan const own = plan_with(problem, diagonal(16, 4));
  CHECK(own.steps() == 1);
  CHECK(own.total_bytes_sent() == 0);
  CHECK(own.multiply_adds(0) * 4 == whole.multiply_adds(0));

  // Two diagonals: a quarter of the rows of the rank before.
  std::vector<bool> visible(16 * 16, false);
  for (std::size_t i = 0; i < 16; ++i) visible[i * 16 + i] = visible[i * 16 + (i + 15) % 16] = true;
  RingPlan const two = plan_with(problem, {4, 4, 16, visible});
  CHECK(two.steps() == 2);
  CHECK(two.total_bytes_sent() * 3 * 4 == whole.total_bytes_sent());

  // Keys of no visible block are never read.
  std::vector<bool> without(16, true);
  for (std::size_t i = 0; i < 4; ++i) without[i * 4 + 2] = false;
  BlockMask const blocks(16, 16, 4, without);
  for (std::size_t i = 32 * 8; i < 48 * 8; ++i)
    problem.dense.k[i] = problem.dense.v[i] = std::numeric_limits<double>::quiet_NaN();
  problem.options.block_mask = blocks;
  for (bool reference : {true, false}) {
    auto const results = run_ring(4, [&](SimulatedRing& ring) {
      if (reference) {
        ReferenceBackend backend;
        return run_rank<float>(problem, ring, backend);
      }
      CpuBackend backend;
      return run_rank<float>(problem, ring, backend);
    });
    RingResult const all = assemble(problem, results);
    auto const finite = [](double value) { return std::isfinite(value); };
    CHECK(std::all_of(all.output.begin(), all.output.end(), finite));
    CHECK(std::all_of(all.dq.begin(), all.dq.end(), finite));
    CHECK(std::all_of(all.dk.begin() + 32 * 8, all.dk.begin() + 48 * 8, [](double value) { return value == 0; }));
  }
}

TEST_CASE("so many blocks that pairs are tested one by one give the same results", "[blocks]") {
  RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = 600, .head_dim = 4}, 2);
  settle(problem);
  RandomChoice choose(5);
  std::vector<bool> visible;
  for (int i = 0; i < 600 * 600; ++i) visible.push_back(choose.one_in(3));
  BlockMask const blocks(1, 1, 600, visible);
  CHECK(plan_with(problem, blocks).tiles(0, 0).size() == 1);
  CHECK(complaint_about<double, ReferenceBackend>(problem, blocks, ZeroCopy::automatic, double_bounds) == "");
  round_operands<float>(problem);
  CHECK(complaint_about<float, CpuBackend>(problem, blocks, ZeroCopy::automatic, float_bounds) == "");
}

TEST_CASE("block masks that cannot be are refused, on all ranks", "[blocks]") {
  std::vector<bool> const six(6, true);
  check_refused(
      {{"no rows", "ShapeError", "blocks of 0 x 1 positions", [&] { BlockMask(0, 1, 1, six); }},
       {"a part of a row", "ShapeError", "a multiple of the number of key blocks, 4", [&] { BlockMask(4, 4, 4, six); }},
       {"no blocks", "ShapeError", "0 booleans are given", [] { BlockMask(4, 4, 2, {}); }}});
  auto const solved = [](BlockMask const& blocks, Index offset) {
    return [blocks, offset](SimulatedRing& ring) {
      RingProblem problem = small_ring_problem({.query_length = 24}, 3);
      problem.dense.query_offset = offset;
      settle(problem);
      problem.options.block_mask = blocks;
      ReferenceBackend backend;
      run_rank<float>(problem, ring, backend);
    };
  };
  std::vector<bool> visible(9, true);
  BlockMask const all(8, 8, 3, visible);
  visible[1] = false;
  BlockMask const other(8, 8, 3, visible);
  std::vector<Refusal<SimulatedRing&>> const table{
      {"too few queries", "ShapeError", "block mask covers the query positions [0, 16); the queries have [0, 24)",
       solved(diagonal(8, 2), 0)},
      {"queries beyond", "ShapeError", "block mask covers the query positions [0, 24); the queries have [1, 25)",
       solved(diagonal(8, 3), 1)},
      {"too few keys", "ShapeError", "block mask covers 16 keys", solved(BlockMask(8, 8, 2, six), 0)},
      {"another on one rank", "CommunicationError", "different block mask: rank 0 has",
       [&](SimulatedRing& ring) { solved(ring.rank() == 0 ? all : other, 0)(ring); }}};
  check_refused(table, on_ring(3));
  CHECK(BlockMask(8, 8, 2, {true, false}) == BlockMask(8, 8, 2, {true, false}));
  CHECK_FALSE(BlockMask(8, 8, 2, {true, false}) == BlockMask(8, 4, 2, {true, false}));
}
