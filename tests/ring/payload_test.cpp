// Payload: where its parts and rows lie, what it sends and receives, and its checksums.

#include "annulus/ring/payload.hpp"

#include <algorithm>
#include <array>

#include "annulus/backend/reference/reference.hpp"
#include "support/catch.hpp"

using namespace annulus;

namespace {

using HostPayload = detail::Payload<HostMemory>;

/// Two parts of 12 and 5 bytes per row, and slots for two checksums.
PayloadLayout two_parts(Index checksums = 2) {
  return {{{Part::k, 1, 1, 12, 1}, {Part::v, 1, 1, 5, 1}}, checksums};
}

HostPayload holding(RowRange rows, Index capacity, PayloadLayout const& layout = two_parts()) {
  ReferenceBackend backend;
  HostPayload payload;
  payload.reserve(backend, layout, capacity);
  payload.hold(rows);
  for (auto const& run : payload.incoming(rows)) std::fill(run.begin(), run.end(), std::byte{0});
  return payload;
}

}  // namespace

TEST_CASE("a payload keeps a buffer that is large enough, and replaces one that is not", "[ring]") {
  ReferenceBackend backend;
  HostPayload payload;
  CHECK(payload.buffer() == nullptr);
  payload.reserve(backend, two_parts(), 10);
  std::byte const* const first = payload.buffer();
  Index const bytes = payload.buffer_bytes();
  CHECK(bytes >= two_parts().buffer_bytes(10));
  payload.reserve(backend, two_parts(), 3);
  CHECK((payload.buffer() == first && payload.buffer_bytes() == bytes));
  payload.reserve(backend, two_parts(), 100);
  CHECK(payload.buffer_bytes() >= two_parts().buffer_bytes(100));
}

TEST_CASE("the runs of a range of rows are the rows of each part, counted from the first row held", "[ring]") {
  HostPayload const payload = holding({20, 30}, 10);
  auto const whole = payload.incoming({20, 30});
  REQUIRE(whole.size() == 3);
  CHECK(whole[0].data() == payload.buffer());
  CHECK(whole[1].data() == payload.buffer() + 128);  // 10 rows of 12 bytes, rounded up to cache lines
  CHECK((whole[0].size() == 120 && whole[1].size() == 50 && whole[2].size() == 8));

  auto const part = payload.incoming({24, 27});
  CHECK((part[0].data() == whole[0].data() + 4 * 12 && part[0].size() == 36));
  CHECK((part[1].data() == whole[1].data() + 4 * 5 && part[1].size() == 15));

  auto const out = payload.outgoing({24, 27}, 1);
  CHECK((out[0].data() == part[0].data() && out[1].data() == part[1].data()));
  // The checksums of rows that leave and of rows that arrive have a slot each.
  CHECK(out[2].data() + 8 == part[2].data());

  auto const lengths = HostPayload::run_lengths(two_parts(), {24, 27});
  REQUIRE(lengths.size() == out.size());
  for (std::size_t p = 0; p < lengths.size(); ++p) CHECK(lengths[p] == out[p].size());
}

TEST_CASE("no rows are empty runs without a checksum", "[ring]") {
  HostPayload const payload = holding({0, 4}, 4);
  for (Index row : {0, 2, 4}) {
    auto const out = payload.outgoing({row, row}, 1);
    REQUIRE(out.size() == 2);
    CHECK((out[0].empty() && out[1].empty()));
    CHECK(payload.incoming({row, row}).size() == 2);
    CHECK(HostPayload::run_lengths(two_parts(), {row, row}).size() == 2);
    CHECK(payload.is_intact({row, row}, 2, HostPayload::leaving));
  }
}

TEST_CASE("views of a part have the rows outermost in memory", "[ring]") {
  PayloadLayout const layout{{{Part::q, 2, 3, 4, 4}, {Part::lse, 2, 3, 1, 4}, {Part::document_ids, 2, 1, 1, 4}}};
  HostPayload const payload = holding({0, 5}, 5, layout);
  auto const rows = payload.view<float>(Part::q);
  CHECK(&rows(1, 2, 1, 3) - &rows(0, 0, 0, 0) == ((2 * 2 + 1) * 3 + 1) * 4 + 3);
  auto const statistics = payload.statistics<float>(Part::lse);
  CHECK(&statistics(1, 2, 4) - &statistics(0, 0, 0) == (4 * 2 + 1) * 3 + 2);
  auto const ids = payload.document_ids<float>();
  CHECK(&ids(1, 4) - &ids(0, 0) == 4 * 2 + 1);
}

TEST_CASE("a checksum detects a changed byte, another seed and other rows", "[ring]") {
  HostPayload const payload = holding({0, 8}, 8);
  payload.outgoing({2, 6}, 7);
  CHECK(payload.is_intact({2, 6}, 7, HostPayload::leaving));
  CHECK_FALSE(payload.is_intact({2, 6}, 8, HostPayload::leaving));
  CHECK_FALSE(payload.is_intact({2, 7}, 7, HostPayload::leaving));
  payload.incoming({0, 8})[1][3 * 5] = std::byte{1};
  CHECK_FALSE(payload.is_intact({2, 6}, 7, HostPayload::leaving));
  CHECK(holding({0, 8}, 8, two_parts(0)).is_intact({2, 6}, 7, HostPayload::leaving));
}

TEST_CASE("a payload can be bound to rows of another rank", "[ring]") {
  HostPayload const owner = holding({0, 8}, 8);
  owner.incoming({3, 4})[0][1] = std::byte{42};
  HostPayload reader;
  reader.bind_to(owner.outgoing({2, 6}, 7), two_parts(), {2, 6});
  CHECK((reader.rows().begin == 2 && reader.rows().end == 6));
  CHECK(reader.incoming({3, 4})[0].data() == owner.incoming({3, 4})[0].data());
  CHECK(reader.view<std::byte>(Part::k)(0, 1, 0, 1) == std::byte{42});
  CHECK(reader.is_intact({2, 6}, 7, HostPayload::leaving));
}
