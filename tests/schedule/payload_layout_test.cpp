#include "annulus/schedule/payload_layout.hpp"

#include "support/catch.hpp"

using namespace annulus;

TEST_CASE("parts start on cache lines", "[schedule]") {
  PayloadLayout const layout{{24, 4, 100}};
  CHECK(layout.bytes_per_row() == 128);
  CHECK(layout.part_offset(0, 5) == 0);
  CHECK(layout.part_offset(1, 5) == 128);  // 120 bytes
  CHECK(layout.part_offset(2, 5) == 192);  // and 20
  CHECK(layout.buffer_bytes(5) == 704);    // and 500
}

TEST_CASE("a part that fills its cache lines leaves no gap", "[schedule]") {
  PayloadLayout const layout{{64, 128}};
  CHECK(layout.part_offset(1, 3) == 192);
  CHECK(layout.buffer_bytes(3) == 192 + 384);
}

TEST_CASE("parts never overlap, and the buffer holds the last one", "[schedule]") {
  PayloadLayout const layout{{1, 7, 64, 65, 3}};
  for (Index rows = 0; rows < 200; ++rows)
    for (std::size_t p = 0; p < layout.row_bytes.size(); ++p) {
      Index const begin = layout.part_offset(p, rows), end = begin + layout.row_bytes[p] * rows;
      Index const next = p + 1 < layout.row_bytes.size() ? layout.part_offset(p + 1, rows) : layout.buffer_bytes(rows);
      CHECK(begin % PayloadLayout::alignment == 0);
      CHECK((end <= next && next < end + PayloadLayout::alignment));
    }
}

TEST_CASE("a payload without rows or parts has no bytes", "[schedule]") {
  CHECK(PayloadLayout{{24, 4}}.buffer_bytes(0) == 0);
  CHECK(PayloadLayout{}.buffer_bytes(100) == 0);
  CHECK(PayloadLayout{}.bytes_per_row() == 0);
  CHECK(PayloadLayout{{0, 0}}.buffer_bytes(100) == 0);
}
