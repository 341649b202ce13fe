// Visible pairs of the oracle: each rule against a picture drawn by hand.

#include "support/catch.hpp"
#include "support/oracle_problem.hpp"

#include <stdexcept>
#include <string>
#include <vector>

using namespace annulus_test;

namespace {

/// One string per query, one letter per key: '#' visible, '.' not.
std::vector<std::string> picture(OracleProblem const& problem, std::int64_t batch = 0, std::int64_t head = 0) {
  std::vector<std::string> rows;
  for (std::int64_t row = 0; row < problem.query_length; ++row) {
    rows.emplace_back();
    for (std::int64_t key = 0; key < problem.key_length; ++key)
      rows.back() += oracle_visible(problem, batch, head, row, key) ? '#' : '.';
  }
  return rows;
}

OracleProblem plain(std::int64_t queries, std::int64_t keys) {
  OracleProblem problem;
  problem.query_length = queries;
  problem.key_length = keys;
  return problem;
}

using Picture = std::vector<std::string>;

}  // namespace

TEST_CASE("without a rule every key is visible", "[oracle]") { CHECK(picture(plain(2, 3)) == Picture{"###", "###"}); }

TEST_CASE("causal compares global positions", "[oracle]") {
  auto problem = plain(4, 5);
  problem.causal = true;
  CHECK(picture(problem) == Picture{"#....", "##...", "###..", "####."});
  problem.query_offset = 2;
  CHECK(picture(problem) == Picture{"###..", "####.", "#####", "#####"});
  problem.query_offset = -2;
  CHECK(picture(problem) == Picture{".....", ".....", "#....", "##..."});
}

TEST_CASE("the window bounds each side; unset and negative sides are unbounded", "[oracle]") {
  auto problem = plain(5, 5);
  problem.window_left = 1;
  problem.window_right = 0;
  CHECK(picture(problem) == Picture{"#....", "##...", ".##..", "..##.", "...##"});
  problem.window_right = -1;
  CHECK(picture(problem) == Picture{"#####", "#####", ".####", "..###", "...##"});
  problem.window_right.reset();
  CHECK(picture(problem) == Picture{"#####", "#####", ".####", "..###", "...##"});
  problem.window_left = -3;
  problem.window_right = 2;
  CHECK(picture(problem) == Picture{"###..", "####.", "#####", "#####", "#####"});
}

TEST_CASE("sink tokens widen the window and nothing else", "[oracle]") {
  auto problem = plain(5, 5);
  problem.causal = true;
  problem.window_left = 0;
  problem.sink_tokens = 2;
  CHECK(picture(problem) == Picture{"#....", "##...", "###..", "##.#.", "##..#"});
  problem.causal = false;
  problem.window_right = 0;
  CHECK(picture(problem) == Picture{"##...", "##...", "###..", "##.#.", "##..#"});
  problem.chunk = 2;
  CHECK(picture(problem) == Picture{"##...", "##...", "..#..", "...#.", "....#"});
}

TEST_CASE("chunks are counted by floor division, also below zero", "[oracle]") {
  auto problem = plain(5, 5);
  problem.chunk = 2;
  CHECK(picture(problem) == Picture{"##...", "##...", "..##.", "..##.", "....#"});
  problem.query_offset = -3;
  CHECK(picture(problem) == Picture{".....", ".....", ".....", "##...", "##..."});
}

TEST_CASE("documents see their own keys, padding sees nothing", "[oracle]") {
  auto problem = plain(4, 5);
  problem.batch = 2;
  problem.query_documents = {1, 2, 0, -1, 3, 3, 1, 2};
  problem.key_documents = {2, 1, 1, 0, -1, 1, 3, 3, 2, 4};
  CHECK(picture(problem, 0) == Picture{".##..", "#....", ".....", "....."});
  CHECK(picture(problem, 1) == Picture{".##..", ".##..", "#....", "...#."});
}

TEST_CASE("the boolean mask broadcasts over batch and heads", "[oracle]") {
  auto problem = plain(1, 2);
  problem.batch = 2;
  problem.query_heads = 2;
  problem.mask = OraclePairs<char>{1, 2, {1, 0, 0, 1}};
  CHECK(picture(problem, 0, 0) == Picture{"#."});
  CHECK(picture(problem, 1, 1) == Picture{".#"});
  problem.mask = OraclePairs<char>{2, 1, {1, 0, 0, 1}};
  CHECK(picture(problem, 0, 1) == Picture{"#."});
  CHECK(picture(problem, 1, 0) == Picture{".#"});
}

TEST_CASE("the predicate gets global positions, and all rules must hold", "[oracle]") {
  auto problem = plain(3, 4);
  problem.query_offset = 1;
  problem.predicate = [](std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) {
    return batch == 1 && head == 2 && (query + key) % 2 == 0;
  };
  CHECK(picture(problem, 1, 2) == Picture{".#.#", "#.#.", ".#.#"});
  CHECK(picture(problem, 0, 2) == Picture{"....", "....", "...."});
  problem.causal = true;
  CHECK(picture(problem, 1, 2) == Picture{".#..", "#.#.", ".#.#"});
}

TEST_CASE("a problem whose operands do not match is refused", "[oracle]") {
  auto problem = plain(2, 3);
  problem.q.resize(2);
  problem.k.resize(3);
  problem.v.resize(3);
  CHECK_NOTHROW(expect_consistent(problem));
  SECTION("q") { problem.q.resize(3); }
  SECTION("k") { problem.k.resize(2); }
  SECTION("v") { problem.v.clear(); }
  SECTION("bias") { problem.bias = OraclePairs<double>{1, 1, {0, 0}}; }
  SECTION("mask heads") { problem.mask = OraclePairs<char>{1, 2, std::vector<char>(12)}; }
  SECTION("document ids of one side only") { problem.query_documents = {1, 1}; }
  SECTION("sink logits") { problem.sinks = OracleSinks{2, {0.0}}; }
  SECTION("kv heads") { problem.kv_heads = 2; }
  CHECK_THROWS_AS(expect_consistent(problem), std::invalid_argument);
}
