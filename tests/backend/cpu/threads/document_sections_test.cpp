// Packed documents long enough that a step is divided into sections: the sections themselves, results against the
// oracle, and the same bits for any number of threads.

#include "annulus/backend/cpu/threads/document_sections.hpp"

#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "integration/random_sweep.hpp"

using namespace annulus_test;
using annulus::Index;

namespace {

/// Ids of documents whose lengths are those of blocks and sections, or one off, with padding, and with ids that recur.
std::vector<int> packed_ids(RandomChoice& choose, std::int64_t batch, std::int64_t length) {
  std::vector<int> ids;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t left = 0;
    int id = 0, next = 1;
    for (std::int64_t i = 0; i < length; ++i, --left) {
      if (left <= 0) {
        left = choose.of<std::int64_t>({1, 3, 37, 128, 255, 256, 257, 300, 512, 640});
        id = choose.one_in(8) ? 0 : choose.one_in(10) ? 1 : next++;
      }
      ids.push_back(id);
    }
  }
  return ids;
}

RingProblem random_packed_problem(std::uint64_t seed) {
  RandomChoice choose(seed);
  RingProblem problem;
  OracleProblem& d = problem.dense;
  problem.ranks = choose.of({1, 1, 2, 3});
  d.batch = choose.of<std::int64_t>({1, 1, 2, 3});
  d.kv_heads = choose.of<std::int64_t>({1, 2});
  d.query_heads = d.kv_heads * choose.of<std::int64_t>({1, 3});
  d.head_dim = choose.of<std::int64_t>({3, 8, 20});
  d.value_dim = choose.of<std::int64_t>({1, 8, 17});
  d.query_length = choose.between(300, 1300);
  d.key_length = choose.one_in(3) ? choose.between(300, 1300) : d.query_length;
  choose_mask(choose, d);
  if (choose.one_in(5)) d.logit_softcap = 2;
  if (choose.one_in(5)) d.dropout_probability = 0.3, d.dropout_seed = choose.engine()();
  choose_sharding(choose, problem);
  fill_operands(problem, choose.engine());
  choose_operands(choose, problem);
  d.query_documents = packed_ids(choose, d.batch, d.query_length);
  d.key_documents = d.key_length == d.query_length && !choose.one_in(4) ? *d.query_documents
                                                                        : packed_ids(choose, d.batch, d.key_length);
  take_options_from_dense(problem);
  problem.text = describe(problem, seed);
  return problem;
}

/// A step of one batch item for each pair of lists of document ids, and its sections.
struct DividedStep {
  std::vector<std::int32_t> query_ids, key_ids;
  annulus::cpu::detail::DocumentSections sections;

  DividedStep(std::vector<int> const& queries, std::vector<int> const& keys, Index batch = 1)
      : query_ids(queries.begin(), queries.end()), key_ids(keys.begin(), keys.end()) {
    Index const query_rows = static_cast<Index>(queries.size()) / batch;
    Index const key_rows = static_cast<Index>(keys.size()) / batch;
    annulus::Step<float, annulus::EveryPair, annulus::HostMemory> step;
    step.query_documents = {query_ids.data(), {batch, query_rows}};
    step.key_documents = {key_ids.data(), {batch, key_rows}};
    annulus::StepOperands<float, annulus::HostMemory> const operands{
        {nullptr, {batch, query_rows, 1, 1}}, {nullptr, {batch, key_rows, 1, 1}}, {nullptr, {batch, key_rows, 1, 1}}};
    annulus::detail::StepDocuments documents;
    documents.assign(step);
    sections.assign(step, documents, operands, true);
  }

  /// What is wrong with the sections; empty if nothing is.
  std::string fault(Index batch) const {
    Index const queries = static_cast<Index>(query_ids.size()) / batch;
    Index const keys = static_cast<Index>(key_ids.size()) / batch;
    for (Index b = 0; b < batch; ++b) {
      Index query = 0, key = 0;
      for (Index s = sections.first(b); s < sections.first(b + 1); ++s) {
        auto const& [own_queries, own_keys] = sections[s];
        if (own_queries.begin != query || own_keys.begin != key) return "rows between sections";
        query = own_queries.end;
        key = own_keys.end;
        if (sections.count(b) > 1 && (own_queries.size() < 256 || own_keys.size() < 256)) return "a small section";
        for (Index i = own_queries.begin; i < own_queries.end; ++i)
          for (Index j = 0; j < keys; ++j)
            if (annulus::detail::same_document(query_ids[static_cast<std::size_t>(b * queries + i)],
                                               key_ids[static_cast<std::size_t>(b * keys + j)]) &&
                (j < own_keys.begin || j >= own_keys.end))
              return "a query sees a key of another section";
      }
      if (query != queries || key != keys) return "rows after the last section";
    }
    return "";
  }
};

std::vector<int> documents_of(std::initializer_list<int> lengths) {
  std::vector<int> ids;
  int id = 0;
  for (int const length : lengths) ids.insert(ids.end(), static_cast<std::size_t>(length), ++id);
  return ids;
}

}  // namespace

TEST_CASE("sections: documents of 256 rows and more are sections of their own, shorter ones join others", "[cpu]") {
  auto const ends = [](std::vector<int> const& ids) {
    DividedStep const step(ids, ids);
    std::vector<Index> found;
    for (auto const& section : step.sections.all()) found.push_back(section.queries.end);
    return found;
  };
  CHECK(ends(documents_of({256, 256, 300})) == std::vector<Index>{256, 512, 812});
  CHECK(ends(documents_of({100, 100, 100, 256, 7})) == std::vector<Index>{300, 563});
  CHECK(ends(documents_of({255})) == std::vector<Index>{255});
  CHECK(ends(documents_of({512, 1})) == std::vector<Index>{513});
}

TEST_CASE("sections: rows of a document that comes back later are in one section", "[cpu]") {
  std::vector<int> ids = documents_of({300, 300, 300});
  std::fill(ids.begin() + 600, ids.end(), 1);
  CHECK(DividedStep(ids, ids).sections.count(0) == 1);
  std::vector<int> const documents = documents_of({300, 300});
  std::vector<int> reversed(documents.rbegin(), documents.rend());
  CHECK(DividedStep(documents, reversed).sections.count(0) == 1);
}

TEST_CASE("sections: of random documents contain all rows, and all keys that their queries see", "[cpu]") {
  Index divided = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    RandomChoice choose(seed);
    std::int64_t const batch = choose.between(1, 3), queries = choose.between(1, 1500), keys = choose.between(1, 1500);
    auto const query_ids = packed_ids(choose, batch, queries);
    DividedStep const step(query_ids, choose.one_in(2) ? query_ids : packed_ids(choose, batch, keys), batch);
    INFO("seed " << seed);
    CHECK(step.fault(batch) == "");
    divided += step.sections.first(batch) > batch ? 1 : 0;
  }
  CHECK(divided >= 50);
}

TEST_CASE("CPU: packed documents in sections agree with the oracle", "[slow][cpu][sweep]") {
  sweep<double, HostPlacement, annulus::CpuBackend>(9'100'000, 25, double_bounds, random_packed_problem);
  sweep<float, TransposedPlacement, annulus::CpuBackend>(9'200'000, 25, float_bounds, random_packed_problem);
}

TEMPLATE_TEST_CASE("CPU: packed documents in sections have the same bits for any number of threads",
                   "[slow][cpu][sweep]", float, Eigen::bfloat16) {
  for (std::uint64_t seed = 9'300'000; seed < 9'300'020; ++seed) {
    RingProblem problem = random_packed_problem(seed);
    round_operands<TestType>(problem);
    auto const run = [&](int threads) {
      return whole_result<TestType>(problem, annulus::CpuBackend{.threads = threads});
    };
    RingResult const alone = run(1);
    for (int const threads : {2, 5, 16}) {
      INFO(problem.text << ": " << threads << " threads");
      CHECK(same_bits(run(threads), alone));
    }
  }
}
