// Simulator: instructions that reduce over the elements of a partition, and chains in the accumulator registers.

#include <algorithm>
#include <cmath>
#include <limits>

#include "nki/simulate/one_program.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::nki::Function;
using annulus::nki::Operator;
using annulus::nki::ReduceCommand;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

double reduced(Operator op, std::vector<double> const& values) {
  double result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) switch (op) {
      case Operator::add:
        result += values[i];
        break;
      case Operator::subtract:
        result -= values[i];
        break;
      case Operator::multiply:
        result *= values[i];
        break;
      case Operator::maximum:
        result = std::max(result, values[i]);
        break;
      default:
        result = std::min(result, values[i]);
        break;
    }
  return result;
}

}  // namespace

TEST_CASE("tensor_reduce over the last axis of strided data, at lengths around the vector width") {
  auto const op = GENERATE(Operator::add, Operator::subtract, Operator::multiply, Operator::maximum, Operator::minimum);
  auto const length = GENERATE(Index{1}, Index{2}, Index{15}, Index{16}, Index{17}, Index{40});
  bool const negate = GENERATE(false, true);
  INFO(nki::name_of(op) << " over " << length);
  SingleCoreProgram one;
  Index const row_length = 130;
  auto const x = one.load("x", 3, row_length, random_values(3 * row_length, 21, 0.5f, 1.5f));
  auto const dst = one.builder.tile("dst", nki::Memory::sbuf, 3, 3, f32);
  auto const data = x.pattern(0, 3, 2, {{4, 3}, {3, length}});
  one.builder.emit(nki::TensorReduce{dst.whole(), op, data, 2, negate});
  one.store("dst", dst);
  one.run();
  for (Index p = 0; p < 3; ++p)
    for (Index j = 0; j < 3; ++j) {
      std::vector<double> values;
      double size = 0, product = 1;
      for (Index i = 0; i < length; ++i) {
        values.push_back(one.inputs["x_in"][place_of(one.builder.program(), data, p, j * length + i)]);
        size += values.back();
        product *= values.back();
      }
      double const exact = reduced(op, values) * (negate ? -1 : 1);
      double const largest = op == Operator::multiply ? product : size;
      CHECK(std::abs(one.result("dst")[static_cast<std::size_t>(p * 3 + j)] - exact) <=
            static_cast<double>(length) * rounding_of(f32, largest));
    }
}

TEST_CASE("tensor_reduce may write into its data") {
  SingleCoreProgram one;
  auto const x = one.load("x", 2, 4, {1, 2, 3, 4, 5, 6, 7, 8});
  one.builder.emit(nki::TensorReduce{x.columns(1, 2), Operator::add, x.pattern(0, 2, 0, {{2, 2}, {1, 2}}), 2});
  one.store("x", x);
  one.run();
  CHECK(one.result("x") == std::vector<float>{1, 3, 7, 4, 5, 11, 15, 8});
}

TEST_CASE("range_select keeps the elements between its bounds") {
  std::vector<float> const bounds{-3, 0, 100, 104, 104.5f, 119, 120, 1e9f, -infinity, infinity, std::nanf("")};
  auto const n = static_cast<Index>(bounds.size());
  for (Index shift = 0; shift < n; ++shift) {
    std::vector<float> others = bounds;
    std::rotate(others.begin(), others.begin() + shift, others.end());
    SingleCoreProgram one;
    auto const x = one.load("x", n, 20, random_values(n * 20, 23)), low = one.load("low", n, 1, bounds),
               high = one.load("high", n, 1, others);
    auto const dst = one.builder.tile("dst", nki::Memory::sbuf, n, 20, f32),
               top = one.builder.tile("top", nki::Memory::sbuf, n, 1, f32);
    one.builder.emit(nki::RangeSelect{.dst = dst.whole(),
                                      .on_true_tile = x.whole(),
                                      .bound0 = low.whole(),
                                      .bound1 = high.whole(),
                                      .reduce_res = top.whole(),
                                      .range_start = 100});
    one.store("dst", dst);
    one.store("top", top);
    one.run();
    std::vector<float> expected, tops;
    for (std::size_t p = 0; p < bounds.size(); ++p) {
      float largest = -infinity;
      for (std::size_t i = 0; i < 20; ++i) {
        double const index = 100 + static_cast<double>(i);
        bool const kept = index >= bounds[p] && index < others[p];
        expected.push_back(kept ? one.inputs["x_in"][p * 20 + i] : nki::lowest_float);
        largest = std::max(largest, expected.back());
      }
      tops.push_back(largest);
    }
    CHECK(one.result("dst") == expected);
    CHECK(one.result("top") == tops);
  }
}

TEST_CASE("range_select into bfloat16: the fill becomes -inf, the maximum does not; chains span several instructions") {
  SingleCoreProgram one;
  auto const x = one.load("x", 2, 4, {1, 2, 3, 4, 5, 6, 7, 8}), low = one.load("low", 2, 1, {1, 0}),
             high = one.load("high", 2, 1, {2, 0});
  auto const dst = one.builder.tile("dst", nki::Memory::sbuf, 2, 4, bf16),
             first = one.builder.tile("first", nki::Memory::sbuf, 2, 1, f32),
             second = one.builder.tile("second", nki::Memory::sbuf, 2, 1, f32);
  auto const select = [&](Index from, ReduceCommand command, nki::TileHandle const& result) {
    one.builder.emit(nki::RangeSelect{.dst = dst.columns(from, 2),
                                      .on_true_tile = x.columns(from, 2),
                                      .bound0 = low.whole(),
                                      .bound1 = high.whole(),
                                      .reduce_cmd = command,
                                      .reduce_res = result.whole(),
                                      .range_start = from});
  };
  select(2, ReduceCommand::reset_reduce, first);
  select(0, ReduceCommand::reduce, second);
  one.store("dst", dst);
  one.store("first", first);
  one.store("second", second);
  one.run();
  CHECK(one.result("dst") ==
        std::vector<float>{-infinity, 2, -infinity, -infinity, -infinity, -infinity, -infinity, -infinity});
  CHECK(one.result("first") == std::vector<float>{nki::lowest_float, nki::lowest_float});
  CHECK(one.result("second") == std::vector<float>{2, nki::lowest_float});
}

TEST_CASE("ScalarE sums float32 values, across instructions, until a reset") {
  SingleCoreProgram one;
  std::vector<float> const values = random_values(3 * 50, 24, -3, 1);
  auto const x = one.load("x", 3, 50, values);
  auto const p = one.builder.tile("p", nki::Memory::sbuf, 3, 50, bf16),
             sums = one.builder.tile("sums", nki::Memory::sbuf, 3, 5, f32);
  auto const sum = [&](Index begin, Index columns, ReduceCommand command, Index column) {
    one.builder.emit(nki::Activation{.dst = p.columns(begin, columns),
                                     .op = Function::exp,
                                     .data = x.columns(begin, columns),
                                     .reduce_op = Operator::add,
                                     .reduce_res = sums.column(column),
                                     .reduce_cmd = command});
  };
  sum(0, 17, ReduceCommand::reset_reduce, 0);
  sum(17, 33, ReduceCommand::reduce, 1);
  sum(0, 50, ReduceCommand::idle, 2);
  sum(0, 1, ReduceCommand::reset, 3);
  sum(5, 3, ReduceCommand::reduce, 4);
  one.store("sums", sums);
  one.run();
  for (std::size_t row = 0; row < 3; ++row) {
    auto const exact = [&](std::size_t begin, std::size_t end) {
      double total = 0;
      for (std::size_t i = begin; i < end; ++i) total += std::exp(static_cast<double>(values[row * 50 + i]));
      return total;
    };
    double const expected[] = {exact(0, 17), exact(0, 50), exact(0, 50), 0, exact(5, 8)};
    for (std::size_t j = 0; j < 5; ++j)
      CHECK(std::abs(one.result("sums")[row * 5 + j] - expected[j]) <= 60 * rounding_of(f32, 3) * 50);
  }
}
