#include "annulus/attention/cache/page_table.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

void append(PageTable& table, Index sequence, Index count) {
  std::array const one{sequence};
  table.require_room(one, count);
  table.append(sequence, count);
}

}  // namespace

TEST_CASE("pages go to the rank with most room, next to those of the sequence", "[attention][cache]") {
  PageTable table(3, 8, 4);
  Index const first = table.create(), second = table.create();
  append(table, first, 4 * 6 + 1);
  CHECK(table.length(first) == 25);
  std::vector<Index> of_ranks(3);
  for (PagePlace const& page : table.pages(first)) ++of_ranks[static_cast<std::size_t>(page.rank)];
  std::sort(of_ranks.begin(), of_ranks.end());
  CHECK(of_ranks == std::vector<Index>{2, 2, 3});
  for (Rank rank = 0; rank < 3; ++rank) {
    Index slot = 0;
    for (PagePlace const& page : table.pages(first))
      if (page.rank == rank) CHECK(page.slot == slot++);
  }
  // The rank with three pages has least room.
  append(table, second, 4);
  CHECK(table.pages(second)[0].rank != table.pages(first)[0].rank);
  // Both sequences can still grow in adjacent slots.
  CHECK(table.pages(second)[0].slot > 2);
  append(table, first, 4 * 3);
  for (Rank rank = 0; rank < 3; ++rank) {
    Index slot = 0;
    for (PagePlace const& page : table.pages(first))
      if (page.rank == rank) CHECK(page.slot == slot++);
  }
}

TEST_CASE("a shared page that is partly filled is copied on write, once", "[attention][cache]") {
  PageTable table(1, 4, 4);
  Index const first = table.create();
  append(table, first, 6);
  Index const second = table.fork(first);
  CHECK(table.free_pages()[0] == 2);
  CHECK(table.pages(second)[1] == table.pages(first)[1]);
  auto const copy = table.own_last_page(first);
  REQUIRE(copy.has_value());
  CHECK(copy->from == table.pages(second)[1].slot);
  CHECK(copy->to == table.pages(first)[1].slot);
  CHECK(copy->rows == 2);
  CHECK(table.free_pages()[0] == 1);
  CHECK(!table.own_last_page(second).has_value());
  CHECK(!table.own_last_page(first).has_value());
  // Full pages stay shared.
  CHECK(table.pages(second)[0] == table.pages(first)[0]);
  table.release(first);
  CHECK(table.free_pages()[0] == 2);
  table.release(second);
  CHECK(table.free_pages()[0] == 4);
}

TEST_CASE("forks that write into one page in one append need one copy less than there are forks",
          "[attention][cache]") {
  PageTable table(1, 3, 4);
  Index const first = table.create();
  append(table, first, 6);
  std::array const both{first, table.fork(first)};
  CHECK_NOTHROW(table.require_room(both, 2));
  check_thrown(attempt([&] { table.require_room(both, 3); }), "ShapeError", "3 pages of 4 rows are needed, 1 are free");
  int copies = 0;
  for (Index sequence : both) copies += table.own_last_page(sequence).has_value();
  CHECK(copies == 1);
  for (Index sequence : both) table.append(sequence, 2);
  CHECK(table.free_pages()[0] == 0);
}

TEST_CASE("pages that go together are on one rank", "[attention][cache]") {
  PageTable table(2, 4, 4, 2);
  Index const first = table.create(), second = table.create();
  append(table, first, 4 * 3);
  auto const pages = table.pages(first);
  CHECK(pages[0].rank == pages[1].rank);
  CHECK(pages[2].rank != pages[0].rank);
  append(table, second, 4 * 2);
  append(table, first, 4);
  CHECK(table.pages(first)[3].rank == table.pages(first)[2].rank);
}

TEST_CASE("a table has room if and only if each page finds some on its rank", "[attention][cache]") {
  int accepted = 0, refused = 0, refused_by_rank = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::minstd_rand random(seed);
    auto const below = [&](int end) { return static_cast<Index>(random() % static_cast<unsigned>(end)); };
    PageTable table(static_cast<int>(1 + below(3)), 4 + below(6), 2, 1 + below(3));
    std::vector<Index> sequences{table.create(), table.create()};
    for (int call = 0; call < 12; ++call) {
      if (below(4) == 0) sequences.push_back(table.fork(sequences[static_cast<std::size_t>(below(2))]));
      if (below(5) == 0) table.truncate(sequences[0], below(static_cast<int>(table.length(sequences[0])) + 1));
      Index const count = below(9);
      PageTable forced = table;
      for (Index const sequence : sequences)
        if (count > 0) forced.own_last_page(sequence);
      for (Index const sequence : sequences) forced.append(sequence, count);
      auto const& free = forced.free_pages();
      bool const fits = *std::min_element(free.begin(), free.end()) >= 0;
      CAPTURE(seed, call, count, free);
      std::string const thrown = attempt([&] { table.require_room(sequences, count); }).text;
      REQUIRE(thrown.empty() == fits);
      (fits ? accepted : refused) += 1;
      if (thrown.find("lie on one rank") != std::string::npos) ++refused_by_rank;
      if (fits) table = forced;
    }
  }
  CHECK(std::min({accepted, refused, refused_by_rank}) > 100);
}

TEST_CASE("a table refuses what it has not, by name", "[attention][cache]") {
  PageTable table(2, 2, 4);
  Index const sequence = table.create();
  append(table, sequence, 5);
  std::uint64_t const history = table.history();
  std::array const one{sequence};
  std::array const twice{sequence, sequence};
  CHECK_NOTHROW(table.require_room(one, 11));
  check_refused(
      {{"a fork of none", "ShapeError", "sequence 7 does not exist; 1 sequences exist", [&] { table.fork(7); }},
       {"a longer end", "ShapeError", "truncate of sequence 0 to 6 rows; it has 5, and 0 to 5 are accepted",
        [&] { table.truncate(sequence, 6); }},
       {"a negative length", "ShapeError", "to -1 rows", [&] { table.truncate(sequence, -1); }},
       {"a sequence twice", "ShapeError", "sequence 0 is given twice", [&] { table.require_room(twice, 1); }},
       {"a negative number of rows", "ShapeError", "append of -1 rows", [&] { table.require_room(one, -1); }},
       {"too many rows", "ShapeError",
        "append of 12 rows to sequences [0] of [5] rows: 3 pages of 4 rows are needed, 2 are free; "
        "free pages of the ranks: [1, 1]",
        [&] { table.require_room(one, 12); }},
       {"more rows than can be counted", "ShapeError", "append of",
        [&] { table.require_room(one, detail::largest_index - 3); }},
       {"a page of no row", "ShapeError", "at least one page of one row", [] { PageTable(1, 0, 4); }}});
  CHECK(table.history() == history);
  CHECK(table.length(sequence) == 5);
  table.release(sequence);
  check_thrown(attempt([&] { table.length(sequence); }), "ShapeError", "sequence 0 does not exist");
  CHECK(table.create() == 1);
}

TEST_CASE("a copy needs a free page on the rank of the shared one", "[attention][cache]") {
  PageTable table(2, 1, 4);
  Index const first = table.create();
  append(table, first, 2);
  table.fork(first);
  std::array const one{first};
  check_thrown(attempt([&] { table.require_room(one, 1); }), "ShapeError",
               "its last page is shared and is copied on rank 0");
}

TEST_CASE("equal histories mean equal calls", "[attention][cache]") {
  std::set<std::uint64_t> seen;
  auto const note = [&](auto const& change) {
    PageTable table(2, 4, 4);
    table.create();
    append(table, 0, 6);
    change(table);
    seen.insert(table.history());
  };
  note([](PageTable&) {});
  note([](PageTable& table) { table.create(); });
  note([](PageTable& table) { table.fork(0); });
  note([](PageTable& table) { table.truncate(0, 5); });
  note([](PageTable& table) { table.truncate(0, 6); });
  note([](PageTable& table) { table.release(0); });
  note([](PageTable& table) { append(table, 0, 1); });
  note([](PageTable& table) { append(table, 0, 2); });
  CHECK(seen.size() == 8);
  note([](PageTable& table) { append(table, 0, 2); });
  CHECK(seen.size() == 8);
}
