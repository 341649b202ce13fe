// Options::reproducible: the same bits for any number of ranks, sharding of whole leaves, rotation, exchange and number
// of threads; errors as without it; and differences that the comparison of bits detects.

#include <annulus/annulus.hpp>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/planned_pass.hpp"
#include "support/refusal.hpp"
#include "support/reproducible_problem.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::Rotation;
using annulus::SimulatedRing;

namespace {

constexpr std::array deals{Deal::contiguous, Deal::zigzag, Deal::block_striped, Deal::shuffled};

template <class T, class Backend, class Placement = HostPlacement>
RingResult result_of(RingProblem const& problem, annulus::ZeroCopy zero_copy = annulus::ZeroCopy::automatic,
                     int threads = 0) {
  Backend backend{};
  if constexpr (requires { backend.threads; }) backend.threads = threads;
  return whole_result<T, Placement>(problem, backend, {.zero_copy = zero_copy});
}

/// Every number of ranks and rotation, each with one of the shardings and exchanges, against one rank.
template <class T, class Backend>
void check_all_rings(RingProblem const& given, annulus::Index leaf, std::uint64_t seed,
                     Bounds const* bounds = nullptr) {
  RingProblem problem = given;
  round_operands<T>(problem);
  RingProblem const alone = reproducible_on(problem, 1, Deal::contiguous, leaf, Rotation::keys, seed);
  INFO(alone.text);
  RingResult const expected = result_of<T, Backend>(alone);
  if (bounds) CHECK(judge(alone, expected, *bounds).complaint == "");
  for (int ranks : reproducible_ranks)
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      auto const turn = static_cast<std::size_t>(ranks) + seed + (rotation == Rotation::keys ? 0 : 1);
      RingProblem const other = reproducible_on(problem, ranks, deals[turn % deals.size()], leaf, rotation, seed);
      INFO(other.text);
      auto const zero_copy = turn % 3 == 0 ? annulus::ZeroCopy::never : annulus::ZeroCopy::automatic;
      CHECK(different_results(result_of<T, Backend>(other, zero_copy), expected) == "");
    }
}

template <class T, class Backend>
void sweep_reproducible(std::uint64_t first_seed, std::uint64_t count, Bounds const* bounds = nullptr) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RandomChoice choose(seed);
    check_all_rings<T, Backend>(random_ring_problem(seed), choose.of<annulus::Index>({1, 2, 3, 4, 5, 8, 16}), seed,
                                bounds);
  }
}

/// A problem whose leaves have several blocks of the fast kernels.
RingProblem long_problem() {
  RingProblem problem = small_ring_problem(
      {.batch = 1, .query_heads = 2, .kv_heads = 1, .query_length = 2300, .head_dim = 32, .value_dim = 24}, 1);
  problem.dense.causal = true;
  settle(problem);
  return problem;
}

/// Backend that joins partial results in another order where that is asked: as an arrival in another order would.
struct MisjoiningBackend : annulus::ReferenceBackend {
  bool misjoins = false;

  template <class A>
  void merge(annulus::RunningState<A, annulus::HostMemory> into, annulus::RunningState<A, annulus::HostMemory> from) {
    annulus::ReferenceBackend::merge(into, from);
    if (misjoins) scale(into.sum);
  }
  template <class A, std::size_t N>
  void add(annulus::TensorView<A, N> into, annulus::TensorView<A const, N> from) {
    annulus::ReferenceBackend::add(into, from);
    if (misjoins) scale(into);
  }

 private:
  /// The smallest change that another order of a sum can make: one rounding.
  template <class A, std::size_t N>
  static void scale(annulus::TensorView<A, N> sums) {
    annulus::detail::for_each_element(sums, sums,
                                      [](A& sum, A&) { sum = std::nextafter(sum, std::numeric_limits<A>::max()); });
  }
};

}  // namespace

TEST_CASE("reproducible: the reference backend, every option", "[reproducible]") {
  sweep_reproducible<float, annulus::ReferenceBackend>(910'000, 24, &float_bounds);
  sweep_reproducible<double, annulus::ReferenceBackend>(911'000, 8, &double_bounds);
}

TEST_CASE("reproducible: the fast backend, every option and element type", "[reproducible]") {
  sweep_reproducible<float, annulus::CpuBackend>(920'000, 24);
  sweep_reproducible<double, annulus::CpuBackend>(921'000, 12, &double_bounds);
  sweep_reproducible<Eigen::half, annulus::CpuBackend>(922'000, 12);
  sweep_reproducible<Eigen::bfloat16, annulus::CpuBackend>(923'000, 12);
}

TEST_CASE("reproducible: leaves of many blocks, any number of threads", "[reproducible]") {
  RingProblem problem = long_problem();
  round_operands<float>(problem);
  auto const on = [&](int ranks, Deal deal, Rotation rotation) {
    return reproducible_on(problem, ranks, deal, 256, rotation, 1);
  };
  RingResult const expected =
      result_of<float, annulus::CpuBackend>(on(1, Deal::contiguous, Rotation::keys), annulus::ZeroCopy::automatic, 1);
  for (int ranks : {1, 2, 3, 8})
    for (int threads : {1, 3})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        CAPTURE(ranks, threads, rotation == Rotation::keys);
        Deal const deal = ranks == 3 ? Deal::contiguous : Deal::zigzag;
        CHECK(different_results(result_of<float, annulus::CpuBackend>(on(ranks, deal, rotation),
                                                                      annulus::ZeroCopy::automatic, threads),
                                expected) == "");
      }
}

TEST_CASE("reproducible: few queries and many keys, without lse_remainder", "[reproducible]") {
  // Steps that the fast backend computes as when decoding, with its keys split among threads.
  constexpr annulus::Index keys = 6 * 1024, rows = 3, heads = 4, dim = 64;
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Tensor q(1, rows, heads, dim), k(1, keys, 2, dim), v(1, keys, 2, dim);
  q.setRandom(), k.setRandom(), v.setRandom();
  auto const output_on = [&](int ranks, int threads) {
    annulus::Options const options{.mask = annulus::causal(),
                                   .query_offset = keys - rows,
                                   .reproducible = true,
                                   .reproducible_leaf = 1024,
                                   .rotation = Rotation::keys};
    return annulus::run_ring(ranks, [&](SimulatedRing& ring) {
      annulus::CpuBackend backend{.threads = threads};
      annulus::Index const own = ring.rank() == 0 ? rows : 0, begin = 6 * ring.rank() / ranks * 1024,
                           end = 6 * (ring.rank() + 1) / ranks * 1024;
      auto const rows_of = [](Tensor const& x, annulus::Index from, annulus::Index count) {
        return annulus::view_of(x).slice(annulus::axis::sequence, from, count);
      };
      Tensor output(1, own, heads, dim);
      Eigen::Tensor<float, 3, Eigen::RowMajor> lse(1, heads, own);
      annulus::RingAttention(ring, backend, options)
          .forward_into(rows_of(q, 0, own), rows_of(k, begin, end - begin), rows_of(v, begin, end - begin), output,
                        lse);
      return std::vector<float>(output.data(), output.data() + output.size());
    })[0];
  };
  auto const expected = output_on(1, 1);
  for (int ranks : {1, 2, 3, 6})
    for (int threads : {1, 4}) CHECK(output_on(ranks, threads) == expected);
}

TEST_CASE("reproducible: operands in any axis order", "[reproducible]") {
  for (std::uint64_t seed = 930'000; seed < 930'012; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<float>(problem);
    RingProblem const alone = reproducible_on(problem, 1, Deal::contiguous, 4, Rotation::keys, seed);
    RingProblem const spread = reproducible_on(problem, 3, Deal::shuffled, 4, Rotation::queries, seed);
    INFO(spread.text);
    RingResult const expected = result_of<float, annulus::CpuBackend>(alone);
    CHECK(different_results(result_of<float, annulus::CpuBackend, TransposedPlacement>(alone), expected) == "");
    CHECK(different_results(result_of<float, annulus::CpuBackend, TransposedPlacement>(spread), expected) == "");
  }
}

TEST_CASE("reproducible: a block mask hides the same blocks on every ring", "[reproducible][blocks]") {
  for (std::uint64_t seed = 935'000; seed < 935'012; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    if (problem.options.query_offset.value_or(0) < 0) continue;
    RandomChoice choose(seed);
    annulus::Index const rows = (problem.options.query_offset.value_or(0) + problem.dense.query_length) / 5 + 1,
                         columns = problem.dense.key_length / 3 + 1;
    std::vector<bool> blocks;
    for (annulus::Index i = 0; i < rows * columns; ++i) blocks.push_back(choose.below(3) == 0);
    problem.options.block_mask = annulus::BlockMask(5, 3, columns, blocks);
    check_all_rings<float, annulus::CpuBackend>(problem, choose.of<annulus::Index>({2, 4, 7}), seed);
  }
}

TEST_CASE("reproducible: buffers have the bytes of the plan", "[reproducible]") {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 90, .value_dim = 3}, 1);
  problem.dense.causal = true;
  problem.options.checked = false;
  give_sinks(problem, 2);
  settle(problem);
  for (int ranks : {1, 3, 4, 8})
    for (Deal deal : deals)
      for (Rotation rotation : {Rotation::keys, Rotation::queries})
        for (bool zero_copy : {true, false}) {
          RingProblem const other = reproducible_on(problem, ranks, deal, 4, rotation, 1);
          auto const results = results_of_ranks<float>(
              other, annulus::ReferenceBackend{},
              {.zero_copy = zero_copy ? annulus::ZeroCopy::automatic : annulus::ZeroCopy::never});
          auto const forward = plan_of<float>(other, annulus::Pass::forward, false, zero_copy);
          auto const backward = plan_of<float>(other, annulus::Pass::backward, false, zero_copy);
          for (int rank = 0; rank < ranks; ++rank) {
            CAPTURE(other.text, rank, zero_copy);
            RingResult const& result = results[static_cast<std::size_t>(rank)];
            CHECK(result.forward_buffers == forward.peak_buffer_bytes(rank));
            CHECK(result.backward_buffers == backward.peak_buffer_bytes(rank));
          }
        }
}

TEST_CASE("reproducible: pieces that are not made of whole leaves are refused", "[reproducible]") {
  auto const solved = [](annulus::Sharding const& sharding, annulus::Index leaf) {
    RingProblem problem = small_ring_problem({.query_length = 24}, 4, sharding);
    settle(problem);
    problem.options.reproducible = true;
    problem.options.reproducible_leaf = leaf;
    return [problem] { result_of<float, annulus::ReferenceBackend>(problem); };
  };
  CHECK_NOTHROW(solved(annulus::Contiguous{}, 6)());
  CHECK_NOTHROW(solved(annulus::Zigzag{}, 3)());
  CHECK_NOTHROW(solved(annulus::Striped{2}, 2)());
  CHECK_NOTHROW(solved(annulus::Striped{1}, 1)());
  check_refused({{"contiguous", "UnsupportedError",
                  "reproducible: rank 0 has a piece of 6 query positions from 0; accepted: pieces of whole leaves of "
                  "4 positions (the reproducible leaf), which begin at a multiple of it and end at one or with the "
                  "sequence, as those of block-striped(4) always do",
                  solved(annulus::Contiguous{}, 4)},
                 {"striped", "UnsupportedError", "query positions from 0 in steps", solved(annulus::Striped{1}, 2)},
                 {"no leaf", "UnsupportedError", "reproducible leaf is 0", solved(annulus::Contiguous{}, 0)}});
}

TEST_CASE("reproducible: the comparison detects results that depend on the number of ranks", "[reproducible]") {
  RingProblem problem = small_ring_problem({.query_length = 48, .head_dim = 8}, 1);
  problem.dense.causal = true;
  settle(problem);
  round_operands<float>(problem);
  auto const on = [&](int ranks) { return reproducible_on(problem, ranks, Deal::contiguous, 8, Rotation::queries, 1); };
  RingResult const expected = result_of<float, annulus::ReferenceBackend>(on(1));
  REQUIRE(different_results(result_of<float, annulus::ReferenceBackend>(on(3)), expected) == "");

  // Without the option.
  RingProblem free = on(3);
  free.options.reproducible = false;
  CHECK(different_results(result_of<float, annulus::ReferenceBackend>(free), expected) == "output, lse, dq, dk, dv");
  // With other leaves.
  RingProblem other_leaves = on(3);
  other_leaves.options.reproducible_leaf = 4;
  CHECK(different_results(result_of<float, annulus::ReferenceBackend>(other_leaves), expected) != "");
  // With one rank whose joins are off by a rounding.
  auto const misjoined = annulus::run_ring(3, [&](SimulatedRing& ring) {
    MisjoiningBackend backend;
    backend.misjoins = ring.rank() == 2;
    return run_rank<float>(on(3), ring, backend);
  });
  CHECK(different_results(assemble(on(3), misjoined), expected) == "output, lse, dq, dk, dv");
}
