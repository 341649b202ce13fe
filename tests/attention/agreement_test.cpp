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
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

namespace {

detail::CallRecord record_of(std::function<void(detail::CallRecord&)> const& fill) {
  detail::CallRecord record;
  fill(record);
  return record;
}

std::function<void()> compared(std::vector<detail::CallRecord> const& records) {
  return [records] { detail::CallRecord::compare(records); };
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
  CHECK_NOTHROW(compared({record})());
  CHECK_NOTHROW(compared({record, record, record})());
  CHECK_NOTHROW(compared({detail::CallRecord(), detail::CallRecord()})());
}

TEST_CASE("the error names the first field that differs, with both values and ranks", "[attention]") {
  auto const record = [](Index batch, double scale) {
    return record_of([&](detail::CallRecord& r) {
      r.add("batch", batch);
      r.add("softmax_scale", scale);
    });
  };
  auto const named = [](Index value, std::string const& word, bool flag) {
    return record_of([&](detail::CallRecord& r) {
      r.add_named("data type", value, word);
      r.add("bias given", flag);
    });
  };
  std::string const type = "CommunicationError", long_word(100, 'x');
  auto const none = detail::CallRecord(), one = record_of([](detail::CallRecord&r) { r.add("batch", 0); }),
             other = record_of([](detail::CallRecord&r) { r.add("workers", 0); });
  check_refused({
      {"both fields", type, "batch: rank 0 has 2, rank 2 has 3",
       compared({record(2, 0.5), record(2, 0.5), record(3, 0.25)})},
      {"numbers", type, "softmax_scale: rank 0 has 0.5, rank 1 has 0.25", compared({record(2, 0.5), record(2, 0.25)})},
      {"signs", type, "rank 0 has -7, rank 1 has 7", compared({record(-7, 0.5), record(7, 0.5)})},
      {"signs of zero", type, "softmax_scale: rank 0 has 0, rank 1 has -0",
       compared({record(2, 0.0), record(2, -0.0)})},
      {"names", type, "data type: rank 0 has float32, rank 1 has bfloat16",
       compared({named(1, "float32", true), named(3, "bfloat16", true)})},
      {"booleans", type, "bias given: rank 0 has true, rank 1 has false",
       compared({named(1, "float32", true), named(1, "float32", false)})},
      // Values are compared, not the text, which is cut.
      {"long names", type, "rank 0 has xxxx", compared({named(1, long_word, true), named(2, long_word, true)})},
      {"other fields", type, "rank 0 compares 'batch', rank 1 'workers'", compared({one, other})},
      {"no field on rank 1", type, "rank 0 compares 'batch', rank 1 ''", compared({one, none})},
      {"no field on rank 0", type, "rank 0 compares '', rank 1 'workers'", compared({none, other})},
  });
}

TEST_CASE("a refusal takes precedence over a difference, and the first refusing rank over others", "[attention]") {
  auto const batch = record_of([](detail::CallRecord& r) { r.add("batch", 2); });
  auto const shape = refusing(std::make_exception_ptr(ShapeError("k is too short")));
  auto const option = refusing(std::make_exception_ptr(UnsupportedError("no dropout")));
  check_refused({
      {"of ranks 1 and 2", "ShapeError", "rank 1: k is too short", compared({batch, shape, option})},
      {"of both ranks", "UnsupportedError", "rank 0: no dropout", compared({option, shape})},
      {"by another exception", "Error",
       "rank 1: ", compared({batch, refusing(std::make_exception_ptr(std::bad_alloc()))})},
      {"by a value of any type", "Error", "rank 0: ", compared({refusing(std::make_exception_ptr(42))})},
  });
}

TEST_CASE("the text of a long refusal is cut", "[attention]") {
  Thrown const cut = attempt(compared({refusing(std::make_exception_ptr(ShapeError(std::string(5000, 'y'))))}));
  CHECK(cut.type == "ShapeError");
  CHECK((cut.text.size() > 500 && cut.text.size() < 800));
  CHECK(cut.text.find_first_not_of('y', 8) == std::string::npos);
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
  for (Thrown const& thrown : on_ring(4)([](SimulatedRing& ring) {
         detail::CallRecord mine;
         mine.add("batch", ring.rank() == 3 ? 1 : 2);
         detail::agree(ring, mine);
       }))
    check_thrown(thrown, "CommunicationError", "batch: rank 0 has 2, rank 3 has 1");
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
