// Problems that the Trainium backend supports, and its reasons for refusing others.

#include <functional>
#include <map>
#include <string>

#include "annulus/backend/nki.hpp"
#include "support/refusal.hpp"

using annulus::DataType;
using annulus::Index;
using annulus::NkiBackend;
using annulus::Pass;
using annulus::Problem;

namespace {

Problem problem_with(std::function<void(Problem&)> const& change) {
  Problem problem;
  problem.shape = {.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 64};
  problem.ranks = 4;
  problem.local_queries = problem.local_keys = 128;
  problem.rules.softmax_scale = 0.125;
  change(problem);
  return problem;
}

std::string reason(std::function<void(Problem&)> const& change, annulus::NkiOptions const& options = {}) {
  Problem const forward = problem_with(change);
  Problem backward = forward;
  backward.pass = Pass::backward;
  NkiBackend const backend(options);
  std::string const first = backend.supports(forward).reason(), second = backend.supports(backward).reason();
  return first == second ? first : "forward: " + first + "; backward: " + second;
}

}  // namespace

TEST_CASE("NkiBackend supports float types, every mask of positions, and empty shards", "[nki]") {
  std::map<std::string, std::function<void(Problem&)>> const supported{
      {"plain", [](Problem&) {}},
      {"float16", [](Problem& p) { p.data_type = DataType::float16; }},
      {"bfloat16", [](Problem& p) { p.data_type = DataType::bfloat16; }},
      {"one rank", [](Problem& p) { p.ranks = 1; }},
      {"no queries", [](Problem& p) { p.local_queries = 0; }},
      {"no keys", [](Problem& p) { p.local_keys = 0; }},
      {"no batch items", [](Problem& p) { p.shape.batch = 0; }},
      {"odd dims", [](Problem& p) { p.shape.head_dim = 7, p.shape.value_dim = 3; }},
      {"widest dims", [](Problem& p) { p.shape.head_dim = p.shape.value_dim = 512; }},
      {"causal", [](Problem& p) { p.rules.mask = annulus::causal(); }},
      {"window", [](Problem& p) { p.rules.mask = annulus::sliding_window(3, 0); }},
      {"sink tokens", [](Problem& p) { p.rules.mask = {.window = {.left = 3}, .sink_tokens = 2}; }},
      {"chunk", [](Problem& p) { p.rules.mask.chunk = 5; }},
      {"soft cap", [](Problem& p) { p.rules.logit_softcap = 30; }},
      {"documents", [](Problem& p) { p.document_ids = true; }},
      {"sinks", [](Problem& p) { p.sinks = 3; }},
      {"bias", [](Problem& p) { p.bias = true; }},
      {"gradient of a bias", [](Problem& p) { p.bias = p.bias_gradient = true; }},
      {"boolean mask", [](Problem& p) { p.boolean_mask = true; }},
      {"block mask", [](Problem& p) { p.rules.block_mask = annulus::BlockMask(1, 1, 1, {true}); }},
      {"predicate", [](Problem& p) { p.predicate = true; }},
      {"dropout", [](Problem& p) { p.rules.dropout = {0.1, 7}; }},
      {"joint keys", [](Problem& p) { p.joint_keys = 5; }},
      {"reproducible", [](Problem& p) { p.rules.reproducible = true; }},
      {"scale 0", [](Problem& p) { p.rules.softmax_scale = 0; }},
      {"negative scale", [](Problem& p) { p.rules.softmax_scale = -2; }},
      {"the vendor's headline", [](Problem& p) {
         p.local_queries = p.local_keys = 16384;
         p.ranks = 64;
         p.shape.head_dim = p.shape.value_dim = 128;
         p.data_type = DataType::bfloat16;
       }}};
  for (auto const& [name, change] : supported)
    for (auto target : {annulus::nki::Target::trn2, annulus::nki::Target::trn3})
      for (int cores : {1, 2}) {
        INFO(name);
        CHECK(reason(change, {.target = target, .cores = cores}) == "");
      }
}

TEST_CASE("NkiBackend names the feature that it does not support", "[nki]") {
  using annulus_test::has_words;
  CHECK(has_words(reason([](Problem& p) { p.data_type = DataType::float64; }),
                  "float64; accepted are float32, float16, bfloat16"));
  CHECK(has_words(reason([](Problem& p) { p.shape.head_dim = 513; }), "head_dim 513*1 to 512"));
  CHECK(has_words(reason([](Problem& p) { p.shape.value_dim = 513; }), "value_dim 513*1 to 512"));
  CHECK(has_words(reason([](Problem& p) { p.rules.softmax_scale = 1e-7; }), "softmax scale is*2^-20 to 2^20"));
  CHECK(has_words(reason([](Problem& p) { p.rules.logit_softcap = 3e7; }), "logit soft cap is 30000000"));
  // Row statistics of a whole head group must fit on the chip.
  CHECK(has_words(reason([](Problem& p) { p.local_queries = 1 << 21; }), "2097152 queries*SBUF partition"));
  check_thrown(annulus_test::attempt([] { NkiBackend({.cores = 3}); }), "UnsupportedError", "lnc is 3");
}

TEST_CASE("a step with an unsupported feature is refused, not computed without it", "[nki]") {
  std::vector<double> values(64, 1.0);
  annulus::TensorView<double const, 4> const rows(values.data(), {1, 2, 1, 4});
  std::vector<float> state(64);
  std::vector<Index> const positions{0, 1};
  std::vector<annulus::Tile> const tiles{{.query_count = 2, .key_count = 2, .coverage = annulus::Coverage::full}};
  annulus::EveryPair const every_pair;
  NkiBackend backend;
  annulus::Step<double, annulus::EveryPair, annulus::HostMemory> const step{
      .tiles = tiles, .query_positions = positions, .key_positions = positions, .predicate = &every_pair};
  annulus::RunningState<double, annulus::HostMemory> const none{};
  auto const fold = [&] {
    backend.fold(step, annulus::StepOperands<double, annulus::HostMemory>{rows, rows, rows}, none);
  };
  check_thrown(annulus_test::attempt(fold), "UnsupportedError", "float64");
}
