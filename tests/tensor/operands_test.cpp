#include "annulus/tensor/operands.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "annulus/tensor/eigen.hpp"
#include "support/catch.hpp"

using namespace annulus;

namespace {

template <class T, int N>
using Rows = Eigen::Tensor<T, N, Eigen::RowMajor>;

template <class Tensor, class... Extents>
Tensor zeros(Extents... extents) {
  Tensor tensor(extents...);
  tensor.setZero();
  return tensor;
}

using Bias = OptionalView<float, 4, HostMemory>;
using Sinks = OptionalSinks<float, HostMemory>;

}  // namespace

// The element type and the number of axes are part of the operand's type.
static_assert(std::is_convertible_v<Rows<float, 4>&, Bias> &&
              std::is_convertible_v<Eigen::TensorMap<Rows<float const, 4>>, Bias>);
static_assert(std::is_convertible_v<TensorView<float, 4>, Bias> && std::is_convertible_v<std::nullopt_t, Bias>);
static_assert(!std::is_convertible_v<Rows<double, 4>&, Bias> && !std::is_convertible_v<Rows<float, 3>&, Bias>);
static_assert(!std::is_convertible_v<int, Bias> && !std::is_convertible_v<float*, Bias>);
static_assert(std::is_convertible_v<Rows<float, 1>&, Sinks> && std::is_convertible_v<Rows<float, 2>&, Sinks>);
static_assert(!std::is_convertible_v<Rows<float, 3>&, Sinks> && !std::is_convertible_v<Rows<double, 1>&, Sinks>);
// Sink logits have the type of lse: double only for double.
static_assert(std::is_same_v<decltype(Operands<Eigen::bfloat16>{}.sinks), OptionalSinks<float, HostMemory>>);
static_assert(std::is_same_v<decltype(Operands<double>{}.sinks), OptionalSinks<double, HostMemory>>);

TEST_CASE("operands that are not given are absent", "[tensor]") {
  Operands<float> const none;
  CHECK_FALSE(none.bias);
  CHECK_FALSE(none.mask);
  CHECK_FALSE(none.query_documents);
  CHECK_FALSE(none.key_documents);
  CHECK_FALSE(none.sinks);
  CHECK_FALSE(none.bias_gradient);
}

TEST_CASE("operands refer to the caller's elements", "[tensor]") {
  auto const bias = zeros<Rows<float, 4>>(1, 2, 3, 4);
  auto const mask = zeros<Eigen::Tensor<bool, 4>>(2, 1, 3, 4);
  auto const document_ids = zeros<Rows<std::int32_t, 2>>(2, 3);
  Operands<float> const operands{
      .bias = bias, .mask = mask, .query_documents = document_ids, .key_documents = document_ids};
  CHECK(operands.bias->data() == bias.data());
  CHECK(operands.mask->data() == mask.data());
  CHECK(operands.mask->strides() == std::array<Index, 4>{1, 2, 2, 6});
  CHECK(operands.query_documents->extents() == std::array<Index, 2>{2, 3});
}

TEST_CASE("an operand without elements counts as given", "[tensor]") {
  auto const bias = zeros<Rows<float, 4>>(1, 1, 0, 5);
  Operands<float> const operands{.bias = bias};
  CHECK(operands.bias);
  CHECK(operands.bias->size() == 0);
}

TEST_CASE("an operand may be in another axis order", "[tensor]") {
  auto const stored = zeros<Rows<float, 4>>(1, 2, 3, 4);
  Bias const bias = bhsd(stored);
  CHECK(bias->extents() == std::array<Index, 4>{1, 3, 2, 4});
}

TEST_CASE("sink logits with one axis become a column", "[tensor]") {
  Rows<float, 1> one(3);
  one.setValues({1, 2, 3});
  Sinks const column = one;
  CHECK(column->extents() == std::array<Index, 2>{3, 1});
  for (Index h = 0; h < 3; ++h) CHECK((*column)(h, 0) == one(h));

  auto const two = zeros<Rows<float, 2>>(3, 2);
  Sinks const table = two;
  CHECK(table->extents() == std::array<Index, 2>{3, 2});
  CHECK_FALSE(Sinks());
}

TEST_CASE("broadcast repeats axes of extent one", "[tensor]") {
  std::array<float, 6> const values{0, 1, 2, 3, 4, 5};
  TensorView<float const, 4> const view(values.data(), {1, 2, 1, 3});
  auto const wide = broadcast(view, {4, 2, 5, 3});
  CHECK(wide.extents() == std::array<Index, 4>{4, 2, 5, 3});
  for (Index b = 0; b < 4; ++b)
    for (Index h = 0; h < 2; ++h)
      for (Index q = 0; q < 5; ++q)
        for (Index k = 0; k < 3; ++k) CHECK(wide(b, h, q, k) == static_cast<float>(h * 3 + k));
}

TEST_CASE("broadcast to the same extents changes nothing", "[tensor]") {
  TensorView<float const, 4> const view(nullptr, {1, 2, 1, 3});
  CHECK(broadcast(view, {1, 2, 1, 3}).strides() == view.strides());
}
