// Options::wire: results are those of operands that were rounded beforehand, to the bit; bytes and buffers as planned.

#include <annulus/annulus.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/pass_log.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/reproducible_problem.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::Channel;
using annulus::Index;
using annulus::Pass;
using annulus::Rotation;
using annulus::SimulatedRing;
using annulus::Wire;
using annulus::ZeroCopy;

namespace {

template <class T, class Backend>
RingResult solve_on_wire(RingProblem const& problem, ZeroCopy zero_copy) {
  auto const run = [&](SimulatedRing& ring) {
    Backend backend{};
    return run_rank<T>(problem, ring, backend);
  };
  return assemble(problem, annulus::run_ring(problem.ranks, run, {.zero_copy = zero_copy}));
}

/// The problem with q, k, v and dout rounded to W.
template <class W>
RingProblem rounded(RingProblem problem) {
  for (auto* values : {&problem.dense.q, &problem.dense.k, &problem.dense.v, &problem.dout})
    for (double& value : *values) value = static_cast<double>(static_cast<W>(value));
  return problem;
}

/// Random problems on a wire of W and, rounded beforehand, as stored; every third one reproducible.
template <class T, class W, class Backend>
void sweep_wire(Wire wire, std::uint64_t first_seed, std::uint64_t count, Bounds bounds) {
  int differ = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<T>(problem);
    if (seed % 3 == 0)
      problem = reproducible_on(problem, problem.ranks, static_cast<Deal>(seed % 4), 4,
                                seed % 2 == 0 ? Rotation::keys : Rotation::queries, seed);
    else if (problem.dense.kv_heads > 1 && seed % 2 == 0)
      problem.options.schedule = annulus::Schedule::both_directions;
    INFO(problem.text << ", wire " << name_of(wire));
    if (problem.dense.bias && problem.dense.bias->heads == 1) problem.dense.bias.reset();
    RingProblem const before = rounded<W>(problem);
    problem.options.wire = wire;
    // Automatic rotation may choose another side for fewer bytes.
    RingProblem fixed = before;
    RingResult const result = solve_on_wire<T, Backend>(problem, ZeroCopy::never);
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      if (rotation == Rotation::queries && (problem.dense.bias || problem.dense.mask)) continue;
      fixed.options.rotation = problem.options.rotation = rotation;
      RingResult const expected = solve_on_wire<T, Backend>(fixed, ZeroCopy::automatic);
      CHECK(same_bits(solve_on_wire<T, Backend>(problem, ZeroCopy::never), expected));
      CHECK(same_bits(solve_on_wire<T, Backend>(problem, ZeroCopy::automatic), expected));
      RingProblem as_stored = problem;
      as_stored.options.wire = Wire::as_stored;
      differ += same_bits(solve_on_wire<T, Backend>(as_stored, ZeroCopy::automatic), expected) ? 0 : 1;
    }
    CHECK(judge(before, result, bounds).complaint == "");
  }
  CHECK(differ > 0);
}

}  // namespace

TEST_CASE("wire type: the bits of operands that were rounded beforehand", "[wire]") {
  sweep_wire<double, Eigen::bfloat16, annulus::ReferenceBackend>(Wire::bfloat16, 1'400'000, 40, double_bounds);
  sweep_wire<float, Eigen::half, annulus::CpuBackend>(Wire::half, 1'410'000, 40, float_bounds);
}

TEST_CASE("wire type: bytes and buffers are those of the plan, operands have two bytes", "[wire][bytes]") {
  for (Rotation rotation : {Rotation::keys, Rotation::queries})
    for (bool zero_copy : {false, true}) {
      RingProblem problem = small_ring_problem(
          {.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 30, .head_dim = 6, .value_dim = 5}, 3,
          annulus::Contiguous{}, rotation);
      problem.options.checked = false;
      problem.options.wire = Wire::bfloat16;
      settle(problem);
      auto const logs = record_passes<float>(problem);
      auto const results = annulus::run_ring(3,
                                             [&](SimulatedRing& ring) {
                                               annulus::ReferenceBackend backend;
                                               return run_rank<float>(problem, ring, backend);
                                             },
                                             {.zero_copy = zero_copy ? ZeroCopy::automatic : ZeroCopy::never});
      for (Pass pass : {Pass::forward, Pass::backward}) {
        auto const plan = plan_of<float>(problem, pass, false, zero_copy);
        Index const heads = rotation == Rotation::keys ? 2 : 4;
        Index operands = 2 * 10 * 2 * heads * (rotation == Rotation::keys ? 6 + 5 : 6) * 2;
        if (rotation == Rotation::queries && pass == Pass::backward)
          operands += 2 * 10 * 2 * heads * (5 * 2 + 3 * 4);  // dout; lse, its remainder and delta stay floats
        for (int rank = 0; rank < 3; ++rank) {
          auto const r = static_cast<std::size_t>(rank);
          PassLog const& log = logs[r][pass == Pass::forward ? 0 : 1];
          CHECK(log.bytes(Channel::prefetched) == operands);
          CHECK(log.bytes(Channel::prefetched) + log.bytes(Channel::carried) == plan.bytes_sent(rank));
          CHECK((pass == Pass::forward ? results[r].forward_buffers : results[r].backward_buffers) ==
                plan.peak_buffer_bytes(rank));
        }
      }
    }
}

TEST_CASE("wire type: 16-bit operands have their own", "[wire]") {
  RingProblem problem = small_ring_problem({.query_length = 12}, 3);
  problem.options.wire = Wire::half;
  settle(problem);
  std::string text;
  try {
    solve_on_wire<Eigen::bfloat16, annulus::ReferenceBackend>(problem, ZeroCopy::automatic);
  } catch (annulus::UnsupportedError const& error) {
    text = error.what();
  }
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("wire half for operands of bfloat16; accepted for float32 and float64"));
}
