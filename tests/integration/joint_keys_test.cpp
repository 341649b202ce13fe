// Joint keys: attention as if they were further keys that every query sees, on any ring, and their gradients on all
// ranks.

#include <annulus/annulus.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "support/asked_schedule.hpp"
#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/pass_log.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/refusal.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::Index;
using annulus::SimulatedRing;
using annulus::ZeroCopy;

namespace {

/// A random problem with joint keys; every third one in both directions, and every third one in a schedule with
/// groups.
template <class T>
RingProblem problem_with_joint_keys(std::uint64_t seed) {
  RingProblem problem = random_ring_problem(seed);
  give_joint_keys(problem, 1 + static_cast<std::int64_t>(seed % 37), seed);
  using annulus::Schedule;
  if (seed % 3 == 0) problem.options.schedule = Schedule::both_directions;
  if (seed % 3 == 1) {
    Schedule const groups[] = {Schedule::two_levels, Schedule::tiles, Schedule::all_gather, Schedule::double_ring};
    problem.options.schedule = groups[seed / 3 % 4];
    if (problem.options.schedule == Schedule::all_gather) problem.options.rotation = annulus::Rotation::automatic;
    if (problem.options.schedule != Schedule::all_gather)
      problem.options.ranks_per_group = asked_group(problem, problem.options.schedule);
  }
  round_operands<T>(problem);
  return problem;
}

/// Rows of `first`, then of `second`, for each batch item; a row has `width` elements.
template <class Value>
std::vector<Value> joined(std::vector<Value> const& first, std::vector<Value> const& second, std::int64_t batch) {
  std::vector<Value> all;
  for (std::int64_t b = 0; b < batch; ++b)
    for (auto const* part : {&first, &second}) {
      auto const each = static_cast<std::ptrdiff_t>(part->size()) / batch;
      all.insert(all.end(), part->begin() + b * each, part->begin() + (b + 1) * each);
    }
  return all;
}

/// The same attention with the joint keys, which do not travel, as the last keys, and all rules in a predicate.
RingProblem with_further_keys(RingProblem const& problem) {
  RingProblem all = rounded_to_wire(problem);
  all.options.wire = annulus::Wire::as_stored;
  OracleProblem const rules = all.dense;
  OracleProblem& d = all.dense;
  std::int64_t const batch = d.batch, keys = d.key_length, joint = problem.joint_length;
  d.key_length += joint;
  d.k = joined(rules.k, problem.joint_keys, batch);
  d.v = joined(rules.v, problem.joint_values, batch);
  if (d.bias) {
    d.bias->values.clear();
    for (std::int64_t row = 0; row < rules.bias->batch * rules.bias->heads * rules.query_length; ++row) {
      auto const begin = rules.bias->values.begin() + row * keys;
      d.bias->values.insert(d.bias->values.end(), begin, begin + keys);
      d.bias->values.resize(d.bias->values.size() + static_cast<std::size_t>(joint), 0.0);
    }
  }
  d.causal = false;
  d.window_left = d.window_right = {};
  d.chunk = d.sink_tokens = 0;
  d.mask.reset();
  d.query_documents.reset();
  d.key_documents.reset();
  d.predicate = [rules, keys](std::int64_t b, std::int64_t h, std::int64_t position, std::int64_t key) {
    std::int64_t const row = position - rules.query_offset;
    if (key < keys) return oracle_visible(rules, b, h, row, key);
    return !rules.query_documents ||
           (*rules.query_documents)[static_cast<std::size_t>(b * rules.query_length + row)] > 0;
  };
  return all;
}

/// The result with the gradients of joint keys as those of the last keys. These have no bias: their part of its
/// gradient is that of the oracle.
RingResult with_further_keys(RingResult result, RingProblem const& problem, RingProblem const& all) {
  OracleProblem const& d = problem.dense;
  result.dk = joined(result.dk, result.d_joint_keys, d.batch);
  result.dv = joined(result.dv, result.d_joint_values, d.batch);
  if (d.bias) {
    auto whole = oracle_backward(all.dense, all.dout).dbias;
    auto const columns = static_cast<std::size_t>(all.dense.key_length);
    for (std::size_t i = 0, seen = 0; i < whole.size(); ++i)
      if (i % columns < static_cast<std::size_t>(d.key_length)) whole[i] = result.dbias[seen++];
    result.dbias = whole;
  }
  return result;
}

template <class T, class Backend>
RingResult solve_joint(RingProblem const& problem, ZeroCopy zero_copy) {
  return whole_result<T>(problem, Backend{}, {.zero_copy = zero_copy});
}

template <class T, class Backend>
void sweep_joint(std::uint64_t first_seed, std::uint64_t count, Bounds bounds) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RingProblem const problem = problem_with_joint_keys<T>(seed);
    INFO(problem.text << ", " << problem.joint_length << " joint keys");
    RingResult const copied = solve_joint<T, Backend>(problem, ZeroCopy::never);
    RingProblem const all = with_further_keys(problem);
    CHECK(judge(all, with_further_keys(copied, problem, all), bounds).complaint == "");
    CHECK(same_bits(copied, solve_joint<T, Backend>(problem, ZeroCopy::automatic)));
  }
}

}  // namespace

TEST_CASE("joint keys are counted once for every query, on every ring", "[joint]") {
  sweep_joint<double, annulus::ReferenceBackend>(1'300'000, 150, double_bounds);
  sweep_joint<float, annulus::CpuBackend>(1'310'000, 150, float_bounds);
}

TEST_CASE("joint keys: bytes and buffers are those of the plan", "[joint][bytes]") {
  using annulus::Schedule;
  for (Schedule schedule : {Schedule::ring, Schedule::both_directions, Schedule::two_levels, Schedule::tiles})
    for (annulus::Rotation rotation : {annulus::Rotation::keys, annulus::Rotation::queries}) {
      RingProblem problem = small_ring_problem(
          {.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 40, .head_dim = 6, .value_dim = 5}, 4,
          annulus::Contiguous{}, rotation);
      give_joint_keys(problem, 7, 1);
      problem.options.checked = false;
      problem.options.schedule = schedule;
      if (schedule == Schedule::two_levels || schedule == Schedule::tiles) problem.options.ranks_per_group = 2;
      settle(problem);
      auto const logs = record_passes<double>(problem);
      auto const results = results_of_ranks<double>(problem);
      for (annulus::Pass pass : {annulus::Pass::forward, annulus::Pass::backward}) {
        auto const plan = plan_of<double>(problem, pass, false, true);
        RingProblem without = problem;
        without.joint_length = 0;
        auto const ring = plan_of<double>(without, pass, false, true);
        // Three of four ranks' shares, of 7 keys and values of 2 heads and batch items.
        Index const shares = pass == annulus::Pass::forward ? 0 : 3 * 7 * 2 * 2 * (6 + 5) * 8;
        for (int rank = 0; rank < 4; ++rank) {
          auto const r = static_cast<std::size_t>(rank);
          PassLog const& log = logs[r][pass == annulus::Pass::forward ? 0 : 1];
          Index bytes = 0;
          for (auto channel : {annulus::Channel::prefetched, annulus::Channel::carried, annulus::Channel::reduction})
            bytes += log.bytes(channel);
          CHECK(bytes == plan.bytes_sent(rank));
          CHECK(plan.bytes_sent(rank) == ring.bytes_sent(rank) + shares);
          Index const dims = pass == annulus::Pass::forward ? 6 + 5 : 3 * 6 + 2 * 5;
          CHECK(plan.multiply_adds(rank) == ring.multiply_adds(rank) + 2 * 4 * 10 * 7 * dims);
          CHECK((pass == annulus::Pass::forward ? results[r].forward_buffers : results[r].backward_buffers) ==
                plan.peak_buffer_bytes(rank));
        }
      }
    }
}

TEST_CASE("joint keys of no rows change nothing, and have empty gradients", "[joint]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  using annulus::Schedule;
  for (Schedule schedule : {Schedule::ring, Schedule::both_directions, Schedule::two_levels, Schedule::tiles}) {
    auto const dk = [&](bool joint) {
      return annulus::run_ring(2, [&](SimulatedRing& ring) {
        Tensor q(1, 6, 4, 5), k(1, 6, 2, 5), none(1, 0, 2, 5);
        for (Index i = 0; i < q.size(); ++i) q.data()[i] = 0.1F * static_cast<float>(i % 7 + ring.rank());
        for (Index i = 0; i < k.size(); ++i) k.data()[i] = 0.1F * static_cast<float>(i % 5 - ring.rank());
        annulus::ReferenceBackend backend;
        annulus::RingAttention attention(ring, backend, {.mask = annulus::causal(), .schedule = schedule});
        annulus::Operands<float> operands;
        if (joint) operands.joint_keys = operands.joint_values = none;
        auto const gradients = attention.backward(q, attention.forward(q, k, k, operands), q, k, k, operands);
        std::vector<float> values(gradients.dk.data(), gradients.dk.data() + gradients.dk.size());
        if (gradients.d_joint_keys.has_value() != joint || (joint && gradients.d_joint_keys->size() != 0))
          values.clear();
        return values;
      });
    };
    auto const with = dk(true);
    CHECK(!with[0].empty());
    CHECK(with == dk(false));
  }
}

TEST_CASE("joint keys: what they do not go with is refused, and differences between ranks are found", "[joint]") {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 12}, 3);
  give_joint_keys(problem, 5, 1);
  settle(problem);
  auto const solved = [&](annulus::Options const& options) {
    RingProblem given = problem;
    given.options = options;
    return [given] { solve_joint<double, annulus::ReferenceBackend>(given, ZeroCopy::automatic); };
  };
  CHECK_NOTHROW(solved(problem.options)());
  check_refused({{"dropout", "UnsupportedError", "joint keys with dropout, which drops pairs by position",
                  solved({.dropout = {0.5, 1}})},
                 {"reproducible", "UnsupportedError", "joint keys with reproducible",
                  solved({.reproducible = true, .reproducible_leaf = 4})}});
}

TEST_CASE("joint keys that cannot be or differ between ranks are refused", "[joint]") {
  using Given = annulus::Operands<double>;
  using Tensor = Eigen::Tensor<double, 4, Eigen::RowMajor>;
  using Spoil = std::function<void(Given&, Tensor&, Tensor&)>;
  auto const called = [](int odd_rank, Spoil const& spoil, bool checked) {
    return [=](SimulatedRing& ring) {
      Tensor q(1, 4, 4, 6), k(1, 4, 2, 6), v(1, 4, 2, 3), joint_k(1, 5, 2, 6), joint_v(1, 5, 2, 3);
      for (Tensor* x : {&q, &k, &v, &joint_k, &joint_v}) x->setConstant(0.5);
      Given operands{.joint_keys = joint_k, .joint_values = joint_v};
      if (ring.rank() == odd_rank || odd_rank < 0) spoil(operands, joint_k, joint_v);
      annulus::ReferenceBackend backend;
      annulus::RingAttention(ring, backend, {.checked = checked}).forward(q, k, v, operands);
    };
  };
  auto const fewer = [](Given& given, Tensor& k, Tensor& v) {
    given.joint_keys = annulus::view_of(std::as_const(k)).slice(1, 0, 3);
    given.joint_values = annulus::view_of(std::as_const(v)).slice(1, 0, 3);
  };
  auto const alone = [](Given& given, Tensor&, Tensor&) { given.joint_values = std::nullopt; };
  auto const shaped_as_values = [](Given& given, Tensor&, Tensor& v) { given.joint_keys = v; };
  auto const other_values = [](Given&, Tensor& k, Tensor&) { k(0, 1, 0, 0) = 2; };
  std::vector<Refusal<SimulatedRing&>> const table{
      {"keys alone", "ShapeError", "joint_keys are given without joint_values; give both or none",
       called(-1, alone, false)},
      {"shape", "ShapeError", "joint_keys has extents [1, 5, 2, 3]; expected [1, 5, 2, 6]",
       called(1, shaped_as_values, false)},
      {"number", "CommunicationError", "different joint keys: rank 0 has 5, rank 2 has 3", called(2, fewer, false)},
      {"values", "CommunicationError", "different joint key values: rank 0 has values with digest",
       called(2, other_values, true)}};
  check_refused(table, on_ring(3));
}
