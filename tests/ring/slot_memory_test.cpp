// Slot memory: where its parts and rows are, what it sends and receives, and its checksums.

#include "annulus/ring/slot_memory.hpp"

#include <algorithm>
#include <array>

#include "annulus/backend/reference/reference.hpp"
#include "support/catch.hpp"

using namespace annulus;

namespace {

using HostSlot = detail::SlotMemory<HostMemory>;

/// Two parts of 12 and 5 bytes per row, and places for two checksums.
PayloadLayout two_parts(Index checksums = 2) { return {{{Part::k, 1, 1, 12, 1}, {Part::v, 1, 1, 5, 1}}, checksums}; }

/// A slot of `rows` rows, all 0.
HostSlot slot_of(Index rows, PayloadLayout const& layout = two_parts(), Index nodes = 1) {
  ReferenceBackend backend;
  HostSlot slot;
  slot.reserve(backend, layout.buffer_bytes(rows), false);
  slot.arrange(slot, layout, rows, nodes);
  for (auto const& run : slot.incoming({0, rows}, HostSlot::arriving)) std::fill(run.begin(), run.end(), std::byte{0});
  return slot;
}

}  // namespace

TEST_CASE("a slot keeps a buffer that is large enough, and replaces one that is not", "[ring]") {
  ReferenceBackend backend;
  HostSlot slot;
  CHECK(slot.buffer() == nullptr);
  slot.reserve(backend, two_parts().buffer_bytes(10), false);
  std::byte const* const first = slot.buffer();
  Index const bytes = slot.bytes();
  CHECK(bytes >= two_parts().buffer_bytes(10));
  slot.reserve(backend, two_parts().buffer_bytes(3), false);
  CHECK((slot.buffer() == first && slot.bytes() == bytes));
  slot.reserve(backend, two_parts().buffer_bytes(100), false);
  CHECK(slot.bytes() >= two_parts().buffer_bytes(100));
}

TEST_CASE("a slot that other ranks read is not in memory of another kind", "[ring]") {
  ReferenceBackend backend, of_windows;
  HostSlot slot;
  slot.reserve(backend, 100, false);
  slot.reserve(of_windows, 10, true);
  CHECK(slot.bytes() < 100);
  std::byte const* const windowed = slot.buffer();
  slot.reserve(backend, 10, false);
  CHECK(slot.buffer() == windowed);
}

TEST_CASE("the runs of a range of rows are the rows of each part", "[ring]") {
  HostSlot const slot = slot_of(10);
  auto const whole = slot.incoming({0, 10}, HostSlot::arriving);
  REQUIRE(whole.size() == 3);
  CHECK(whole[0].data() == slot.buffer());
  CHECK(whole[1].data() == slot.buffer() + 128);  // 10 rows of 12 bytes, rounded up to cache lines
  CHECK((whole[0].size() == 120 && whole[1].size() == 50 && whole[2].size() == 8));

  auto const part = slot.incoming({4, 7}, HostSlot::arriving);
  CHECK((part[0].data() == whole[0].data() + 4 * 12 && part[0].size() == 36));
  CHECK((part[1].data() == whole[1].data() + 4 * 5 && part[1].size() == 15));

  auto const out = slot.outgoing({4, 7}, 1, HostSlot::leaving, false);
  CHECK((out[0].data() == part[0].data() && out[1].data() == part[1].data()));
  // The checksums of rows that leave and of rows that arrive have a place each.
  CHECK(out[2].data() + 8 == part[2].data());

  auto const lengths = slot.run_lengths({4, 7});
  REQUIRE(lengths.size() == out.size());
  for (std::size_t p = 0; p < lengths.size(); ++p) CHECK(lengths[p] == out[p].size());
}

TEST_CASE("no rows are empty runs without a checksum", "[ring]") {
  HostSlot const slot = slot_of(4);
  for (Index row : {0, 2, 4}) {
    auto const out = slot.outgoing({row, row}, 1, HostSlot::leaving, false);
    REQUIRE(out.size() == 2);
    CHECK((out[0].empty() && out[1].empty()));
    CHECK(slot.incoming({row, row}, HostSlot::arriving).size() == 2);
    CHECK(slot.run_lengths({row, row}).size() == 2);
    CHECK(slot.is_intact({row, row}, 2, HostSlot::leaving));
  }
}

TEST_CASE("views of a part have the rows outermost in memory", "[ring]") {
  PayloadLayout const layout{{{Part::q, 2, 3, 4, 4}, {Part::lse, 2, 3, 1, 4}, {Part::document_ids, 2, 1, 1, 4}}};
  HostSlot const memory = slot_of(5, layout);
  detail::SlotView<HostMemory> const slot{&memory, {0, 5}};
  auto const rows = slot.view<float>(Part::q);
  CHECK(&rows(1, 2, 1, 3) - &rows(0, 0, 0, 0) == ((2 * 2 + 1) * 3 + 1) * 4 + 3);
  auto const statistics = slot.statistics<float>(Part::lse);
  CHECK(&statistics(1, 2, 4) - &statistics(0, 0, 0) == (4 * 2 + 1) * 3 + 2);
  auto const ids = slot.document_ids<float>();
  CHECK(&ids(1, 4) - &ids(0, 0) == 4 * 2 + 1);
  detail::SlotView<HostMemory> const later{&memory, {2, 5}};
  CHECK(&later.view<float>(Part::q)(0, 0, 0, 0) == &rows(0, 2, 0, 0));
}

TEST_CASE("several partial results of a row are next to each other", "[ring]") {
  // Two batch items, three partial results of each row.
  HostSlot const memory = slot_of(4, {{{Part::dq, 6, 2, 5, 4}}}, 3);
  detail::SlotView<HostMemory> const first{&memory, {1, 3}, 0}, last{&memory, {1, 3}, 2};
  auto const a = first.view<float>(Part::dq), b = last.view<float>(Part::dq);
  CHECK(a.extents() == std::array<Index, 4>{2, 2, 2, 5});
  CHECK(&b(0, 0, 0, 0) - &a(0, 0, 0, 0) == 2 * 2 * 2 * 5);
  CHECK(&a(0, 1, 0, 0) - &a(0, 0, 0, 0) == 6 * 2 * 5);
}

TEST_CASE("a checksum detects a changed byte, another seed and other rows", "[ring]") {
  HostSlot const slot = slot_of(8);
  slot.outgoing({2, 6}, 7, HostSlot::leaving, false);
  CHECK(slot.is_intact({2, 6}, 7, HostSlot::leaving));
  CHECK_FALSE(slot.is_intact({2, 6}, 8, HostSlot::leaving));
  CHECK_FALSE(slot.is_intact({2, 7}, 7, HostSlot::leaving));
  slot.incoming({0, 8}, HostSlot::arriving)[1][3 * 5] = std::byte{1};
  CHECK_FALSE(slot.is_intact({2, 6}, 7, HostSlot::leaving));
  CHECK(slot_of(8, two_parts(0)).is_intact({2, 6}, 7, HostSlot::leaving));
}

TEST_CASE("a checksum that has been computed before is sent as it is", "[ring]") {
  HostSlot const slot = slot_of(8);
  slot.outgoing({2, 6}, 7, HostSlot::leaving, false);
  slot.outgoing({2, 6}, 8, HostSlot::leaving, true);
  CHECK(slot.is_intact({2, 6}, 7, HostSlot::leaving));
}

TEST_CASE("a slot can be bound to rows of another rank", "[ring]") {
  HostSlot const owner = slot_of(8);
  owner.incoming({3, 4}, HostSlot::arriving)[0][1] = std::byte{42};
  HostSlot reader;
  reader.arrange(reader, two_parts(), 0, 1);
  reader.bind_to(owner.outgoing({2, 6}, 7, HostSlot::leaving, false), {2, 6});
  CHECK(reader.incoming({1, 2}, HostSlot::arriving)[0].data() == owner.incoming({3, 4}, HostSlot::arriving)[0].data());
  CHECK(detail::SlotView<HostMemory>{&reader, {1, 2}}.view<std::byte>(Part::k)(0, 0, 0, 1) == std::byte{42});
  CHECK(reader.is_intact({0, 4}, 7, HostSlot::leaving));
}
