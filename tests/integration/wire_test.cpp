// Options::wire in every schedule: results are those of operands that were rounded beforehand, to the bit, and differ
// from those of other operands by that rounding; bytes and buffers as planned.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/grouped_problem.hpp"
#include "support/judge.hpp"
#include "support/larger_error.hpp"
#include "support/pass_log.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/refusal.hpp"
#include "support/reproducible_problem.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::Channel;
using annulus::Index;
using annulus::Pass;
using annulus::Rotation;
using annulus::Schedule;
using annulus::SimulatedRing;
using annulus::Wire;
using annulus::ZeroCopy;

namespace {

template <class T, class Backend>
RingResult solve_on_wire(RingProblem const& problem, ZeroCopy zero_copy) {
  return whole_result<T>(problem, Backend{}, {.zero_copy = zero_copy});
}

/// The random problem of a seed; every third one reproducible, others in both directions.
RingProblem problem_without_groups(std::uint64_t seed) {
  RingProblem problem = random_ring_problem(seed);
  if (problem.dense.bias && problem.dense.bias->heads == 1) problem.dense.bias.reset();
  if (seed % 3 == 0)
    problem = reproducible_on(problem, problem.ranks, static_cast<Deal>(seed % 4), 4,
                              seed % 2 == 0 ? Rotation::keys : Rotation::queries, seed);
  else if (seed % 2 == 0)
    problem.options.schedule = Schedule::both_directions;
  return problem;
}

/// The random problem in groups of a seed, with a double ring in place of the automatic schedule, and groups that do
/// not depend on bytes.
RingProblem problem_in_groups(std::uint64_t seed) {
  RingProblem problem = random_grouped_problem(seed);
  annulus::Options& options = problem.options;
  if (options.schedule == Schedule::automatic) options.schedule = Schedule::double_ring;
  auto const sizes = accepted_groups(problem, options.schedule);
  if (options.ranks_per_group == 0) options.ranks_per_group = sizes[1 + seed % (sizes.size() - 1)];
  problem.text += ", " + std::string(name_of(options.schedule)) + " of " + std::to_string(options.ranks_per_group);
  return problem;
}

/// Rotations with which the bytes do not decide.
std::vector<Rotation> rotations_of(RingProblem const& problem) {
  if (problem.options.schedule == Schedule::all_gather) return {Rotation::automatic};
  if (problem.dense.bias || problem.dense.mask) return {Rotation::keys};
  return {Rotation::keys, Rotation::queries};
}

/// Problems on a wire and, rounded beforehand, as stored.
template <class T, class Backend>
void sweep_wire(Wire wire, std::uint64_t first_seed, std::uint64_t count, Bounds bounds,
                RingProblem (&make)(std::uint64_t)) {
  int differ = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RingProblem problem = make(seed);
    problem.options.wire = wire;
    round_operands<T>(problem);
    INFO(problem.text << ", run on " << name_of(wire));
    CHECK(judge(problem, solve_on_wire<T, Backend>(problem, ZeroCopy::never), bounds).complaint == "");
    for (Rotation rotation : rotations_of(problem)) {
      problem.options.rotation = rotation;
      RingProblem before = rounded_to_wire(problem), as_stored = problem;
      before.options.wire = as_stored.options.wire = Wire::as_stored;
      RingResult const expected = solve_on_wire<T, Backend>(before, ZeroCopy::automatic);
      CHECK(same_bits(solve_on_wire<T, Backend>(problem, ZeroCopy::never), expected));
      CHECK(same_bits(solve_on_wire<T, Backend>(problem, ZeroCopy::automatic), expected));
      differ += same_bits(solve_on_wire<T, Backend>(as_stored, ZeroCopy::automatic), expected) ? 0 : 1;
    }
  }
  CHECK(differ > 0);
}

struct InGroups {
  Schedule schedule;
  int group;
};
/// The schedules of a ring of 4 ranks, whose kv heads a group of 2 can split.
constexpr std::array schedules_of_four{InGroups{Schedule::ring, 0},       InGroups{Schedule::both_directions, 0},
                                       InGroups{Schedule::two_levels, 2}, InGroups{Schedule::tiles, 2},
                                       InGroups{Schedule::all_gather, 0}, InGroups{Schedule::double_ring, 2}};

RingProblem problem_on_four(InGroups const& one, Rotation rotation, Wire wire) {
  RingProblem problem = small_ring_problem(
      {.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 40, .head_dim = 6, .value_dim = 5}, 4);
  problem.options.rotation = one.schedule == Schedule::all_gather ? Rotation::automatic : rotation;
  problem.options.schedule = one.schedule;
  problem.options.ranks_per_group = one.group;
  problem.options.wire = wire;
  problem.options.checked = false;
  return problem;
}

/// Largest errors of output, lse and dv that rounding q, k, v and dout to a wire type can cause.
Magnitudes rounding_errors(RingProblem const& problem) {
  namespace od = oracle_detail;
  OracleProblem const& p = problem.dense;
  // Half a unit in the last place of normal and, of half, subnormal numbers.
  bool const half = problem.options.wire == Wire::half;
  double const unit = half ? 0x1p-12 : 0x1p-9, least = half ? 0x1p-25 : 0;
  auto const error_of = [&](double value) { return unit * std::abs(value) + least; };
  // Each result is computed in float as well.
  constexpr double in_float = 2e-6;
  Magnitudes errors{std::vector<double>(problem.dout.size()),
                    std::vector<double>(static_cast<std::size_t>(p.batch * p.query_heads * p.query_length)),
                    {},
                    {},
                    std::vector<double>(p.v.size()),
                    {},
                    {}};
  auto const add = [&](std::vector<double>& sums, std::int64_t begin, double weight, double grown, double const* row,
                       std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      sums[static_cast<std::size_t>(begin + i)] +=
          weight * ((grown - 1 + in_float) * std::abs(row[i]) + grown * error_of(row[i]));
  };
  od::SeenRow<double> seen;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.query_heads; ++h)
      for (std::int64_t row = 0; row < p.query_length; ++row) {
        od::look(p, b, h, row, seen);
        std::int64_t const kv = od::kv_head_of(p, h), ob = od::output_begin(p, b, h, row);
        double const* const query = p.q.data() + od::q_begin(p, b, h, row);
        double of_logit = 0;
        for (auto const& key : seen.keys) {
          double const* const k = p.k.data() + od::k_begin(p, b, kv, key.key);
          double sum = 0;
          for (std::int64_t i = 0; i < p.head_dim; ++i)
            sum += error_of(query[i]) * (std::abs(k[i]) + error_of(k[i])) + std::abs(query[i]) * error_of(k[i]);
          of_logit = std::max(of_logit, sum * std::abs(od::scale_of<double>(p)));
        }
        // A weight changes by a factor between exp(-2 e) and exp(2 e), with e the largest error of a logit.
        double const grown = std::exp(2 * of_logit);
        errors.lse[od::lse_place(p, b, h, row)] = of_logit + in_float;
        for (auto const& key : seen.keys) {
          std::int64_t const vb = od::v_begin(p, b, kv, key.key);
          add(errors.output, ob, key.probability, grown, p.v.data() + vb, p.value_dim);
          add(errors.dv, vb, key.probability, grown, problem.dout.data() + ob, p.value_dim);
        }
      }
  return errors;
}

/// The largest error of a result divided by its bound.
double largest_share(std::vector<double> const& seen, std::vector<double> const& exact,
                     std::vector<double> const& bounds) {
  double share = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) share = larger_error(share, std::abs(seen[i] - exact[i]) / bounds[i]);
  return share;
}

}  // namespace

TEST_CASE("wire type: the bits of operands that were rounded beforehand", "[wire]") {
  sweep_wire<double, annulus::ReferenceBackend>(Wire::bfloat16, 1'400'000, 40, double_bounds, problem_without_groups);
  sweep_wire<float, annulus::CpuBackend>(Wire::half, 1'410'000, 40, float_bounds, problem_without_groups);
}

TEST_CASE("wire type: ranks in groups give the bits of operands that were rounded beforehand", "[wire][schedules]") {
  sweep_wire<double, annulus::ReferenceBackend>(Wire::half, 1'420'000, 60, double_bounds, problem_in_groups);
  sweep_wire<float, annulus::CpuBackend>(Wire::bfloat16, 1'430'000, 60, float_bounds, problem_in_groups);
}

TEST_CASE("wire type: in every schedule, results differ from those of exact operands by one rounding of them",
          "[wire][schedules]") {
  for (Wire wire : {Wire::bfloat16, Wire::half})
    for (InGroups const& one : schedules_of_four) {
      RingProblem problem = problem_on_four(one, Rotation::keys, wire);
      problem.dense.causal = true;
      settle(problem);
      round_operands<float>(problem);
      INFO(name_of(wire) << ", " << name_of(one.schedule));
      RingResult const result = solve_on_wire<float, annulus::CpuBackend>(problem, ZeroCopy::automatic);
      OracleForward const exact = oracle_forward(problem.dense);
      OracleGradients const gradients = oracle_backward(problem.dense, problem.dout);
      Magnitudes const bounds = rounding_errors(problem);
      for (double const share :
           {largest_share(result.output, exact.output, bounds.output), largest_share(result.lse, exact.lse, bounds.lse),
            largest_share(result.dv, gradients.dv, bounds.dv)}) {
        CHECK(share <= 1);
        CHECK(share > 0.05);  // The bound is not so wide that it would accept a second rounding of most elements.
      }
    }
}

TEST_CASE("wire type: ranks in groups send two bytes for each element of an operand", "[wire][bytes][schedules]") {
  constexpr Index rows = 10, batch = 2, heads = 4, kv_heads = 2, dim = 6, value_dim = 5, ranks = 4, group = 2;
  constexpr Index key_row = batch * kv_heads * (dim + value_dim);
  for (InGroups const& one : schedules_of_four)
    for (Pass pass : {Pass::forward, Pass::backward}) {
      Index const query_row = batch * heads * (dim + (pass == Pass::forward ? 0 : value_dim));
      // Where heads are split, a rank sends half of its heads, and those of both ranks of its group travel on.
      Index elements = (ranks - 1) * rows * key_row;
      if (one.schedule == Schedule::two_levels)
        elements = rows * (query_row + key_row) / group + group * rows * key_row / group;
      if (one.schedule == Schedule::tiles) elements = rows * query_row + rows * key_row;
      std::array<std::array<Index, 2>, 2> bytes{};  // by wire and channel
      for (Wire wire : {Wire::as_stored, Wire::half}) {
        RingProblem problem = problem_on_four(one, Rotation::keys, wire);
        settle(problem);
        INFO(name_of(wire) << ", " << name_of(one.schedule));
        PassLog const log = record_passes<float>(problem)[1][pass == Pass::forward ? 0 : 1];
        auto& sent = bytes[wire == Wire::half];
        sent = {log.bytes(Channel::prefetched), log.bytes(Channel::carried)};
        CHECK(sent[0] + sent[1] == plan_of<float>(problem, pass).bytes_sent(1));
      }
      CHECK(bytes[0][0] - bytes[1][0] == 2 * elements);
      CHECK(bytes[0][1] == bytes[1][1]);
    }
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
      auto const results = results_of_ranks<float>(problem, annulus::ReferenceBackend{},
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
  check_thrown(
      attempt([&] { solve_on_wire<Eigen::bfloat16, annulus::ReferenceBackend>(problem, ZeroCopy::automatic); }),
      "UnsupportedError", "wire half for operands of bfloat16; accepted for float32 and float64");
}
