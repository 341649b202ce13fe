#include "annulus/tensor/tensor_like.hpp"

#include <array>
#include <string>
#include <utility>

#include "annulus/tensor/eigen.hpp"
#include "support/catch.hpp"

using namespace annulus;

namespace {

using RowMajor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using ColMajor = Eigen::Tensor<float, 4>;

constexpr std::array orders{AxisOrder::bshd, AxisOrder::bhsd, AxisOrder::bhds};

/// Expected place of each attention axis, from the letters of the order's name.
std::size_t place_by_name(AxisOrder order, std::size_t attention_axis) {
  return name_of(order).find(std::string("bshd")[attention_axis]);
}

template <class Tensor>
Tensor numbered(std::array<Index, 4> const& e) {
  Tensor tensor(e[0], e[1], e[2], e[3]);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>(i);
  return tensor;
}

}  // namespace

TEST_CASE("the name of an axis order gives the place of each axis", "[tensor]") {
  for (AxisOrder order : orders)
    for (std::size_t a = 0; a < 4; ++a) CHECK(places_of(order)[a] == place_by_name(order, a));
}

TEST_CASE("stored extents are the attention extents in the order of the name", "[tensor]") {
  std::array<Index, 4> const attention{2, 7, 3, 5};  // batch, sequence, heads, dim
  CHECK(stored_extents(AxisOrder::bshd, attention) == std::array<Index, 4>{2, 7, 3, 5});
  CHECK(stored_extents(AxisOrder::bhsd, attention) == std::array<Index, 4>{2, 3, 7, 5});
  CHECK(stored_extents(AxisOrder::bhds, attention) == std::array<Index, 4>{2, 3, 5, 7});
}

TEMPLATE_TEST_CASE("the view of a wrapped tensor is in attention order", "[tensor]", RowMajor, ColMajor) {
  Index const batch = 2, sequence = 7, heads = 3, dim = 5;
  auto in_bhsd = numbered<TestType>({batch, heads, sequence, dim});
  auto in_bhds = numbered<TestType>({batch, heads, dim, sequence});
  auto const view = view_of(bhsd(in_bhsd));
  auto const transposed = view_of(bhds(in_bhds));
  std::array<Index, 4> const attention{batch, sequence, heads, dim};
  REQUIRE(view.extents() == attention);
  REQUIRE(transposed.extents() == attention);
  for (Index b = 0; b < batch; ++b)
    for (Index s = 0; s < sequence; ++s)
      for (Index h = 0; h < heads; ++h)
        for (Index d = 0; d < dim; ++d) {
          CHECK(&view(b, s, h, d) == &in_bhsd(b, h, s, d));
          CHECK(&transposed(b, s, h, d) == &in_bhds(b, h, d, s));
        }
}

TEST_CASE("a wrapper refers to a named tensor and owns a temporary", "[tensor]") {
  RowMajor tensor(1, 2, 3, 4);
  auto const named = bhsd(tensor);
  CHECK(view_of(named).data() == tensor.data());
  STATIC_REQUIRE(std::is_same_v<decltype(view_of(named)), TensorView<float, 4>>);
  auto const held = bhds(numbered<RowMajor>({1, 2, 3, 4}));
  CHECK(view_of(held).data() == held.tensor.data());
  STATIC_REQUIRE(std::is_same_v<decltype(view_of(held)), TensorView<float const, 4>>);
  auto const readable = bhsd(std::as_const(tensor));
  STATIC_REQUIRE(std::is_same_v<decltype(view_of(readable)), TensorView<float const, 4>>);
}

TEST_CASE("a wrapper reports its axis order; that of a plain tensor is bshd", "[tensor]") {
  RowMajor tensor(1, 2, 3, 4);
  CHECK(axis_order_of(tensor) == AxisOrder::bshd);
  CHECK(axis_order_of(bhsd(tensor)) == AxisOrder::bhsd);
  CHECK(axis_order_of(bhds(tensor)) == AxisOrder::bhds);
  CHECK(axis_order_of(with_axes(tensor, AxisOrder::bshd)) == AxisOrder::bshd);
}

TEST_CASE("a tensor made in the axis order of another has the requested attention extents", "[tensor]") {
  std::array<Index, 4> const attention{2, 7, 3, 5};
  ColMajor tensor(1, 1, 1, 1);
  for (AxisOrder order : orders) {
    auto made = detail::make_in_order_of<double>(with_axes(tensor, order), attention);
    STATIC_REQUIRE(std::is_same_v<decltype(made), Eigen::Tensor<double, 4>>);
    CHECK(view_of(with_axes(made, order)).extents() == attention);
  }
}

TEST_CASE("a view can be wrapped", "[tensor]") {
  std::array<float, 24> values{};
  TensorView<float, 4> const stored(values.data(), {1, 2, 3, 4});
  auto const view = view_of(bhds(stored));
  CHECK(view.extents() == std::array<Index, 4>{1, 4, 2, 3});
  CHECK(view.strides() == std::array<Index, 4>{24, 1, 12, 4});
}
