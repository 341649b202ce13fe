#include "annulus/schedule/payload_layout.hpp"

#include "support/catch.hpp"

using namespace annulus;

namespace {

/// A layout of parts with rows of these bytes.
PayloadLayout layout_of(std::initializer_list<Index> row_bytes) {
  PayloadLayout layout;
  for (Index const bytes : row_bytes) layout.parts.push_back({static_cast<Part>(layout.parts.size()), 1, 1, bytes, 1});
  return layout;
}

}  // namespace

TEST_CASE("parts start on cache lines", "[schedule]") {
  PayloadLayout const layout = layout_of({24, 4, 100});
  CHECK(layout.bytes_per_row() == 128);
  CHECK(layout.part_offset(0, 5) == 0);
  CHECK(layout.part_offset(1, 5) == 128);  // 120 bytes
  CHECK(layout.part_offset(2, 5) == 192);  // and 20
  CHECK(layout.buffer_bytes(5) == 704);    // and 500
}

TEST_CASE("a part that fills its cache lines leaves no gap", "[schedule]") {
  PayloadLayout const layout = layout_of({64, 128});
  CHECK(layout.part_offset(1, 3) == 192);
  CHECK(layout.buffer_bytes(3) == 192 + 384);
}

TEST_CASE("parts never overlap, and the buffer holds the last one", "[schedule]") {
  PayloadLayout const layout = layout_of({1, 7, 64, 65, 3});
  for (Index rows = 0; rows < 200; ++rows)
    for (std::size_t p = 0; p < layout.parts.size(); ++p) {
      Index const begin = layout.part_offset(p, rows), end = begin + layout.parts[p].row_bytes() * rows;
      Index const next = p + 1 < layout.parts.size() ? layout.part_offset(p + 1, rows) : layout.buffer_bytes(rows);
      CHECK(begin % PayloadLayout::alignment == 0);
      CHECK((end <= next && next < end + PayloadLayout::alignment));
    }
}

TEST_CASE("a payload without rows or parts has no bytes", "[schedule]") {
  CHECK(layout_of({24, 4}).buffer_bytes(0) == 0);
  CHECK(PayloadLayout{}.buffer_bytes(100) == 0);
  CHECK(PayloadLayout{}.bytes_per_row() == 0);
  CHECK(layout_of({0, 0}).buffer_bytes(100) == 0);
}

TEST_CASE("parts are found by name", "[schedule]") {
  PayloadLayout const layout{{{Part::k, 2, 3, 8, 4}, {Part::v, 2, 3, 5, 4}, {Part::document_ids, 2, 1, 1, 4}}};
  CHECK(layout.index_of(Part::k) == 0);
  CHECK(layout.index_of(Part::v) == 1);
  CHECK(layout.index_of(Part::document_ids) == 2);
  CHECK(layout.bytes_per_row() == 2 * 3 * 8 * 4 + 2 * 3 * 5 * 4 + 2 * 4);
  CHECK_THROWS_WITH(layout.index_of(Part::dq), "a payload of 3 parts has no part dq");
}
