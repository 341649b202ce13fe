// Simulator: elementwise VectorE and ScalarE against formulas in double, on strided, broadcast and shifted patterns.

#include <cmath>
#include <functional>
#include <limits>

#include "nki/simulate/one_program.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::nki::Access;
using annulus::nki::Engine;
using annulus::nki::Function;
using annulus::nki::Operator;

namespace {

constexpr Index rows = 5, count = 12, width = 40;

/// Layout of the 12 elements of a row in a tile of 40.
struct Layout {
  char const* name;
  Index first_partition, offset;
  std::vector<nki::Axis> free;
};
std::vector<Layout> const writable{
    {"at the start", 0, 0, {{1, 12}}},  {"shifted", 32, 3, {{1, 12}}},
    {"every third", 0, 1, {{3, 12}}},   {"two axes", 64, 2, {{7, 3}, {1, 4}}},
    {"turned", 0, 0, {{1, 3}, {5, 4}}}, {"four axes", 0, 4, {{20, 2}, {9, 1}, {1, 2}, {3, 3}}}};
std::vector<Layout> const readable = [] {
  std::vector<Layout> all = writable;
  all.push_back({"one element for all", 0, 7, {{0, 12}}});
  all.push_back({"each four times", 32, 5, {{1, 3}, {0, 4}}});
  return all;
}();

Access access_of(nki::TileHandle const& tile, Layout const& layout) {
  Access access(tile.buffer, nki::Axis{width, rows}, layout.free);
  access.start_partition = layout.first_partition;
  access.offset = layout.offset;
  return access;
}

/// Runs write(dst, a, b) on every pair of layouts, compares dst with formula(a, b) element by element, and checks that
/// elements outside dst are unchanged.
void check_all_layouts(nki::ElementType type, double largest,
                       std::function<nki::Instruction(Access, Access, Access)> const& write,
                       std::function<double(double, double)> const& formula, float lowest = -2, float highest = 2) {
  for (std::size_t d = 0; d < writable.size(); ++d)
    for (std::size_t s = 0; s < readable.size(); ++s) {
      Layout const &to = writable[d], &from = readable[s], &other = readable[(s + d + 3) % readable.size()];
      INFO("dst " << to.name << ", first source " << from.name << ", second source " << other.name);
      SingleCoreProgram one;
      auto const a = one.load("a", 128, width, random_values(128 * width, 1, lowest, highest));
      auto const b = one.load("b", 128, width, random_values(128 * width, 2, lowest, highest));
      auto const dst = one.load("dst", 128, width, random_values(128 * width, 3), type);
      Access const to_dst = access_of(dst, to), from_a = access_of(a, from), from_b = access_of(b, other);
      one.store("before", dst);
      one.builder.emit(write(to_dst, from_a, from_b));
      one.store("dst", dst);
      one.run();
      nki::Program const& program = one.builder.program();
      std::vector<float> expected = one.result("before");
      std::vector<float> const& got = one.result("dst");
      bool close = true;
      for (Index p = 0; p < rows; ++p)
        for (Index i = 0; i < count; ++i) {
          double const x = one.inputs["a_in"][place_of(program, from_a, p, i)];
          double const y = one.inputs["b_in"][place_of(program, from_b, p, i)];
          std::size_t const at = place_of(program, to_dst, p, i);
          double const exact = formula(x, y);
          close = close && std::abs(got[at] - exact) <= 4 * rounding_of(f32, largest) + rounding_of(type, exact);
          expected[at] = got[at];
        }
      CHECK(close);
      CHECK(all_held(type, got));
      CHECK(got == expected);
    }
}

double value_of(Operator op, double a, double b) {
  switch (op) {
    case Operator::add:
      return a + b;
    case Operator::subtract:
      return a - b;
    case Operator::multiply:
      return a * b;
    case Operator::maximum:
      return std::fmax(a, b);
    case Operator::minimum:
      return std::fmin(a, b);
    case Operator::equal:
      return a == b;
    case Operator::greater:
      return a > b;
    case Operator::greater_equal:
      return a >= b;
    case Operator::less:
      return a < b;
  }
  return std::nan("");
}

constexpr Operator operators[] = {Operator::add,     Operator::subtract,      Operator::multiply,
                                  Operator::maximum, Operator::minimum,       Operator::equal,
                                  Operator::greater, Operator::greater_equal, Operator::less};

}  // namespace

TEST_CASE("tensor_tensor on every pair of layouts") {
  auto const type = GENERATE(f32, bf16, f16);
  check_all_layouts(
      type, 4,
      [](Access dst, Access a, Access b) {
        return nki::TensorTensor{dst, a, b, Operator::multiply};
      },
      [](double a, double b) { return a * b; });
}

TEST_CASE("Every operator, with a tensor, a number or a column") {
  std::vector<float> const values{-1.5f, 0.0f, 2.0f, 2.0f, -0.25f, 3.0f}, others{2.0f, 0.0f, 2.0f, -1.0f, -0.25f, 0.0f};
  for (Operator const op : operators) {
    INFO(nki::name_of(op));
    SingleCoreProgram one;
    auto const a = one.load("a", 2, 3, values), b = one.load("b", 2, 3, others),
               column = one.load("column", 2, 1, {0.0f, 2.0f});
    auto const make = [&](char const* name) { return one.builder.tile(name, nki::Memory::sbuf, 2, 3, f32); };
    auto const tensor = make("tensor"), number = make("number"), in_column = make("in_column"), both = make("both");
    one.builder.emit(nki::TensorTensor{tensor.whole(), a.whole(), b.whole(), op});
    one.builder.emit(nki::TensorScalar{.dst = number.whole(), .data = a.whole(), .op0 = op, .operand0 = 2.0f});
    one.builder.emit(
        nki::TensorScalar{.dst = in_column.whole(), .data = a.whole(), .op0 = op, .operand0 = column.whole()});
    one.builder.emit(nki::TensorScalar{.dst = both.whole(),
                                       .data = a.whole(),
                                       .op0 = Operator::add,
                                       .operand0 = column.whole(),
                                       .op1 = op,
                                       .operand1 = 0.5f});
    for (auto const& [name, tile] :
         {std::pair{"tensor", tensor}, {"number", number}, {"in_column", in_column}, {"both", both}})
      one.store(name, tile);
    one.run();
    for (std::size_t i = 0; i < 6; ++i) {
      double const x = values[i], of_row = i < 3 ? 0.0 : 2.0;
      CHECK(one.result("tensor")[i] == value_of(op, x, others[i]));
      CHECK(one.result("number")[i] == value_of(op, x, 2));
      CHECK(one.result("in_column")[i] == value_of(op, x, of_row));
      CHECK(one.result("both")[i] == value_of(op, x + of_row, 0.5));
    }
  }
}

TEST_CASE("maximum and minimum propagate NaN") {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  SingleCoreProgram one;
  auto const a = one.load("a", 1, 40, std::vector<float>(40, 1.0f)),
             b = one.load("b", 1, 40, std::vector<float>(40, nan));
  auto const dst = one.builder.tile("dst", nki::Memory::sbuf, 1, 4, f32);
  one.builder.emit(nki::TensorTensor{dst.column(0), a.column(0), b.column(0), Operator::maximum});
  one.builder.emit(nki::TensorTensor{dst.column(1), b.column(0), a.column(0), Operator::minimum});
  one.builder.emit(nki::TensorCopy{b.columns(0, 39), a.columns(0, 39)});
  one.builder.emit(nki::TensorReduce{dst.column(2), Operator::maximum, b.whole()});
  one.builder.emit(nki::TensorReduce{dst.column(3), Operator::minimum, b.whole()});
  one.store("dst", dst);
  one.run();
  for (float const value : one.result("dst")) CHECK(std::isnan(value));
}

TEST_CASE("scalar_tensor_tensor on every pair of layouts") {
  check_all_layouts(
      bf16, 12,
      [&](Access dst, Access a, Access b) {
        return nki::ScalarTensorTensor{.dst = dst,
                                       .data = a,
                                       .op0 = Operator::subtract,
                                       .operand0 = 3.0f,
                                       .op1 = Operator::subtract,
                                       .operand1 = b};
      },
      [&](double a, double b) { return a - 3 - b; });
}

TEST_CASE("tensor_copy and memset on every layout") {
  check_all_layouts(
      f16, 2,
      [](Access dst, Access a, Access) {
        return nki::TensorCopy{dst, a};
      },
      [](double a, double) { return a; });
  check_all_layouts(
      bf16, 2,
      [](Access dst, Access, Access) {
        return nki::Memset{dst, 1.75f};
      },
      [](double, double) { return 1.75; });
}

TEST_CASE("Every function of ScalarE, scaled and shifted, on every layout") {
  struct Case {
    Function function;
    double (*exact)(double);
    float lowest, highest;
    double largest;  ///< of argument and result
  };
  Case const tested = GENERATE(Case{Function::copy, [](double x) { return x; }, -2, 2, 2},
                               Case{Function::exp, [](double x) { return std::exp(x); }, -9, 2, 8},
                               Case{Function::log, [](double x) { return std::log(x); }, 1, 50, 4},
                               Case{Function::tanh, [](double x) { return std::tanh(x); }, -4, 4, 4});
  INFO(nki::name_of(tested.function));
  check_all_layouts(
      f32, tested.largest,
      [&](Access dst, Access a, Access) {
        return nki::Activation{.dst = dst, .op = tested.function, .data = a, .bias = 0.25f, .scale = 0.5f};
      },
      [&](double a, double) { return tested.exact(0.5 * a + 0.25); }, tested.lowest, tested.highest);
}

TEST_CASE("exp over its whole range") {
  std::vector<float> values{-std::numeric_limits<float>::infinity(),
                            nki::lowest_float,
                            -1e4f,
                            -88.0f,
                            -87.0f,
                            0.0f,
                            -0.0f,
                            88.5f,
                            88.72f,
                            89.0f,
                            nki::lowest_float * -1,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 500; ++i) values.push_back(-87.0f + static_cast<float>(i) * 0.35f);
  auto const n = static_cast<Index>(values.size());
  SingleCoreProgram one;
  auto const x = one.load("x", 1, n, values);
  one.builder.emit(nki::Activation{.dst = x.whole(), .op = Function::exp, .data = x.whole()});
  one.store("y", x);
  one.run();
  for (std::size_t i = 0; i < values.size(); ++i) {
    INFO(values[i]);
    float const got = one.result("y")[i];
    double const exact = std::exp(static_cast<double>(values[i]));
    if (std::isnan(exact))
      CHECK(std::isnan(got));
    else if (exact > std::numeric_limits<float>::max())
      CHECK(got == std::numeric_limits<float>::infinity());
    else
      CHECK(std::abs(got - exact) <= 4 * rounding_of(f32, exact) + std::numeric_limits<float>::min());
  }
  CHECK(one.result("y")[1] == 0.0f);
  CHECK(one.result("y")[2] == 0.0f);
}

TEST_CASE("The result for a value does not depend on its position") {
  auto const function = GENERATE(Function::exp, Function::log, Function::tanh);
  Index const n = 77;
  SingleCoreProgram one;
  auto const x = one.load("x", 1, n, std::vector<float>(static_cast<std::size_t>(n), 1.2345f));
  one.builder.emit(nki::Activation{.dst = x.whole(), .op = function, .data = x.whole()});
  one.store("y", x);
  one.run();
  for (float const value : one.result("y")) CHECK(value == one.result("y")[0]);
}

TEST_CASE("Scale and bias may be columns, also of another type") {
  SingleCoreProgram one;
  auto const x = one.load("x", 3, 4, random_values(12, 5)), scale = one.load("scale", 3, 1, {1, -2, 0.5f}),
             bias = one.load("bias", 3, 1, {0.5f, 0.25f, -1}, bf16);
  auto const y = one.builder.tile("y", nki::Memory::sbuf, 3, 4, f32);
  one.builder.emit(nki::Activation{.dst = y.whole(), .data = x.whole(), .bias = bias.whole(), .scale = scale.whole()});
  one.store("y", y);
  one.run();
  double const scales[] = {1, -2, 0.5}, biases[] = {0.5, 0.25, -1};
  for (std::size_t i = 0; i < 12; ++i)
    CHECK(std::abs(one.result("y")[i] - (one.inputs["x_in"][i] * scales[i / 4] + biases[i / 4])) <=
          2 * rounding_of(f32, 4));
}

TEST_CASE("ScalarE refuses values outside the domain of the logarithm") {
  using Catch::Matchers::ContainsSubstring;
  struct Case {
    float inside, outside;
  };
  Case const tested = GENERATE(Case{0x1p-64f, 0.0f}, Case{0x1p64f, 0x1.1p64f}, Case{1, -1},
                               Case{1, std::numeric_limits<float>::quiet_NaN()});
  auto const run = [&](float value) {
    SingleCoreProgram one;
    auto const x = one.load("x", 1, 3, {1, value, 1});
    one.builder.emit(nki::Activation{.dst = x.whole(), .op = Function::log, .data = x.whole()});
    one.store("x", x);
    one.run();
  };
  run(tested.inside);
  CHECK_THROWS_WITH(run(tested.outside), ContainsSubstring("log of ") && ContainsSubstring("ScalarE"));
}

TEST_CASE("reciprocal") {
  check_all_layouts(
      f32, 2,
      [](Access dst, Access a, Access) {
        return nki::Reciprocal{dst, a};
      },
      [](double a, double) { return 1 / a; }, 1, 3);
}

TEST_CASE("dst may overlap an operand, with equal or shifted elements") {
  SingleCoreProgram one;
  auto const load = [&](char const* name, unsigned seed) {
    return one.load(name, 96, width, random_values(96 * width, seed));
  };
  auto const x = load("x", 11), y = load("y", 12), copied = load("copied", 13), doubled = load("doubled", 14);
  one.builder.emit(nki::TensorTensor{x.whole(), x.whole(), x.whole(), Operator::multiply});
  one.builder.emit(nki::ScalarTensorTensor{
      .dst = y.whole(), .data = x.whole(), .operand0 = 2.0f, .op1 = Operator::subtract, .operand1 = y.whole()});
  one.builder.emit(nki::DmaCopy{copied.part(32, 64, 0, width), copied.part(0, 64, 0, width)});
  one.builder.emit(
      nki::TensorScalar{.dst = doubled.columns(1, width - 1), .data = doubled.columns(0, width - 1), .operand0 = 2.0f});
  for (auto const& [name, tile] : {std::pair{"x", x}, {"y", y}, {"copied", copied}, {"doubled", doubled}})
    one.store(name, tile);
  one.run();
  for (std::size_t p = 0; p < 96; ++p)
    for (std::size_t i = 0; i < 40; ++i) {
      std::size_t const at = p * 40 + i;
      float const square = one.inputs["x_in"][at] * one.inputs["x_in"][at];
      CHECK(one.result("x")[at] == square);
      CHECK(std::abs(one.result("y")[at] - (2 * square - one.inputs["y_in"][at])) <= 2 * rounding_of(f32, 8));
      CHECK(one.result("copied")[at] == one.inputs["copied_in"][(p < 32 ? p : p - 32) * 40 + i]);
      CHECK(one.result("doubled")[at] ==
            (i == 0 ? one.inputs["doubled_in"][at] : 2 * one.inputs["doubled_in"][at - 1]));
    }
}
