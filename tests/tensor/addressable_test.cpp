#include "annulus/tensor/view.hpp"

#include <array>
#include <functional>
#include <limits>
#include <string>

#include "annulus/tensor/eigen.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using annulus_test::check_refused;

namespace {

double element = 1;
constexpr Index huge = Index{1} << 32, lowest = std::numeric_limits<Index>::min();

template <std::size_t N>
std::function<void()> addressed(TensorView<double, N> const& view) {
  return [view] { detail::require_addressable("x", view); };
}

std::function<void()> addressed(std::array<Index, 2> const& extents, std::array<Index, 2> const& strides) {
  return addressed(TensorView<double, 2>(&element, extents, strides));
}

}  // namespace

TEST_CASE("tensors whose size and offsets fit into an index are accepted", "[tensor]") {
  CHECK_NOTHROW(addressed(TensorView<double, 2>(&element, {1, 1}))());
  CHECK_NOTHROW(addressed(TensorView<double, 2>(nullptr, {0, 5}))());
  // Broadcast axes repeat elements; the stride of an axis of extent 1 is irrelevant.
  CHECK_NOTHROW(addressed(TensorView<double, 2>(&element, {huge, 1 << 20}, {0, 0}))());
  CHECK_NOTHROW(addressed(TensorView<double, 2>(&element, {1, 1}, {lowest, detail::largest_index}))());
  CHECK_NOTHROW(addressed(TensorView<double, 2>(&element, {2, 3}, {-3, -1}))());
  CHECK_NOTHROW(detail::require_countable("x", std::array<Index, 2>{1, detail::largest_index / 8}, 8));
}

TEST_CASE("tensors whose size or offsets overflow, negative extents and missing data are refused", "[tensor]") {
  Index const most = detail::largest_index;
  std::string const bytes = "fewer than 9223372036854775807 bytes";
  std::string const accepted = "accepted: elements within 9223372036854775807 bytes";
  using Map = Eigen::TensorMap<Eigen::Tensor<double, 2, Eigen::RowMajor> const>;
  check_refused({
      {"extents", "ShapeError", "x has extents [4294967296, 4294967296] of 8 bytes",
       addressed(TensorView<double, 2>(&element, {huge, huge}))},
      {"extents, one of them 0", "ShapeError", "x has extents [4294967296, 0, 4294967296]",
       addressed(TensorView<double, 3>(&element, {huge, 0, huge}))},
      {"bytes", "ShapeError", bytes, addressed(TensorView<double, 1>(&element, {most / 4}))},
      {"elements", "ShapeError", bytes, addressed(TensorView<double, 1>(&element, {most}))},
      {"one element too many", "ShapeError", bytes,
       [=] {
         detail::require_countable("x", std::array{Index{1}, most / 8 + 1}, 8);
       }},
      {"an Eigen::TensorMap of a pointer", "ShapeError", bytes,
       [] { detail::require_addressable("x", view_of(Map(&element, huge, huge))); }},
      {"a stride", "ShapeError", accepted, addressed({2, 1}, {most, 1})},
      {"a negative stride", "ShapeError", accepted, addressed({2, 1}, {lowest, 1})},
      {"strides of both signs", "ShapeError", accepted, addressed({3, 3}, {Index{1} << 59, -(Index{1} << 59)})},
      {"a stride of many rows", "ShapeError", accepted, addressed({1 << 20, 1}, {Index{1} << 41, 1})},
      {"negative extents", "ShapeError", "extents must not be negative",
       addressed(TensorView<double, 2>(&element, {-2, -3}))},
      {"no data", "ShapeError", "x of extents [2, 3] has no data", addressed(TensorView<double, 2>(nullptr, {2, 3}))},
  });
}
