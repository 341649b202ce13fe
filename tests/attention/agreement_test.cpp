#include "annulus/attention/agreement.hpp"

#include <cstddef>
#include <exception>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/catch.hpp"

using namespace annulus;
using Catch::Matchers::ContainsSubstring;

namespace {

detail::CallRecord record_of(std::function<void(detail::CallRecord&)> const& fill) {
  detail::CallRecord record;
  fill(record);
  return record;
}

std::string finding(std::vector<detail::CallRecord> const& records) {
  try {
    detail::CallRecord::compare(records);
    return "";
  } catch (CommunicationError const& error) {
    return error.what();
  }
}

detail::CallRecord refusing(std::exception_ptr reason) {
  return record_of([&](detail::CallRecord& record) { record.refuse(reason); });
}

}  // namespace

TEST_CASE("equal records agree", "[attention]") {
  auto const record = record_of([](detail::CallRecord& r) {
    r.add("batch", 2);
    r.add("scale", 0.5);
    r.add_named("type", 1, "float32");
    r.add("given", true);
  });
  CHECK(finding({record}) == "");
  CHECK(finding({record, record, record}) == "");
  CHECK(finding({detail::CallRecord(), detail::CallRecord()}) == "");
}

TEST_CASE("the error names the first field that differs, with both values and ranks", "[attention]") {
  auto const record = [](Index batch, double scale) {
    return record_of([&](detail::CallRecord& r) {
      r.add("batch", batch);
      r.add("softmax_scale", scale);
    });
  };
  CHECK_THAT(finding({record(2, 0.5), record(2, 0.5), record(3, 0.25)}),
             ContainsSubstring("batch: rank 0 has 2, rank 2 has 3"));
  CHECK_THAT(finding({record(2, 0.5), record(2, 0.25)}),
             ContainsSubstring("softmax_scale: rank 0 has 0.5, rank 1 has 0.25"));
  CHECK_THAT(finding({record(-7, 0.5), record(7, 0.5)}), ContainsSubstring("rank 0 has -7, rank 1 has 7"));
  CHECK(finding({record(2, 0.0), record(2, -0.0)}) != "");
}

TEST_CASE("named values are shown by name", "[attention]") {
  auto const record = [](Index value, std::string const& word, bool flag) {
    return record_of([&](detail::CallRecord& r) {
      r.add_named("data type", value, word);
      r.add("bias given", flag);
    });
  };
  CHECK_THAT(finding({record(1, "float32", true), record(3, "bfloat16", true)}),
             ContainsSubstring("data type: rank 0 has float32, rank 1 has bfloat16"));
  CHECK_THAT(finding({record(1, "float32", true), record(1, "float32", false)}),
             ContainsSubstring("bias given: rank 0 has true, rank 1 has false"));
  // Values are compared, not the text, which is cut.
  std::string const long_word(100, 'x');
  CHECK_THAT(finding({record(1, long_word, true), record(2, long_word, true)}), ContainsSubstring("rank 0 has xxxx"));
}

TEST_CASE("records with different fields do not agree", "[attention]") {
  auto const one = record_of([](detail::CallRecord& r) { r.add("batch", 0); });
  auto const other = record_of([](detail::CallRecord& r) { r.add("workers", 0); });
  CHECK_THAT(finding({one, other}), ContainsSubstring("rank 0 compares 'batch', rank 1 'workers'"));
  CHECK_THAT(finding({one, detail::CallRecord()}), ContainsSubstring("rank 0 compares 'batch', rank 1 ''"));
  CHECK_THAT(finding({detail::CallRecord(), other}), ContainsSubstring("rank 0 compares '', rank 1 'workers'"));
}

TEST_CASE("a refusal takes precedence over a difference, and the first refusing rank over others", "[attention]") {
  auto const batch = record_of([](detail::CallRecord& r) { r.add("batch", 2); });
  auto const shape = refusing(std::make_exception_ptr(ShapeError("k is too short")));
  auto const option = refusing(std::make_exception_ptr(UnsupportedError("no dropout")));
  std::vector<detail::CallRecord> const records{batch, shape, option};
  CHECK_THROWS_AS(detail::CallRecord::compare(records), ShapeError);
  CHECK_THROWS_WITH(detail::CallRecord::compare(records), "rank 1: k is too short");
  std::vector<detail::CallRecord> const reversed{option, shape};
  CHECK_THROWS_AS(detail::CallRecord::compare(reversed), UnsupportedError);
  CHECK_THROWS_WITH(detail::CallRecord::compare(reversed), "rank 0: no dropout");
}

TEST_CASE("a refusal of any other type is an Error on all ranks", "[attention]") {
  std::vector<detail::CallRecord> const records{detail::CallRecord(),
                                                refusing(std::make_exception_ptr(std::bad_alloc()))};
  CHECK_THROWS_AS(detail::CallRecord::compare(records), Error);
  CHECK_THROWS_WITH(detail::CallRecord::compare(records), ContainsSubstring("rank 1: "));
  std::vector<detail::CallRecord> const unknown{refusing(std::make_exception_ptr(42))};
  CHECK_THROWS_AS(detail::CallRecord::compare(unknown), Error);
}

TEST_CASE("the text of a long refusal is cut", "[attention]") {
  std::vector<detail::CallRecord> const records{refusing(std::make_exception_ptr(ShapeError(std::string(5000, 'y'))))};
  try {
    detail::CallRecord::compare(records);
    FAIL("the refusal was lost");
  } catch (ShapeError const& error) {
    std::string const text = error.what();
    CHECK((text.size() > 500 && text.size() < 800));
    CHECK(text.find_first_not_of('y', 8) == std::string::npos);
  }
}

TEST_CASE("too long field names and too many fields throw", "[attention]") {
  detail::CallRecord record;
  CHECK_THROWS_AS(record.add(std::string(32, 'n'), 1), Error);
  CHECK_NOTHROW(record.add(std::string(31, 'n'), 1));
  auto const fill = [&] {
    for (int i = 0; i < 1000; ++i) record.add("field", i);
  };
  CHECK_THROWS_AS(fill(), Error);
}

TEST_CASE("agree returns the records of all ranks in order", "[attention]") {
  for (int ranks : {1, 2, 5}) {
    auto const sums = run_ring(ranks, [](SimulatedRing& ring) {
      detail::CallRecord mine;
      mine.local_queries = 10 + ring.rank();
      mine.local_keys = 20 + ring.rank();
      Index sum = 0;
      auto const records = detail::agree(ring, mine);
      for (std::size_t r = 0; r < records.size(); ++r)
        if (records[r].local_queries == 10 + static_cast<Index>(r)) sum += records[r].local_keys - 20 + 1;
      return sum;
    });
    for (Index sum : sums) CHECK(sum == ranks * (ranks + 1) / 2);
  }
}

TEST_CASE("on one rank a refusal is thrown to its caller", "[attention]") {
  SelfRing self;
  CHECK_NOTHROW(detail::agree(self, detail::CallRecord()));
  CHECK_THROWS_AS(detail::agree(self, refusing(std::make_exception_ptr(ShapeError("wrong")))), ShapeError);
}

TEST_CASE("all ranks throw the same error", "[attention]") {
  auto const texts = run_ring(4, [](SimulatedRing& ring) -> std::string {
    detail::CallRecord mine;
    mine.add("batch", ring.rank() == 3 ? 1 : 2);
    try {
      detail::agree(ring, mine);
    } catch (CommunicationError const& error) {
      return error.what();
    }
    return "no error";
  });
  for (std::string const& text : texts) CHECK_THAT(text, ContainsSubstring("batch: rank 0 has 2, rank 3 has 1"));
}

TEST_CASE("of two ranks in different calls, the one behind is blamed", "[attention]") {
  for (Rank behind : {0, 1}) {
    std::vector<detail::CallRecord> records(2);
    for (Rank rank : {0, 1})
      records[static_cast<std::size_t>(rank)].identify(rank == behind ? 4 : 5, std::nullopt, Pass::forward, {});
    Rank blamed = CommunicationError::unknown;
    try {
      detail::CallRecord::compare(records);
    } catch (CommunicationError const& error) {
      blamed = error.neighbour();
    }
    CHECK(blamed == behind);
  }
}

TEST_CASE("a record that is corrupted in transfer is blamed on its rank", "[attention]") {
  struct CorruptingRing : SelfRing {
    void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
      SelfRing::all_gather(mine, all);
      all[all.size() / 3] ^= std::byte{4};
    }
  } ring;
  detail::CallRecord mine;
  mine.add("batch", 2);
  try {
    detail::agree(ring, mine);
    FAIL("no error");
  } catch (CommunicationError const& error) {
    CHECK_THAT(error.what(), ContainsSubstring("the call record from rank 0 does not match its checksum"));
    CHECK(error.neighbour() == 0);
  }
}
