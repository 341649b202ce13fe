#include "annulus/tensor/eigen.hpp"

#include <array>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

template <class T, int N>
using RowMajor = Eigen::Tensor<T, N, Eigen::RowMajor>;
template <class T, int N>
using ColMajor = Eigen::Tensor<T, N>;

template <class Tensor>
Tensor filled(Index a, Index b, Index c, Index d) {
  Tensor tensor(a, b, c, d);
  for (Index i = 0; i < a; ++i)
    for (Index j = 0; j < b; ++j)
      for (Index k = 0; k < c; ++k)
        for (Index l = 0; l < d; ++l)
          tensor(i, j, k, l) = static_cast<typename Tensor::Scalar>(i * 1000 + j * 100 + k * 10 + l);
  return tensor;
}

template <class Tensor, class View>
void check_same_elements(Tensor const& tensor, View const& view) {
  REQUIRE(view.size() == tensor.size());
  for (std::size_t a = 0; a < 4; ++a) REQUIRE(view.extent(a) == tensor.dimension(a));
  for (Index i = 0; i < view.extent(0); ++i)
    for (Index j = 0; j < view.extent(1); ++j)
      for (Index k = 0; k < view.extent(2); ++k)
        for (Index l = 0; l < view.extent(3); ++l) CHECK(&view(i, j, k, l) == &tensor(i, j, k, l));
}

using Expression = decltype(std::declval<RowMajor<float, 4>&>() * 2.0f);
using Shuffled = decltype(std::declval<RowMajor<float, 4>&>().shuffle(std::array<int, 4>{}));

}  // namespace

static_assert(TensorLike<RowMajor<float, 4>> && TensorLike<ColMajor<double, 3> const&>);
static_assert(TensorLike<Eigen::TensorMap<RowMajor<float const, 4>>>);
static_assert(TensorLike<TensorView<float, 4>> && TensorLike<TensorView<float const, 4> const&>);
static_assert(!TensorLike<Expression> && !TensorLike<Shuffled> && !TensorLike<std::vector<float>> && !TensorLike<int>);

static_assert(std::is_same_v<ScalarOf<Eigen::TensorMap<RowMajor<double const, 2>>>, double>);
static_assert(std::is_same_v<ScalarOf<TensorView<float const, 3>>, float>);
static_assert(rank_of<RowMajor<float, 3>> == 3 && rank_of<Eigen::TensorMap<ColMajor<int, 2>>> == 2);

TEMPLATE_TEST_CASE("the view of an Eigen tensor refers to its elements", "[tensor]", (RowMajor<float, 4>),
                   (ColMajor<float, 4>), (RowMajor<Eigen::bfloat16, 4>), (ColMajor<int, 4>)) {
  auto tensor = filled<TestType>(2, 3, 4, 5);
  check_same_elements(tensor, view_of(tensor));
  check_same_elements(tensor, view_of(std::as_const(tensor)));
  STATIC_REQUIRE(std::is_same_v<decltype(view_of(tensor)), TensorView<typename TestType::Scalar, 4>>);
  STATIC_REQUIRE(
      std::is_same_v<decltype(view_of(std::as_const(tensor))), TensorView<typename TestType::Scalar const, 4>>);
}

TEMPLATE_TEST_CASE("the view of a map refers to its elements", "[tensor]", (RowMajor<float, 4>), (ColMajor<float, 4>)) {
  auto tensor = filled<TestType>(3, 1, 4, 2);
  Eigen::TensorMap<TestType> const map(tensor.data(), tensor.dimensions());
  check_same_elements(tensor, view_of(map));
  view_of(map)(2, 0, 3, 1) = -1.0f;
  CHECK(tensor(2, 0, 3, 1) == -1.0f);
}

TEST_CASE("the view of a map of const elements is read-only", "[tensor]") {
  auto const tensor = filled<RowMajor<float, 4>>(2, 2, 2, 2);
  Eigen::TensorMap<RowMajor<float const, 4>> const map(tensor.data(), 2, 2, 2, 2);
  STATIC_REQUIRE(std::is_same_v<decltype(view_of(map)), TensorView<float const, 4>>);
  check_same_elements(tensor, view_of(map));
  Eigen::TensorMap<RowMajor<float, 4> const> const map_of_const_tensor(tensor.data(), 2, 2, 2, 2);
  STATIC_REQUIRE(std::is_same_v<decltype(view_of(map_of_const_tensor)), TensorView<float const, 4>>);
}

TEST_CASE("empty tensors have empty views", "[tensor]") {
  RowMajor<float, 4> nothing(2, 0, 3, 4);
  auto const view = view_of(nothing);
  CHECK(view.size() == 0);
  CHECK(view.extents() == std::array<Index, 4>{2, 0, 3, 4});
  CHECK(view_of(RowMajor<float, 4>{}).size() == 0);
}

TEST_CASE("vectors and matrices are tensors too", "[tensor]") {
  ColMajor<float, 1> vector(5);
  CHECK(view_of(vector).strides() == std::array<Index, 1>{1});
  ColMajor<float, 2> matrix(5, 3);
  CHECK(view_of(matrix).strides() == std::array<Index, 2>{1, 5});
  RowMajor<float, 2> rows(5, 3);
  CHECK(view_of(rows).strides() == std::array<Index, 2>{3, 1});
}

TEST_CASE("make_like keeps the family and the storage order", "[tensor]") {
  std::array<Index, 3> const extents{2, 3, 4};
  auto const rows = make_like<double, 3>(RowMajor<float, 4>(), extents);
  STATIC_REQUIRE(std::is_same_v<decltype(rows), RowMajor<double, 3> const>);
  CHECK(view_of(rows).extents() == extents);
  auto const columns = make_like<double, 3>(ColMajor<float, 4>(), extents);
  STATIC_REQUIRE(std::is_same_v<decltype(columns), ColMajor<double, 3> const>);
  auto const of_map = make_like<float, 3>(Eigen::TensorMap<ColMajor<float const, 4>>(nullptr, 0, 0, 0, 0), extents);
  STATIC_REQUIRE(std::is_same_v<decltype(of_map), ColMajor<float, 3> const>);
  auto const of_view = make_like<float, 3>(TensorView<float const, 4>(), extents);
  STATIC_REQUIRE(std::is_same_v<decltype(of_view), RowMajor<float, 3> const>);
  STATIC_REQUIRE(std::is_same_v<MadeLike<ColMajor<Eigen::half, 4>&, float, 2>, ColMajor<float, 2>>);
}

TEST_CASE("a view is its own view", "[tensor]") {
  std::array<float, 6> values{};
  TensorView<float, 2> const view(values.data(), {2, 3}, {1, 2});
  auto const again = view_of(view);
  CHECK(again.data() == values.data());
  CHECK(again.strides() == view.strides());
}
