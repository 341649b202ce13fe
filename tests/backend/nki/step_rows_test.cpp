// Rows of a step that a kernel gets, and the visible keys it is given: every pair against the mask's definition.

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "annulus/backend/nki/step_rows.hpp"
#include "annulus/sharding/sharding.hpp"
#include "support/catch.hpp"
#include "support/random_ring_problem.hpp"

using namespace annulus_test;
using annulus::Index;
using annulus::Mask;
using annulus::nki::BoundsForm;
using annulus::nki::step_rows;
using annulus::nki::StepPositions;

namespace {

bool defined(Mask const& mask, StepPositions const& at, std::size_t query, std::size_t key) {
  return mask.visible(at.queries[query], at.keys[key]) &&
         (!at.packed() || annulus::detail::same_document(at.query_documents[query], at.key_documents[key]));
}

/// The first error in the rows of a step; empty if there is none. A band is decoded from its offsets, as in the kernel.
std::string complaint(Mask const& mask, StepPositions const& at) {
  auto const rows = step_rows(mask, at);
  std::set<std::pair<std::size_t, Index>> told;
  std::set<Index> seen_keys, seeing_queries;
  if (rows) {
    if (std::ssize(rows->queries) != std::ssize(at.queries)) return "query rows are missing";
    bool const band = rows->mask.form() == BoundsForm::band;
    std::vector<float> const offsets = band ? rows->mask.offsets(0, 1) : std::vector<float>{};
    std::vector<float> const ranges =
        rows->mask.form() == BoundsForm::ranges ? rows->mask.ranges(0, 1) : std::vector<float>{};
    auto const& pieces = rows->mask.pieces();
    for (std::size_t i = 0; i < at.queries.size(); ++i)
      for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
        annulus::RowRange keys = pieces[piece];
        if (band) {
          auto const& query_pieces = rows->mask.query_pieces();
          std::size_t q = 0;
          while (static_cast<Index>(i) >= query_pieces[q].end) ++q;
          std::size_t const place = (q * pieces.size() + piece) * 2;
          keys.begin = std::max(keys.begin, static_cast<Index>(i) + static_cast<Index>(offsets[place]));
          keys.end = std::min(keys.end, static_cast<Index>(i) + static_cast<Index>(offsets[place + 1]));
        } else if (!ranges.empty()) {
          keys = {static_cast<Index>(ranges[2 * piece * at.queries.size() + i]),
                  static_cast<Index>(ranges[(2 * piece + 1) * at.queries.size() + i])};
          if (keys.begin < pieces[piece].begin || keys.end > pieces[piece].end) return "a range leaves its piece";
        }
        for (Index key = keys.begin; key < keys.end; ++key) told.emplace(i, rows->keys[static_cast<std::size_t>(key)]);
      }
    for (Index row : rows->keys)
      if (row != annulus::nki::inactive_row && !seen_keys.insert(row).second) return "a key is there twice";
    for (Index row : rows->queries)
      if (row != annulus::nki::inactive_row) seeing_queries.insert(row);
  }
  std::set<Index> expected_keys, expected_queries;
  for (std::size_t i = 0; i < at.queries.size(); ++i)
    for (std::size_t j = 0; j < at.keys.size(); ++j) {
      bool const visible = defined(mask, at, i, j);
      if (visible != told.contains({i, static_cast<Index>(j)}))
        return annulus::detail::message_of("query ", i, ", key ", j, visible ? " is not seen" : " is seen");
      if (visible) expected_keys.insert(static_cast<Index>(j)), expected_queries.insert(static_cast<Index>(i));
    }
  if (std::ranges::any_of(told, [](auto const& pair) { return pair.second == annulus::nki::inactive_row; }))
    return "a row that takes no part is seen";
  if (seen_keys != expected_keys) return "keys that nobody sees take part";
  if (seeing_queries != expected_queries) return "queries that see nothing take part";
  return {};
}

BoundsForm form_of(Mask const& mask, std::vector<Index> const& queries, std::vector<Index> const& keys) {
  return step_rows(mask, {queries, keys}).value().mask.form();
}

std::vector<Index> counted(Index count, Index first = 0, Index step = 1) {
  std::vector<Index> positions;
  for (Index i = 0; i < count; ++i) positions.push_back(first + i * step);
  return positions;
}

}  // namespace

TEST_CASE("rows of a step: every pair of random shards is visible as the mask and the documents define", "[nki]") {
  int with_band = 0, with_ranges = 0, idle = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RingProblem const problem = random_ring_problem(seed);
    auto const& d = problem.dense;
    for (int me = 0; me < problem.ranks; ++me)
      for (int owner = 0; owner < std::min(problem.ranks, 3); ++owner) {
        auto queries = annulus::positions_of(problem.segments(annulus::Side::query, me));
        auto const keys = annulus::positions_of(problem.segments(annulus::Side::key, owner));
        StepPositions at{queries, keys};
        if (d.query_documents && !queries.empty() && !keys.empty()) {
          for (Index p : queries) at.query_documents.push_back((*d.query_documents)[static_cast<std::size_t>(p)]);
          for (Index p : keys) at.key_documents.push_back((*d.key_documents)[static_cast<std::size_t>(p)]);
        }
        for (Index& position : queries) position += d.query_offset;
        INFO(problem.text << ", rank " << me << " and " << owner);
        CHECK(complaint(problem.options.mask, at) == "");
        auto const rows = step_rows(problem.options.mask, at);
        idle += !rows;
        with_band += rows && rows->mask.form() == BoundsForm::band;
        with_ranges += rows && rows->mask.form() == BoundsForm::ranges;
      }
  }
  CHECK(with_band > 50);
  CHECK(with_ranges > 50);
  CHECK(idle > 50);
}

TEST_CASE("rows of a step: equally spaced rows form a band, others are sorted", "[nki]") {
  Mask const causal = annulus::causal();
  CHECK(form_of({}, counted(5), {7, 3, 9}) == BoundsForm::none);
  CHECK(form_of(causal, counted(300), counted(300)) == BoundsForm::band);
  CHECK(form_of(causal, counted(300, 2, 4), counted(300, 1, 4)) == BoundsForm::band);
  // Two runs of 256 rows, as zigzag produces them, form two bands; runs that end inside a row tile do not.
  auto const two_runs = [](Index rows) {
    auto positions = counted(rows);
    for (Index position : counted(rows, 5000)) positions.push_back(position);
    return positions;
  };
  CHECK(form_of(causal, two_runs(256), two_runs(256)) == BoundsForm::band);
  CHECK(form_of(causal, two_runs(100), two_runs(100)) == BoundsForm::ranges);
  CHECK(form_of(causal, counted(300), counted(100, 0, 3)) == BoundsForm::ranges);

  auto const sorted = step_rows(causal, {std::vector<Index>{4, 0}, std::vector<Index>{9, 3, 1, 7, 0, 2, 8, 5}});
  REQUIRE(sorted.has_value());
  CHECK(sorted->keys == std::vector<Index>{4, 2, 5, 1, annulus::nki::inactive_row, annulus::nki::inactive_row,
                                           annulus::nki::inactive_row, annulus::nki::inactive_row});
  CHECK(sorted->mask.pieces().size() == 1);
  CHECK(sorted->mask.seen(0, 0, 0, 0, 0) == annulus::RowRange{0, 4});
}

TEST_CASE("rows of a step: keys exempt from the window form a separate piece", "[nki]") {
  Mask const mask{.window = {.left = 1, .right = 0}, .sink_tokens = 3};
  std::vector<Index> const positions{8, 0, 7, 2, 1, 5};
  auto const rows = step_rows(mask, {positions, positions});
  REQUIRE(rows.has_value());
  REQUIRE(rows->mask.pieces().size() == 2);
  CHECK(rows->mask.pieces()[0] == annulus::RowRange{0, 3});
  CHECK(complaint(mask, {positions, positions}) == "");
}

TEST_CASE("rows of a step: an interrupted document becomes one range, and padding is left out", "[nki]") {
  std::vector<Index> const positions = counted(8);
  StepPositions const at{positions, positions, {1, 1, 2, 0, 1, 2, -1, 3}, {1, 2, 1, 0, 2, 1, -1, 4}};
  auto const rows = step_rows(annulus::causal(), at);
  REQUIRE(rows.has_value());
  CHECK(rows->queries == std::vector<Index>{0, 1, 2, annulus::nki::inactive_row, 4, 5, annulus::nki::inactive_row,
                                            annulus::nki::inactive_row});
  CHECK(rows->keys == std::vector<Index>{0, 2, annulus::nki::inactive_row, 1, 4, annulus::nki::inactive_row});
  CHECK(complaint(annulus::causal(), at) == "");
  StepPositions const strangers{positions, positions, std::vector<std::int32_t>(8, 1), std::vector<std::int32_t>(8, 2)};
  CHECK_FALSE(step_rows({}, strangers).has_value());
}

TEST_CASE("rows of a step: none if a side is empty or no pair is visible", "[nki]") {
  CHECK_FALSE(step_rows({}, {{}, counted(3)}).has_value());
  std::vector<Index> const three = counted(3), late = counted(3, 10);
  CHECK_FALSE(step_rows({}, {three, {}}).has_value());
  CHECK_FALSE(step_rows(annulus::causal(), {three, late}).has_value());
  CHECK(step_rows(annulus::causal(), {late, three}).has_value());
}
