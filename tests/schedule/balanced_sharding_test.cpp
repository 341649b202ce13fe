// Balanced shardings, and the work that a plan counts where it knows the documents.

#include "annulus/schedule/balanced_sharding.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "annulus/schedule/ring_plan.hpp"
#include "conformance/sharding_suite.hpp"
#include "schedule/random_plan_request.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using annulus_test::check_refused;
using annulus_test::RandomChoice;

namespace {

/// `count` documents of random lengths, 0 included, that fill `tokens` positions.
Documents random_documents(std::mt19937& engine, Index tokens, int count) {
  std::vector<Index> bounds{0, tokens};
  for (int i = 1; i < count; ++i) bounds.push_back(static_cast<Index>(engine() % static_cast<unsigned>(tokens + 1)));
  std::sort(bounds.begin(), bounds.end());
  Documents documents;
  for (std::size_t i = 1; i < bounds.size(); ++i) documents.push_back({bounds[i - 1], bounds[i]});
  return documents;
}

RingPlan plan_of(Sharding const& sharding, Documents const& documents, Index tokens, int ranks, Mask const& mask,
                 Rotation rotation = Rotation::keys, Pass pass = Pass::forward) {
  return RingPlan({.pass = pass,
                   .shape = {.head_dim = 64, .value_dim = 64},
                   .query_lengths = sharding.lengths(Side::query, ranks, tokens),
                   .key_lengths = sharding.lengths(Side::key, ranks, tokens),
                   .sharding = sharding,
                   .rules = {.mask = mask},
                   .rotation = rotation,
                   .document_ids = true,
                   .documents = documents});
}

/// Pairs that see each other, one by one.
Index visible_pairs(std::vector<Index> const& queries, std::vector<Index> const& keys, Documents const& documents,
                    Mask const& mask, Index offset) {
  Index pairs = 0;
  for (Index q : queries)
    for (Index k : keys)
      for (PositionRange const& document : documents)
        pairs += document.contains(q + offset) && document.contains(k) && mask.visible(q + offset, k);
  return pairs;
}

}  // namespace

TEST_CASE("a balanced sharding passes the conformance suite", "[sharding][balanced]") {
  annulus_test::run_sharding_suite([](int ranks, Index tokens) {
    return balanced_sharding({{0, tokens / 3}, {tokens / 3, tokens}}, tokens, causal(), ranks);
  });
}

TEST_CASE("packed causal documents of random lengths are balanced to 3 %", "[sharding][balanced]") {
  constexpr Index tokens = 65536;
  constexpr int ranks = 8;
  std::mt19937 engine(1);
  double contiguous = 1, zigzag = 1;
  for (int trial = 0; trial < 40; ++trial) {
    Documents const documents = random_documents(engine, tokens, 16);
    Sharding const balanced = balanced_sharding(documents, tokens, causal(), ranks);
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (Pass pass : {Pass::forward, Pass::backward})
        CHECK(plan_of(balanced, documents, tokens, ranks, causal(), rotation, pass).imbalance() <= 1.03);
    auto const lengths = balanced.lengths(Side::query, ranks, tokens);
    CHECK(std::count(lengths.begin(), lengths.end(), tokens / ranks) == ranks);
    contiguous = std::max(contiguous, plan_of(Contiguous{}, documents, tokens, ranks, causal()).imbalance());
    zigzag = std::max(zigzag, plan_of(Zigzag{}, documents, tokens, ranks, causal()).imbalance());
  }
  // What the balance is for.
  CHECK(contiguous > 2);
  CHECK(zigzag > 1.5);
}

TEST_CASE("other masks, lengths and numbers of ranks are balanced", "[sharding][balanced]") {
  std::mt19937 engine(2);
  struct Case {
    Index tokens;
    int ranks;
    Mask mask;
  };
  for (Case const& one : {Case{4096, 2, causal()},
                          {10007, 7, causal()},
                          {16384, 32, causal()},
                          {8192, 4, full()},
                          {8192, 4, sliding_window(700, 0)},
                          {8192, 4, {.causal = true, .chunk = 1000}},
                          {8192, 4, {.causal = true, .window = {.left = 500}, .sink_tokens = 64}}}) {
    CAPTURE(one.tokens, one.ranks);
    Documents const documents = random_documents(engine, one.tokens, 9);
    Sharding const balanced = balanced_sharding(documents, one.tokens, one.mask, one.ranks);
    CHECK(plan_of(balanced, documents, one.tokens, one.ranks, one.mask).imbalance() <= 1.03);
    auto lengths = balanced.lengths(Side::query, one.ranks, one.tokens);
    std::sort(lengths.begin(), lengths.end());
    CHECK(lengths.back() - lengths.front() <= 1);
  }
}

TEST_CASE("documents of several batch items are balanced together", "[sharding][balanced]") {
  constexpr Index tokens = 4096;
  std::mt19937 engine(3);
  Documents const first = random_documents(engine, tokens, 5), second = random_documents(engine, tokens, 3);
  Documents both = first;
  both.insert(both.end(), second.begin(), second.end());
  Sharding const balanced = balanced_sharding(both, tokens, causal(), 4);
  std::vector<Index> work;
  for (Rank rank = 0; rank < 4; ++rank)
    work.push_back(plan_of(balanced, first, tokens, 4, causal()).multiply_adds(rank) +
                   plan_of(balanced, second, tokens, 4, causal()).multiply_adds(rank));
  auto const [least, most] = std::minmax_element(work.begin(), work.end());
  CHECK(static_cast<double>(*most) <= 1.02 * static_cast<double>(*least));
}

TEST_CASE("a balanced sharding is the same each time, and consists of blocks", "[sharding][balanced]") {
  Documents const documents{{0, 300}, {300, 1000}, {1024, 2048}};
  Sharding const once = balanced_sharding(documents, 2048, causal(), 4, 64);
  CHECK(once == balanced_sharding(documents, 2048, causal(), 4, 64));
  for (Rank rank = 0; rank < 4; ++rank) {
    auto const segments = once.segments(Side::query, rank, once.lengths(Side::query, 4, 2048));
    Index rows = 0;
    for (Segment const& segment : segments) {
      CHECK(segment.global_begin % 64 == 0);
      CHECK(segment.length % 64 == 0);
      rows += segment.length;
    }
    CHECK(rows == 512);
  }
}

TEST_CASE("sequences without work, and shorter than the ring, have a balanced sharding", "[sharding][balanced]") {
  for (Index tokens : {0, 1, 3, 5, 64}) {
    CAPTURE(tokens);
    CHECK(balanced_sharding({}, tokens, causal(), 4).lengths(Side::key, 4, tokens).size() == 4);
  }
}

TEST_CASE("a balanced sharding that cannot be is refused", "[sharding][balanced]") {
  Documents const beyond{{0, 4}, {4, 9}};
  check_refused({
      {"no ranks", "ShapeError", "balanced sharding over 0 ranks; at least one is needed",
       [] { balanced_sharding({}, 8, causal(), 0); }},
      {"positions", "ShapeError", "-1 positions", [] { balanced_sharding({}, -1, causal(), 2); }},
      {"block", "UnsupportedError", "block is -3; accepted: 1 or more",
       [] { balanced_sharding({}, 8, causal(), 2, -3); }},
      {"documents", "ShapeError", "a document has the positions [4, 9); accepted: within [0, 8)",
       [&] { balanced_sharding(beyond, 8, causal(), 2); }},
  });
}

TEST_CASE("a plan that knows the documents counts their visible pairs, in the same steps", "[schedule][balanced]") {
  std::mt19937 engine(4);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    PlanRequest request = annulus_test::random_plan_request(seed);
    request.elementwise = false;
    RingPlan const unknown(request);
    Index const longest =
        std::max(unknown.global_queries() + request.rules.query_offset.value_or(0), unknown.global_keys());
    request.documents = random_documents(engine, longest, 4);
    if (seed % 3 == 0) request.documents.erase(request.documents.begin() + 1);  // padding
    RingPlan const plan(request);
    CAPTURE(seed, request.sharding.name());
    REQUIRE(plan.steps() == unknown.steps());
    for (Rank rank = 0; rank < plan.ranks(); ++rank) {
      CHECK(plan.bytes_sent(rank) == unknown.bytes_sent(rank));
      for (int i = 0; i < plan.steps(); ++i) {
        Rank const owner = plan.owner(rank, i);
        bool const keys = plan.rotation() == Rotation::keys;
        CHECK(plan.step(rank, i).visible_pairs == visible_pairs(positions_of(plan.query_segments(keys ? rank : owner)),
                                                                positions_of(plan.key_segments(keys ? owner : rank)),
                                                                request.documents, request.rules.mask,
                                                                request.rules.query_offset.value_or(0)));
      }
    }
  }
}

TEST_CASE("a plan refuses documents that overlap, are out of order or beyond the sequence", "[schedule][balanced]") {
  auto const planned = [](Documents const& documents) {
    return [documents] { plan_of(Contiguous{}, documents, 8, 2, causal()); };
  };
  std::string const within = "plan: a document has the positions [*accepted: within [0, 8)";
  check_refused({{"overlap", "ShapeError", "disjoint ranges", planned({{0, 5}, {4, 8}})},
                 {"order", "ShapeError", "disjoint ranges", planned({{4, 8}, {0, 4}})},
                 {"an end before the begin", "ShapeError", within, planned({{3, 2}})},
                 {"beyond the end", "ShapeError", within, planned({{0, 4}, {4, 9}})},
                 {"before the begin", "ShapeError", within, planned({{-1, 4}})}});
}
