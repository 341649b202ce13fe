#include "annulus/tensor/view.hpp"

#include <array>
#include <numeric>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

/// Elements 0, 1, 2, ...: the value of an element is its offset in memory.
std::vector<int> counted(Index count) {
  std::vector<int> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

struct OtherMemory {};

}  // namespace

// Elements in another memory space cannot be read through a view.
template <class View>
concept Readable = requires(View view) {
  view(0, 0);
};
static_assert(Readable<TensorView<int, 2>> && !Readable<TensorView<int, 2, OtherMemory>>);
static_assert(!Readable<TensorView<int, 3>>);

static_assert(std::is_convertible_v<TensorView<int, 2>, TensorView<int const, 2>>);
static_assert(!std::is_convertible_v<TensorView<int const, 2>, TensorView<int, 2>>);
static_assert(!std::is_convertible_v<TensorView<int, 2, OtherMemory>, TensorView<int, 2>>);
static_assert(!std::is_convertible_v<TensorView<float, 2>, TensorView<double const, 2>>);

TEST_CASE("a dense view is row-major", "[tensor]") {
  CHECK(detail::row_major_strides<4>({2, 3, 4, 5}) == std::array<Index, 4>{60, 20, 5, 1});
  CHECK(detail::row_major_strides<1>({7}) == std::array<Index, 1>{1});
  auto values = counted(24);
  TensorView<int, 3> const view(values.data(), {2, 3, 4});
  CHECK(view.size() == 24);
  for (Index i = 0; i < 2; ++i)
    for (Index j = 0; j < 3; ++j)
      for (Index k = 0; k < 4; ++k) CHECK(view(i, j, k) == (i * 3 + j) * 4 + k);
}

TEST_CASE("a default view is empty", "[tensor]") {
  TensorView<double> const view;
  CHECK(view.data() == nullptr);
  CHECK(view.size() == 0);
}

TEST_CASE("an empty axis empties a view", "[tensor]") { CHECK(TensorView<int, 3>(nullptr, {4, 0, 2}).size() == 0); }

TEST_CASE("a size that overflows saturates instead of becoming 0", "[tensor]") {
  Index const huge = Index{1} << 32;
  int value = 7;
  TensorView<int, 2> const view(&value, {huge, huge});
  CHECK(view.size() == detail::largest_index);
  CHECK(TensorView<int, 3>(&value, {huge, huge, 2}).strides() == std::array<Index, 3>{2 * huge, 2, 1});
  CHECK(TensorView<int, 3>(&value, {2, huge, huge}).stride(0) == detail::largest_index);
  CHECK(TensorView<int, 3>(&value, {huge, huge, 0}).size() == 0);
  CHECK(TensorView<int, 3>(&value, {0, huge, huge}).size() == 0);
}

TEST_CASE("strides may be negative or zero", "[tensor]") {
  auto values = counted(6);
  TensorView<int, 2> const backwards(values.data() + 5, {2, 3}, {-3, -1});
  CHECK(backwards(0, 0) == 5);
  CHECK(backwards(1, 2) == 0);
  CHECK(backwards.offset(1, 2) == -5);
  TensorView<int, 2> const repeated(values.data() + 2, {4, 2}, {0, 1});
  CHECK(repeated.size() == 8);
  CHECK((repeated(0, 1) == 3 && repeated(3, 1) == 3));
}

TEST_CASE("writing through a view writes the element", "[tensor]") {
  auto values = counted(6);
  TensorView<int, 2> const transposed(values.data(), {3, 2}, {1, 3});
  transposed(2, 1) = -1;
  CHECK(values == std::vector<int>{0, 1, 2, 3, 4, -1});
}

TEST_CASE("a slice keeps the strides and moves the data pointer", "[tensor]") {
  auto values = counted(24);
  TensorView<int, 3> const view(values.data(), {2, 3, 4});
  auto const middle = view.slice(1, 1, 2);
  CHECK(middle.extents() == std::array<Index, 3>{2, 2, 4});
  CHECK(middle.strides() == view.strides());
  CHECK(middle(1, 0, 3) == view(1, 1, 3));
  auto const part = middle.slice(2, 3, 1).slice(0, 1, 1);
  CHECK(part.size() == 2);
  CHECK(part(0, 1, 0) == view(1, 2, 3));
  CHECK(view.slice(0, 0, 2).data() == view.data());
}

TEST_CASE("a slice along a negative stride counts rows, not addresses", "[tensor]") {
  auto values = counted(6);
  TensorView<int, 1> const backwards(values.data() + 5, {6}, {-1});
  auto const part = backwards.slice(0, 2, 3);
  CHECK((part(0) == 3 && part(2) == 1));
}

TEST_CASE("an empty slice does not move the pointer past the end", "[tensor]") {
  auto values = counted(6);
  TensorView<int, 2> const view(values.data(), {2, 3});
  auto const nothing = view.slice(0, 2, 0);
  CHECK(nothing.size() == 0);
  CHECK(nothing.data() == values.data());
  TensorView<int, 2> const empty(nullptr, {0, 3});
  CHECK(empty.slice(0, 0, 0).data() == nullptr);
}

TEST_CASE("permuted reorders the axes", "[tensor]") {
  auto values = counted(120);
  TensorView<int, 4> const view(values.data(), {2, 3, 4, 5});
  auto const permuted = view.permuted({3, 1, 0, 2});
  CHECK(permuted.extents() == std::array<Index, 4>{5, 3, 2, 4});
  CHECK(permuted.data() == view.data());
  for (Index a = 0; a < 5; ++a)
    for (Index b = 0; b < 3; ++b)
      for (Index c = 0; c < 2; ++c)
        for (Index d = 0; d < 4; ++d) CHECK(permuted(a, b, c, d) == view(c, b, d, a));
}

TEST_CASE("a read-only view sees what is written through the mutable one", "[tensor]") {
  auto values = counted(4);
  TensorView<int, 2> const writable(values.data(), {2, 2});
  TensorView<int const, 2> const readable = writable;
  writable(1, 0) = 9;
  CHECK(readable(1, 0) == 9);
  CHECK(readable.strides() == writable.strides());
}

TEST_CASE("in_space changes the memory space and nothing else", "[tensor]") {
  auto values = counted(4);
  TensorView<int, 2> const here(values.data(), {2, 2}, {1, 2});
  auto const there = here.in_space<OtherMemory>();
  STATIC_REQUIRE(std::is_same_v<decltype(there), TensorView<int, 2, OtherMemory> const>);
  CHECK(there.data() == here.data());
  CHECK(there.extents() == here.extents());
  CHECK(there.strides() == here.strides());
}
