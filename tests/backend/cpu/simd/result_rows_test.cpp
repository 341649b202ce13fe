// Rows of results: rounding, and products with dout, for each element type and instruction set.

#include <annulus/backend/cpu/cpu.hpp>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"

using annulus::Accumulator;
using annulus::Index;
using annulus::cpu::detail::kernels;

TEMPLATE_TEST_CASE("rows of results have the bits of a cast of each element", "[cpu]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  using A = Accumulator<TestType>;
  using Limits = std::numeric_limits<A>;
  std::vector<A> from{A(0), -A(0), Limits::infinity(), -Limits::infinity(), Limits::max(), Limits::lowest(), A(65520)};
  // Ties of bfloat16 and their neighbours, with even and odd last bits.
  for (std::uint32_t bits = 0x3f7e7fff; bits <= 0x3f838001; bits += bits % 0x8000 == 1 ? 0x7ffe : 1)
    from.push_back(static_cast<A>(std::bit_cast<float>(bits)));
  for (A x = A(1e-3); x < A(1e5); x *= A(1.37)) from.insert(from.end(), {x, -x});
  auto const count = static_cast<Index>(from.size());
  for (A scale : {A(1), A(0.37)}) {
    std::vector<TestType> seen(from.size() + 1, TestType(7));
    kernels<TestType>().scale_row(from.data(), scale, seen.data(), count);
    bool equal = true;
    for (std::size_t d = 0; d < from.size(); ++d) {
      auto const exact = static_cast<TestType>(scale * from[d]);
      equal = equal && seen[d] == exact && std::signbit(static_cast<A>(seen[d])) == std::signbit(static_cast<A>(exact));
    }
    CHECK(equal);
    CHECK(seen.back() == TestType(7));
  }
  std::vector<A> const nan(33, Limits::quiet_NaN());
  std::vector<TestType> seen(nan.size());
  kernels<TestType>().scale_row(nan.data(), A(1), seen.data(), 33);
  for (TestType x : seen) CHECK(std::isnan(static_cast<A>(x)));
}

TEMPLATE_TEST_CASE("products of rows of output and dout leave out outputs of 0", "[cpu]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  using A = Accumulator<TestType>;
  for (Index count : {0, 1, 7, 16, 33, 100}) {
    std::vector<TestType> output, dout;
    A exact(0);
    for (Index d = 0; d < count; ++d) {
      bool const vanishes = d % 5 == 2;
      output.push_back(vanishes ? TestType(d % 2 == 0 ? 0.0f : -0.0f) : TestType(static_cast<float>(d % 7 - 3)));
      dout.push_back(vanishes ? std::numeric_limits<TestType>::quiet_NaN() : TestType(static_cast<float>(d % 3 - 1)));
      if (output.back() != TestType(0)) exact += static_cast<A>(output.back()) * static_cast<A>(dout.back());
    }
    // Small integers: the sum is exact in any order.
    CHECK(kernels<TestType>().row_product(output.data(), dout.data(), count) == exact);
  }
  TestType const one(1), nan = std::numeric_limits<TestType>::quiet_NaN();
  CHECK(std::isnan(kernels<TestType>().row_product(&one, &nan, 1)));
}
