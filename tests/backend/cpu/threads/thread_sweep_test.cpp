// Random problems with several heads, tiles and blocks: the same bits for any number of threads, fewer and more than
// cores, however work is split and whichever thread claims it.

#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/random_ring_problem.hpp"
#include "support/ring_run.hpp"
#include "support/summing_backend.hpp"

using namespace annulus_test;

namespace {

/// Up to a few key blocks and many panels; every option is used in some problems.
RingProblem random_shared_problem(std::uint64_t seed) {
  RandomChoice choose(seed);
  RingProblem problem;
  OracleProblem& d = problem.dense;
  problem.ranks = choose.of({1, 1, 2, 3});
  d.batch = choose.of<std::int64_t>({1, 1, 2});
  d.kv_heads = choose.of<std::int64_t>({1, 2, 3});
  d.query_heads = d.kv_heads * choose.of<std::int64_t>({1, 2, 3});
  d.head_dim = choose.of<std::int64_t>({3, 8, 16, 33});
  d.value_dim = choose.one_in(2) ? d.head_dim : choose.of<std::int64_t>({1, 16, 20});
  d.query_length = choose.between(60, 480);
  d.key_length = choose.one_in(3) ? choose.between(130, 700) : d.query_length;
  choose_mask(choose, d);
  if (choose.one_in(5)) d.logit_softcap = 2;
  if (choose.one_in(5)) d.dropout_probability = 0.3, d.dropout_seed = choose.engine()();
  choose_sharding(choose, problem);
  fill_operands(problem, choose.engine());
  choose_operands(choose, problem);
  if (choose.one_in(3)) {  // packed sequences
    auto const documents = [&](std::int64_t length) {
      std::vector<int> ids;
      for (std::int64_t i = 0; i < d.batch * length; ++i) ids.push_back(1 + static_cast<int>(i % length) / 90);
      return ids;
    };
    d.query_documents = documents(d.query_length), d.key_documents = documents(d.key_length);
  }
  take_options_from_dense(problem);
  problem.text = describe(problem, seed);
  return problem;
}

}  // namespace

TEMPLATE_TEST_CASE("random problems: the same bits for any number of threads", "[cpu][sweep]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  for (std::uint64_t seed = 9'000'000; seed < 9'000'030; ++seed) {
    RingProblem problem = random_shared_problem(seed);
    round_operands<TestType>(problem);
    auto const run = [&](int threads) {
      return whole_result<TestType>(problem, annulus::CpuBackend{.threads = threads});
    };
    RingResult const alone = run(1);
    {
      INFO(problem.text << ": sums that are not written at once");
      CHECK(same_bits(whole_result<TestType>(problem, SummingBackend{{.threads = 1}}), alone));
    }
    for (int threads : {2, 3, 5, 16}) {
      INFO(problem.text << ": " << threads << " threads");
      CHECK(same_bits(run(threads), alone));
    }
  }
}
