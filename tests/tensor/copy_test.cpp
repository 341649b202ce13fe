#include "annulus/tensor/view.hpp"

#include <Eigen/Core>
#include <array>
#include <numeric>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

TEST_CASE("for_each_element visits each index once, for any strides", "[tensor]") {
  std::vector<int> first(24), second(24);
  std::iota(second.begin(), second.end(), 0);
  TensorView<int, 3> const rows(first.data(), {2, 3, 4});
  TensorView<int, 3> const columns(second.data(), {2, 3, 4}, {1, 2, 6});
  int visits = 0;
  detail::for_each_element(rows, columns, [&](int& a, int const& b) {
    a += b;
    ++visits;
  });
  CHECK(visits == 24);
  for (Index i = 0; i < 2; ++i)
    for (Index j = 0; j < 3; ++j)
      for (Index k = 0; k < 4; ++k) CHECK(rows(i, j, k) == i + 2 * j + 6 * k);
}

TEST_CASE("copy_elements reads repeated and reversed elements", "[tensor]") {
  std::array<float, 3> const source{1, 2, 3};
  std::array<float, 6> target{};
  detail::copy_elements(TensorView<float const, 2>(source.data(), {2, 3}, {0, 1}),
                        TensorView<float, 2>(target.data(), {2, 3}));
  CHECK(target == std::array<float, 6>{1, 2, 3, 1, 2, 3});
  detail::copy_elements(TensorView<float const, 2>(source.data() + 2, {1, 3}, {7, -1}),
                        TensorView<float, 2>(target.data(), {1, 3}));
  CHECK(target == std::array<float, 6>{3, 2, 1, 1, 2, 3});
}

TEST_CASE("copy_elements writes a slice and leaves other elements unchanged", "[tensor]") {
  std::array<int, 12> target{};
  std::array<int, 4> const source{1, 2, 3, 4};
  TensorView<int, 2> const whole(target.data(), {3, 4});
  detail::copy_elements(TensorView<int const, 2>(source.data(), {2, 2}), whole.slice(0, 1, 2).slice(1, 1, 2));
  CHECK(target == std::array<int, 12>{0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0});
}

TEST_CASE("copy_elements converts and rounds once", "[tensor]") {
  std::array<double, 2> const source{1.0 + 1.0 / 512, 0.1};
  std::array<Eigen::bfloat16, 2> narrow{};
  detail::copy_elements(TensorView<double const, 1>(source.data(), {2}),
                        TensorView<Eigen::bfloat16, 1>(narrow.data(), {2}));
  CHECK(static_cast<float>(narrow[0]) == 1.0f);
  CHECK(static_cast<float>(narrow[1]) == static_cast<float>(Eigen::bfloat16(0.1f)));
  std::array<float, 2> wide{};
  detail::copy_elements(TensorView<Eigen::bfloat16 const, 1>(narrow.data(), {2}),
                        TensorView<float, 1>(wide.data(), {2}));
  CHECK(wide[1] == static_cast<float>(narrow[1]));
}

TEST_CASE("no element is accessed if an axis is empty", "[tensor]") {
  auto const never = [](int&, int const&) { FAIL("there is no element"); };
  detail::for_each_element(TensorView<int, 3>(nullptr, {0, 3, 2}), TensorView<int const, 3>(nullptr, {0, 3, 2}), never);
  detail::for_each_element(TensorView<int, 3>(nullptr, {3, 2, 0}), TensorView<int const, 3>(nullptr, {3, 2, 0}), never);
  SUCCEED("no element was visited");
}

TEST_CASE("copies of single elements and of tensors with one axis", "[tensor]") {
  int a = 0;
  int const b = 7;
  detail::copy_elements(TensorView<int const, 4>(&b, {1, 1, 1, 1}), TensorView<int, 4>(&a, {1, 1, 1, 1}));
  CHECK(a == 7);
}
