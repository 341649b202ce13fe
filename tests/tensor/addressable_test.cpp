#include "annulus/tensor/view.hpp"

#include <array>
#include <limits>
#include <string>

#include "annulus/tensor/eigen.hpp"
#include "support/catch.hpp"

using namespace annulus;
using Catch::Matchers::ContainsSubstring;

namespace {

double element = 1;
constexpr Index huge = Index{1} << 32, lowest = std::numeric_limits<Index>::min();

template <std::size_t N>
void refused(TensorView<double, N> const& view, std::string const& part) {
  CHECK_THROWS_AS(detail::require_addressable("x", view), ShapeError);
  CHECK_THROWS_WITH(detail::require_addressable("x", view), ContainsSubstring(part));
}

}  // namespace

TEST_CASE("tensors whose size and offsets fit into an index are accepted", "[tensor]") {
  CHECK_NOTHROW(detail::require_addressable("x", TensorView<double, 2>(&element, {1, 1})));
  CHECK_NOTHROW(detail::require_addressable("x", TensorView<double, 2>(nullptr, {0, 5})));
  // Broadcast axes repeat elements; the stride of an axis of extent 1 is irrelevant.
  CHECK_NOTHROW(detail::require_addressable("x", TensorView<double, 2>(&element, {huge, 1 << 20}, {0, 0})));
  CHECK_NOTHROW(
      detail::require_addressable("x", TensorView<double, 2>(&element, {1, 1}, {lowest, detail::largest_index})));
  CHECK_NOTHROW(detail::require_addressable("x", TensorView<double, 2>(&element, {2, 3}, {-3, -1})));
  CHECK_NOTHROW(detail::require_countable("x", std::array<Index, 2>{1, detail::largest_index / 8}, 8));
}

TEST_CASE("extents whose product overflows are refused, even with an extent of 0", "[tensor]") {
  refused(TensorView<double, 2>(&element, {huge, huge}), "x has extents [4294967296, 4294967296] of 8 bytes");
  refused(TensorView<double, 3>(&element, {huge, 0, huge}), "x has extents [4294967296, 0, 4294967296]");
  refused(TensorView<double, 1>(&element, {detail::largest_index / 4}), "fewer than 9223372036854775807 bytes");
  refused(TensorView<double, 1>(&element, {detail::largest_index}), "fewer than 9223372036854775807 bytes");
  CHECK_THROWS_AS(detail::require_countable("x", std::array<Index, 2>{1, detail::largest_index / 8 + 1}, 8),
                  ShapeError);
  // An Eigen::TensorMap of a pointer.
  using Map = Eigen::TensorMap<Eigen::Tensor<double, 2, Eigen::RowMajor> const>;
  CHECK_THROWS_AS(detail::require_addressable("x", view_of(Map(&element, huge, huge))), ShapeError);
}

TEST_CASE("strides whose offsets overflow are refused, whatever their signs", "[tensor]") {
  std::string const accepted = "accepted: elements within 9223372036854775807 bytes";
  refused(TensorView<double, 2>(&element, {2, 1}, {detail::largest_index, 1}), accepted);
  refused(TensorView<double, 2>(&element, {2, 1}, {lowest, 1}), accepted);
  refused(TensorView<double, 2>(&element, {3, 3}, {Index{1} << 59, -(Index{1} << 59)}), accepted);
  refused(TensorView<double, 2>(&element, {1 << 20, 1}, {Index{1} << 41, 1}), accepted);
}

TEST_CASE("negative extents and elements without data are refused", "[tensor]") {
  refused(TensorView<double, 2>(&element, {-2, -3}), "extents must not be negative");
  refused(TensorView<double, 2>(nullptr, {2, 3}), "x of extents [2, 3] has no data");
}
