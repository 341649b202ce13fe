// Whole ring problems in fp32 on simulated NeuronCores, forward and backward, against the oracle.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "annulus/backend/reference/reference.hpp"
#include "backend/nki/ring_on_devices.hpp"
#include "support/catch.hpp"
#include "support/larger_error.hpp"

using namespace annulus_test;

namespace {

std::string complaint(RingProblem problem, annulus::NkiOptions const& options) {
  if (problem.query_lengths.empty()) settle(problem);
  round_operands<float>(problem);
  return judge(problem, on_devices<float>(problem, options), float_bounds).complaint;
}

}  // namespace

TEST_CASE("NkiBackend: random ring problems in float meet the bounds of the reference backend", "[nki]") {
  for (std::uint64_t seed = 1000; seed < 1120; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<float>(problem);
    annulus::NkiOptions const options = device_number(seed);
    INFO(problem.text << ", on " << name_of(options.target) << " with " << options.cores << " cores");
    CHECK(judge(problem, on_devices<float>(problem, options), float_bounds).complaint == "");
  }
}

TEST_CASE("NkiBackend: steps of several tiles of queries and keys", "[nki]") {
  auto const problem_of = [](annulus::Sharding sharding, int ranks, std::int64_t rows, auto change) {
    RingProblem problem =
        small_ring_problem({.query_heads = 2, .kv_heads = 1, .query_length = rows, .head_dim = 16, .value_dim = 8},
                           ranks, std::move(sharding));
    change(problem.dense);
    return problem;
  };
  auto const causal = [](OracleProblem& d) { d.causal = true; };
  std::uint64_t n = 0;
  for (annulus::Sharding const& sharding :
       {annulus::Sharding(annulus::Contiguous{}), annulus::Sharding(annulus::Striped{}),
        annulus::Sharding(annulus::Zigzag{}), annulus::Sharding(annulus::Striped{64})}) {
    INFO(sharding.name());
    CHECK(complaint(problem_of(sharding, 2, 1100, causal), device_number(n++)) == "");
  }
  CHECK(complaint(problem_of(annulus::Contiguous{}, 1, 700,
                             [](OracleProblem& d) { d.window_left = 150, d.window_right = 0, d.sink_tokens = 5; }),
                  device_number(0)) == "");
  CHECK(complaint(problem_of(annulus::ExplicitMap{shuffled_positions(2, 600, 5), shuffled_positions(2, 600, 6)}, 2, 600,
                             causal),
                  device_number(1)) == "");
}

TEST_CASE("NkiBackend: grouped heads, large and unequal dims", "[nki]") {
  std::uint64_t n = 0;
  for (Extents const& extents :
       {Extents{.batch = 2, .query_heads = 6, .kv_heads = 3, .query_length = 150, .head_dim = 130, .value_dim = 40},
        Extents{
            .query_heads = 5, .kv_heads = 1, .query_length = 40, .key_length = 200, .head_dim = 32, .value_dim = 192},
        Extents{.batch = 3, .query_heads = 1, .kv_heads = 1, .query_length = 129, .head_dim = 1, .value_dim = 1}})
    for (int cores : {1, 2}) {
      RingProblem problem = small_ring_problem(extents, 2, annulus::Zigzag{});
      problem.dense.causal = true;
      INFO("head_dim " << extents.head_dim << ", cores " << cores);
      CHECK(complaint(problem, {.target = device_number(n++).target, .cores = cores}) == "");
    }
}

TEST_CASE("NkiBackend: documents of several batch items, interrupted by others and by padding", "[nki]") {
  RingProblem problem =
      small_ring_problem({.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 160, .head_dim = 8}, 2);
  problem.dense.causal = true;
  std::vector<int> ids;
  for (int i = 0; i < 320; ++i) ids.push_back(i < 160 ? i / 13 % 4 : i / 50 % 3 + 1);
  give_documents(problem, ids);
  CHECK(complaint(problem, {}) == "");
}

TEST_CASE("NkiBackend: values in padding rows affect no result", "[nki]") {
  RingProblem problem = small_ring_problem(
      {.batch = 2, .query_heads = 2, .kv_heads = 1, .query_length = 60, .head_dim = 8}, 2, annulus::Striped{});
  std::vector<int> ids;
  for (int i = 0; i < 120; ++i) ids.push_back(i % 60 < 25 ? 1 : i % 60 < 50 ? 2 : 0);
  give_documents(problem, ids);
  settle(problem);
  round_operands<float>(problem);
  RingResult const clean = on_devices<float>(problem);
  REQUIRE(judge(problem, clean, float_bounds).complaint == "");

  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  RingProblem dirty = problem;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    if (ids[row] > 0) continue;
    auto const spoil = [&](std::vector<double>& values, std::size_t heads) {
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(row * heads * 8), heads * 8, nan);
    };
    spoil(dirty.dense.q, 2);
    spoil(dirty.dense.k, 1);
    spoil(dirty.dense.v, 1);
    spoil(dirty.dout, 2);
  }
  CHECK(same_bits(on_devices<float>(dirty), clean));
}

TEST_CASE("NkiBackend: reproducible passes give the same bits on any number of ranks", "[nki]") {
  auto const result = [](int ranks, annulus::Sharding sharding, annulus::Rotation rotation) {
    RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 256, .head_dim = 8},
                                             ranks, std::move(sharding));
    problem.dense.causal = true;
    problem.options.rotation = rotation;
    problem.options.reproducible = true;
    problem.options.reproducible_leaf = 32;
    settle(problem);
    round_operands<float>(problem);
    RingResult const seen = on_devices<float>(problem);
    CHECK(judge(problem, seen, float_bounds).complaint == "");
    return seen;
  };
  RingResult const alone = result(1, annulus::Contiguous{}, annulus::Rotation::keys);
  CHECK(same_bits(result(2, annulus::Zigzag{}, annulus::Rotation::keys), alone));
  CHECK(same_bits(result(4, annulus::Contiguous{}, annulus::Rotation::queries), alone));
  CHECK(same_bits(result(8, annulus::Striped{32}, annulus::Rotation::keys), alone));
}

TEST_CASE("NkiBackend: joint keys give the results of the reference backend", "[nki]") {
  RingProblem problem = small_ring_problem(
      {.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 90, .head_dim = 8}, 3, annulus::Contiguous{});
  problem.dense.causal = true;
  settle(problem);
  problem.joint_length = 37;
  for (auto* values : {&problem.joint_keys, &problem.joint_values})
    for (int i = 0; i < 2 * 37 * 2 * 8; ++i)
      values->push_back(std::sin(i * (values == &problem.joint_keys ? 0.7 : 1.3)));
  round_operands<float>(problem);
  RingResult const seen = on_devices<float>(problem);
  RingResult const expected = whole_result<float>(problem);
  for (auto member : {&RingResult::output, &RingResult::lse, &RingResult::dq, &RingResult::dk, &RingResult::dv,
                      &RingResult::d_joint_keys, &RingResult::d_joint_values}) {
    REQUIRE((seen.*member).size() == (expected.*member).size());
    double largest = 0;
    for (std::size_t i = 0; i < (seen.*member).size(); ++i)
      largest = larger_error(largest, std::abs((seen.*member)[i] - (expected.*member)[i]));
    CHECK(largest < 1e-4);
  }
  CHECK(norm(seen.d_joint_keys) > 0);
}
