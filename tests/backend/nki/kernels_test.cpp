// Kernel cache of the Trainium backend: kernels built and reused, and state that a step must not change.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/nki/ring_on_devices.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::Index;
using annulus::NkiBackend;
using annulus::nki::KernelCache;
using annulus::nki::ValidatedProgram;

namespace {

ValidatedProgram named(char const* name) {
  annulus::nki::Program program;
  program.name = name;
  return ValidatedProgram::assume_valid(std::move(program));
}

/// A step of one batch item and one head, with head and value dim 4, and its operands and state.
struct SmallStep {
  Index queries = 6, keys = 5;
  annulus::Mask mask = annulus::causal();
  double scale = 0.5;
  Index first_query = 0, first_key = 0;

  std::vector<float> q{}, k{}, v{}, accumulator{}, maximum{}, sum{};

  void fold(NkiBackend& backend) {
    auto const fill = [](std::vector<float>& values, Index count, float factor) {
      for (Index i = 0; i < count; ++i) values.push_back(factor * static_cast<float>((i * 7) % 11 - 5));
    };
    if (q.empty()) {
      fill(q, queries * 4, 0.3f);
      fill(k, keys * 4, 0.2f);
      fill(v, keys * 4, 1.0f);
      accumulator.assign(static_cast<std::size_t>(queries * 4), 0.0f);
      maximum.assign(static_cast<std::size_t>(queries), annulus::empty_row<float>);
      sum.assign(static_cast<std::size_t>(queries), 0.0f);
    }
    std::vector<Index> query_positions, key_positions;
    for (Index i = 0; i < queries; ++i) query_positions.push_back(first_query + i);
    for (Index j = 0; j < keys; ++j) key_positions.push_back(first_key + j);
    std::vector<annulus::Tile> const tiles{{.query_count = queries,
                                            .key_count = keys,
                                            .query_position = first_query,
                                            .key_position = first_key,
                                            .coverage = annulus::Coverage::ranges}};
    annulus::EveryPair const every_pair;
    using Space = annulus::HostMemory;
    using Constant = annulus::TensorView<float const, 4>;
    backend.fold(
        annulus::Step<float, annulus::EveryPair, Space>{.tiles = tiles,
                                                        .rules = {.mask = mask, .softmax_scale = scale},
                                                        .query_positions = query_positions,
                                                        .key_positions = key_positions,
                                                        .predicate = &every_pair},
        annulus::StepOperands<float, Space>{Constant(q.data(), {1, queries, 1, 4}), Constant(k.data(), {1, keys, 1, 4}),
                                            Constant(v.data(), {1, keys, 1, 4})},
        annulus::RunningState<float, Space>{{accumulator.data(), {1, queries, 1, 4}},
                                            {maximum.data(), {1, 1, queries}},
                                            {sum.data(), {1, 1, queries}}});
  }
};

}  // namespace

TEST_CASE("KernelCache builds a kernel once and evicts the least recently used one", "[nki]") {
  KernelCache cache(2);
  auto const get = [&](std::int64_t key, char const* name) {
    return cache.get({key}, [&] { return named(name); }).program().name;
  };
  CHECK(get(1, "one") == "one");
  CHECK(get(2, "two") == "two");
  CHECK(get(1, "another") == "one");
  CHECK(cache.built() == 2);
  CHECK(get(3, "three") == "three");
  CHECK(cache.size() == 2);
  CHECK(get(1, "another") == "one");
  CHECK(get(2, "two again") == "two again");
  CHECK(cache.built() == 4);
  CHECK(KernelCache(0).get({1}, [] { return named("one"); }).program().name == "one");
}

TEST_CASE("KernelCache evicts nothing if a kernel cannot be built", "[nki]") {
  KernelCache cache(1);
  cache.get({1}, [] { return named("one"); });
  CHECK_THROWS_AS(cache.get({2}, []() -> ValidatedProgram { throw annulus::ShapeError("no"); }), annulus::ShapeError);
  CHECK(cache.get({1}, [] { return named("another"); }).program().name == "one");
}

TEST_CASE("steps of equal shape and visible rows run the same kernel", "[nki]") {
  NkiBackend backend;
  SmallStep{}.fold(backend);
  CHECK(backend.kernels().built() == 1);
  SmallStep{}.fold(backend);
  SmallStep{.first_query = 9, .first_key = 9}.fold(backend);
  CHECK(backend.kernels().built() == 1);
  std::vector<SmallStep> const others{SmallStep{.queries = 7},     SmallStep{.keys = 4},
                                      SmallStep{.mask = {}},       SmallStep{.scale = 0.25},
                                      SmallStep{.first_query = 1}, SmallStep{.mask = {.chunk = 3}}};
  Index built = 1;
  for (SmallStep step : others) {
    step.fold(backend);
    CHECK(backend.kernels().built() == ++built);
  }
  SmallStep hidden{.first_key = 100};
  hidden.fold(backend);
  CHECK(backend.kernels().built() == built);
}

TEST_CASE("a kernel rebuilt after eviction gives the same bits", "[nki]") {
  RingProblem problem =
      small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 50, .head_dim = 8}, 4, annulus::Zigzag{});
  problem.dense.causal = true;
  settle(problem);
  round_operands<float>(problem);
  RingResult const kept = on_devices<float>(problem);
  CHECK(same_bits(on_devices<float>(problem, {.kept_kernels = 1}), kept));
  CHECK(same_bits(on_devices<float>(problem, {.validate = false}), kept));
  CHECK(judge(problem, kept, float_bounds).complaint == "");
}

TEST_CASE("a step leaves the state of rows without visible keys unchanged", "[nki]") {
  NkiBackend backend;
  SmallStep step{.first_key = 3};  // queries 0 to 2 have no visible key
  SmallStep{step}.fold(backend);
  step.fold(backend);
  for (std::size_t i = 0; i < 6; ++i) CHECK((step.maximum[i] == annulus::empty_row<float>) == (i < 3));
  constexpr float seen_before = 1234.5f;
  for (auto* values : {&step.accumulator, &step.maximum, &step.sum})
    std::fill_n(values->begin(), values->size() / 2, seen_before);
  step.fold(backend);
  for (auto const* values : {&step.accumulator, &step.maximum, &step.sum})
    for (std::size_t i = 0; i < values->size() / 2; ++i) CHECK((*values)[i] == seen_before);
}
