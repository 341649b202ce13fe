// Forms of visible keys that need no GPU, and the ranges that a GPU computes, on random steps.

#include "annulus/backend/cuda/visible_ranges.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "annulus/backend/cuda/row_ranges.hpp"
#include "annulus/backend/cuda/strided.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "schedule/random_plan_request.hpp"
#include "support/catch.hpp"
#include "support/cuda_memory.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

constexpr Index batch = 2;

/// A step between two random shards; half of them have documents.
struct RandomStep {
  std::vector<Index> query_positions, key_positions;
  std::vector<std::int32_t> query_ids, key_ids;
  EveryPair predicate;
  Step<float, EveryPair, HostMemory> step;

  explicit RandomStep(std::uint64_t seed) {
    RandomChoice choose(seed);
    PlanRequest const request = random_plan_request(seed, 30);
    auto const ranks = static_cast<std::int64_t>(request.query_lengths.size());
    auto const rank = [&] { return static_cast<Rank>(choose.below(ranks)); };
    query_positions = positions_of(request.sharding.segments(Side::query, rank(), request.query_lengths));
    for (Index& position : query_positions) position += request.rules.query_offset.value_or(0);
    key_positions = positions_of(request.sharding.segments(Side::key, rank(), request.key_lengths));
    step = {.tiles = {},
            .rules = request.rules,
            .query_positions = query_positions,
            .key_positions = key_positions,
            .predicate = &predicate};
    if (choose.one_in(2)) return;
    auto const query_rows = std::ssize(query_positions), key_rows = std::ssize(key_positions);
    query_ids = ids(choose, query_rows);
    key_ids = ids(choose, key_rows);
    step.query_documents = {query_ids.data(), {batch, query_rows}};
    step.key_documents = {key_ids.data(), {batch, key_rows}};
  }
  RandomStep(RandomStep const&) = delete;
  RandomStep& operator=(RandomStep const&) = delete;

  static std::vector<std::int32_t> ids(RandomChoice& choose, Index rows) {
    std::vector<int> const drawn = random_documents(choose, batch, rows);
    return {drawn.begin(), drawn.end()};
  }

  /// The key rows that a query sees, one character each.
  std::string seen(Index b, Index query) const {
    std::string picture;
    for (Index key = 0; key < std::ssize(key_positions); ++key) picture += step.visible(b, 0, query, key) ? '#' : '.';
    return picture;
  }
  /// The rows of a range, in the same form.
  std::string picture(RowRange range) const {
    std::string picture(key_positions.size(), '.');
    for (Index key = range.begin; key < range.end; ++key) picture[static_cast<std::size_t>(key)] = '#';
    return picture;
  }
  Index queries() const { return std::ssize(query_positions); }
  Index keys() const { return std::ssize(key_positions); }
};

/// True if no row sees a key between two others that it does not see.
bool all_consecutive(RandomStep const& random) {
  for (Index i = 0; i < random.queries(); ++i) {
    std::string const seen = random.seen(0, i);
    auto const first = seen.find('#'), last = seen.rfind('#');
    if (first != std::string::npos && seen.find('.', first) < last) return false;
  }
  return true;
}

/// The range of a query row in a form without documents.
RowRange range_of(RandomStep const& random, cuda::detail::VisibleForm const& form, Index query) {
  switch (form.coverage) {
    case cuda::detail::Coverage::full:
      return {0, random.keys()};
    case cuda::detail::Coverage::band:
      return form.band.keys_of(query, random.keys());
    default:
      return cuda::detail::SeenRows(random.step.rules.mask, random.query_positions[static_cast<std::size_t>(query)],
                                    random.key_positions.data(), random.keys())
          .all();
  }
}

/// The ranges of a step as the GPU computes them; empty if those of some document are not consecutive.
std::vector<int2> ranges_on_gpu(RandomStep const& random) {
  using cuda::detail::strided;
  auto const positions = [](std::vector<Index> const& host) {
    return CudaPlacement::place<Index, 1>(TensorView<Index const, 1>(host.data(), {std::ssize(host)}));
  };
  auto const queries = positions(random.query_positions), keys = positions(random.key_positions);
  auto const query_ids = CudaPlacement::place<std::int32_t, 2>(random.step.query_documents),
             key_ids = CudaPlacement::place<std::int32_t, 2>(random.step.key_documents);
  cuda::detail::RangeSearch search{.mask = random.step.rules.mask,
                                   .batch = batch,
                                   .queries = random.queries(),
                                   .keys = random.keys(),
                                   .query_positions = queries.view().data(),
                                   .key_positions = keys.view().data()};
  if (random.step.has_documents())
    search.query_documents = strided(query_ids.view()), search.key_documents = strided(key_ids.view());
  cuda::detail::Stream const stream = cuda::detail::make_stream();
  cuda::detail::RowRanges ranges;
  cuda::detail::VisibleKeys const found = ranges.find(search, stream);
  CHECK(found.ranges_batch == (random.step.has_documents() ? random.queries() : 0));
  std::vector<int2> host(static_cast<std::size_t>((random.step.has_documents() ? batch : 1) * random.queries()));
  int exact = 1;
  auto const download = [&](void* to, void const* from, std::size_t bytes) {
    cuda::detail::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  };
  download(host.data(), found.ranges, host.size() * sizeof(int2));
  if (found.exact) download(&exact, found.exact, sizeof exact);
  CudaMemory::Queue{stream}.wait();
  CHECK((exact == 0 || exact == 1));
  return exact ? host : std::vector<int2>();
}

template <class T, class Predicate, class Space>
auto form_of(Step<T, Predicate, Space> const& step) {
  return cuda::detail::visible_form(
      step, cuda::detail::form_of_positions(step.rules.mask, step.query_positions, step.key_positions));
}

}  // namespace

TEST_CASE("a form of visible keys holds exactly those by position", "[backend][cuda]") {
  std::map<cuda::detail::Coverage, int> found;
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    RandomStep random(seed);
    random.step.query_documents = random.step.key_documents = {};
    CAPTURE(seed);
    auto const form = form_of(random.step);
    if (!form) {
      ++refused;
      REQUIRE(!(all_consecutive(random) && std::is_sorted(random.key_positions.begin(), random.key_positions.end())));
      continue;
    }
    ++found[form->coverage];
    for (Index i = 0; i < random.queries(); ++i)
      REQUIRE(random.picture(range_of(random, *form, i)) == random.seen(0, i));
  }
  CHECK(refused > 50);
  CHECK((found[cuda::detail::Coverage::full] > 50 && found[cuda::detail::Coverage::band] > 50 &&
         found[cuda::detail::Coverage::ranges] > 50));
}

TEST_CASE("rules that no range of keys can follow have no form", "[backend][cuda]") {
  std::vector<Index> const positions{0, 1, 2, 3};
  EveryPair const every_pair;
  Step<float, EveryPair, HostMemory> step{
      .tiles = {}, .query_positions = positions, .key_positions = positions, .predicate = &every_pair};
  CHECK(form_of(step) == cuda::detail::VisibleForm{});
  std::array<bool, 16> const allowed{};
  auto masked = step;
  masked.boolean_mask = {allowed.data(), {1, 1, 4, 4}};
  CHECK(!form_of(masked));
  auto blocked = step;
  blocked.rules.block_mask = BlockMask(2, 2, 2, {true, false, true, true});
  CHECK(!form_of(blocked));
  auto const odd = [](Index, Index, Index, Index key) { return key % 2 == 1; };
  CHECK(!form_of(step.with_predicate(odd)));
  std::array<std::int32_t, 4> const ids{1, 1, 2, 2};
  auto documents = step;
  documents.query_documents = documents.key_documents = {ids.data(), {1, 4}};
  CHECK(form_of(documents)->coverage == cuda::detail::Coverage::ranges);
}

TEST_CASE("the GPU finds the ranges of visible keys", "[backend][cuda][gpu]") {
  int judged = 0, inexact = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    RandomStep const random(seed);
    auto const form = form_of(random.step);
    if (!form || random.queries() * random.keys() == 0) continue;
    CAPTURE(seed);
    std::vector<int2> const ranges = ranges_on_gpu(random);
    inexact += ranges.empty();
    for (std::size_t row = 0; row < ranges.size(); ++row) {
      auto const b = static_cast<Index>(row) / random.queries(), i = static_cast<Index>(row) % random.queries();
      REQUIRE(random.picture({ranges[row].x, ranges[row].y}) == random.seen(b, i));
      ++judged;
    }
  }
  CHECK((judged > 1000 && inexact > 0));
}
