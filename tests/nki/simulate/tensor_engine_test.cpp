// Simulator: matrix products and transposes of TensorE.

#include <cmath>

#include "nki/simulate/one_program.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using nki::Memory;

namespace {

/// Extents of a matrix product [m, k] x [k, n].
struct Extents {
  Index k, m, n;
};

/// dst[m, n] of the exact product, and the sum of its terms' absolute values.
struct Exact {
  double value = 0, size = 0;
};
Exact exact(SingleCoreProgram& one, nki::Access const& a, nki::Access const& b, Index depth, Index m, Index n,
            double (*narrow)(double)) {
  Exact sum;
  for (Index k = 0; k < depth; ++k) {
    double const x = narrow(one.inputs["a_in"][place_of(one.builder.program(), a, k, m)]);
    double const y = narrow(one.inputs["b_in"][place_of(one.builder.program(), b, k, n)]);
    sum.value += x * y;
    sum.size += std::abs(x * y);
  }
  return sum;
}

}  // namespace

TEST_CASE("nc_matmul at full and at odd extents, overwriting and accumulating") {
  auto const [k, m, n] = GENERATE(Extents{128, 128, 512}, Extents{1, 1, 1}, Extents{7, 13, 33}, Extents{128, 8, 31},
                                  Extents{3, 128, 65}, Extents{64, 9, 1});
  auto const type = GENERATE(f32, bf16);
  INFO(k << " x " << m << " x " << n);
  SingleCoreProgram one;
  auto const a = one.load("a", k, m, random_values(k * m, 31), type),
             b = one.load("b", k, n, random_values(k * n, 32), type);
  auto const dst = one.builder.tile("dst", Memory::psum, m, n, f32);
  one.builder.emit(nki::MatMul{dst.whole(), a.whole(), b.whole()});
  one.store("once", dst);
  one.builder.emit(nki::MatMul{dst.whole(), a.whole(), b.whole(), true});
  one.store("twice", dst);
  one.run();
  auto const narrow = type == f32 ? [](double x) { return x; } : [](double x) {
    return static_cast<double>(static_cast<float>(Eigen::bfloat16(static_cast<float>(x))));
  };
  bool once = true, twice = true;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      Exact const sum = exact(one, a.whole(), b.whole(), k, i, j, narrow);
      auto const at = static_cast<std::size_t>(i * n + j);
      double const bound = static_cast<double>(k) * rounding_of(f32, sum.size);
      once = once && std::abs(one.result("once")[at] - sum.value) <= bound;
      twice = twice && std::abs(one.result("twice")[at] - 2 * sum.value) <= 2 * bound + rounding_of(f32, 2 * sum.size);
    }
  CHECK(once);
  CHECK(twice);
}

TEST_CASE("nc_matmul on strided operands, into a part of a tile, and into a narrower type") {
  auto const type = GENERATE(f32, bf16);
  SingleCoreProgram one(type == f32 ? nki::Target::trn2 : nki::Target::trn3);
  auto const a = one.load("a", 128, 40, random_values(128 * 40, 33)),
             b = one.load("b", 128, 40, random_values(128 * 40, 34));
  auto const dst = one.load("dst", 64, 50, random_values(64 * 50, 35), type, Memory::psum);
  one.store("before", dst);
  auto const stationary = a.pattern(64, 20, 1, {{3, 9}}), moving = b.pattern(32, 20, 2, {{1, 4}, {5, 3}});
  auto const whole = dst.part(32, 9, 5, 12), strided = dst.pattern(0, 9, 1, {{4, 12}});
  one.builder.emit(nki::MatMul{whole, stationary, moving});
  one.builder.emit(nki::MatMul{strided, stationary, moving});
  one.builder.emit(nki::MatMul{strided, stationary, moving, true});
  one.store("dst", dst);
  one.run();
  std::vector<float> expected = one.result("before");
  for (Index i = 0; i < 9; ++i)
    for (Index j = 0; j < 12; ++j) {
      Exact const sum = exact(one, stationary, moving, 20, i, j, [](double x) { return x; });
      double const bound = 20 * rounding_of(f32, sum.size) + rounding_of(type, sum.size);
      for (auto const& [access, factor] : {std::pair{whole, 1}, {strided, 2}}) {
        std::size_t const at = place_of(one.builder.program(), access, i, j);
        CHECK(std::abs(one.result("dst")[at] - factor * sum.value) <= 2 * factor * bound);
        expected[at] = one.result("dst")[at];
      }
    }
  CHECK(all_held(type, one.result("dst")));
  CHECK(one.result("dst") == expected);
}

TEST_CASE("An element of a product does not depend on the shapes of the operands") {
  SingleCoreProgram one;
  std::vector<float> const x = random_values(128, 36), y = random_values(128, 37);
  std::vector<float> a(128 * 128), b(128 * 512);
  for (std::size_t k = 0; k < 128; ++k) {
    std::fill(&a[k * 128], &a[k * 128] + 128, x[k]);
    std::fill(&b[k * 512], &b[k * 512] + 512, y[k]);
  }
  auto const left = one.load("a", 128, 128, a), right = one.load("b", 128, 512, b);
  auto const large = one.builder.tile("large", Memory::psum, 128, 512, f32),
             small = one.builder.tile("small", Memory::psum, 3, 5, f32);
  one.builder.emit(nki::MatMul{large.whole(), left.whole(), right.whole()});
  one.builder.emit(nki::MatMul{small.whole(), left.columns(17, 3), right.columns(100, 5)});
  one.store("large", large);
  one.store("small", small);
  one.run();
  CHECK(one.result("large") == std::vector<float>(128 * 512, one.result("large")[0]));
  CHECK(one.result("small") == std::vector<float>(15, one.result("large")[0]));
}

TEST_CASE("nc_transpose of whole and strided tiles") {
  SingleCoreProgram one;
  auto const x = one.load("x", 128, 40, random_values(128 * 40, 38), bf16),
             w = one.load("w", 128, 40, random_values(128 * 40, 39));
  auto const y = one.builder.tile("y", Memory::psum, 40, 128, bf16),
             z = one.builder.tile("z", Memory::psum, 64, 40, f32);
  one.store("x", x);
  one.builder.emit(nki::Memset{z.whole(), 3.0f});
  one.builder.emit(nki::Transpose{y.whole(), x.whole()});
  auto const part = w.pattern(32, 7, 1, {{20, 2}, {3, 5}}), turned = z.pattern(32, 10, 2, {{5, 7}});
  one.builder.emit(nki::Transpose{turned, part});
  one.store("y", y);
  one.store("z", z);
  one.run();
  for (std::size_t p = 0; p < 128; ++p)
    for (std::size_t i = 0; i < 40; ++i) REQUIRE(one.result("y")[i * 128 + p] == one.result("x")[p * 40 + i]);
  std::vector<float> expected(64 * 40, 3.0f);
  for (Index p = 0; p < 7; ++p)
    for (Index i = 0; i < 10; ++i)
      expected[place_of(one.builder.program(), turned, i, p)] =
          one.inputs["w_in"][place_of(one.builder.program(), part, p, i)];
  CHECK(one.result("z") == expected);
}
