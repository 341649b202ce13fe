// Simulator: places of tiles, inputs and outputs, and refusals with the instruction.

#include <cmath>
#include <limits>

#include "nki/simulate/one_program.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::nki::Memory;
using annulus::nki::Operator;
using annulus::nki::Role;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("The error names the instruction") {
  SingleCoreProgram one;
  auto const x = one.load("x", 2, 2, {1, 2, 0, 4});
  one.builder.section("step", 3);
  one.builder.emit(nki::Activation{.dst = x.whole(), .op = nki::Function::log, .data = x.whole()});
  CHECK_THROWS_WITH(one.run(), ContainsSubstring("core 0, step 3, instruction 2, activation: log of 0"));
}

TEST_CASE("Older tiles of a buffer are kept until their place is reused") {
  SingleCoreProgram one;
  auto const tile = one.builder.declare("tile", Memory::sbuf, 2, 2, f32, 2);
  auto const kept = one.builder.tile("kept", Memory::sbuf, 2, 2, f32);
  auto const set = [&](float value) { one.builder.emit(nki::Memset{one.builder.allocate(tile).whole(), value}); };
  set(1);
  set(2);
  one.builder.emit(nki::TensorTensor{kept.whole(), tile.before(1).whole(), tile.whole(), Operator::subtract});
  one.store("kept", kept);
  one.run();
  CHECK(one.result("kept") == std::vector<float>(4, -1.0f));
}

TEST_CASE("Definedness is tracked per element, for every order of writes") {
  // Columns 0..3, 6..7, then 4: column 5 stays undefined until the end.
  SingleCoreProgram one;
  auto const tile = one.builder.tile("tile", Memory::sbuf, 96, 8, f32),
             copy = one.builder.tile("copy", Memory::sbuf, 96, 8, f32);
  auto const set = [&](Index begin, Index columns_set) {
    one.builder.emit(nki::Memset{tile.columns(begin, columns_set), 1.0f});
  };
  auto const fails = [&](Index begin, Index columns_read) {
    SingleCoreProgram tried = one;
    tried.builder.emit(nki::TensorCopy{copy.columns(begin, columns_read), tile.columns(begin, columns_read)});
    CHECK_THROWS_WITH(tried.run(), ContainsSubstring("never written"));
  };
  auto const passes = [&](Index begin, Index columns_read) {
    one.builder.emit(nki::TensorCopy{copy.columns(begin, columns_read), tile.columns(begin, columns_read)});
  };
  fails(0, 1);
  set(0, 2);
  set(2, 2);
  passes(0, 4);
  fails(3, 2);
  set(6, 2);
  passes(6, 2);
  fails(5, 3);
  set(4, 1);
  passes(0, 5);
  fails(0, 8);
  fails(5, 1);
  one.builder.emit(nki::Memset{tile.part(0, 64, 5, 1), 1.0f});
  fails(0, 8);
  one.builder.emit(nki::Memset{tile.part(64, 32, 5, 1), 1.0f});
  passes(0, 8);
  one.store("copy", copy);
  one.run();
  CHECK(one.result("copy") == std::vector<float>(96 * 8, 1.0f));
}

TEST_CASE("Tensors in HBM are undefined at first; outputs must be written completely") {
  SingleCoreProgram one;
  auto const scratch = one.builder.tensor("scratch", {4, 4}, f32, Role::internal, Memory::private_hbm);
  auto const out = one.builder.tensor("out", {4, 4}, f32, Role::output);
  auto const row = one.load("row", 1, 4, {1, 2, 3, 4});
  for (Index i = 0; i < 4; ++i) one.builder.emit(nki::DmaCopy{scratch.pattern(i * 4, {{1, 1}, {1, 4}}), row.whole()});
  SingleCoreProgram partial = one;
  one.builder.emit(nki::DmaCopy{out.whole(), scratch.whole()});
  one.run();
  CHECK(one.outputs["out"] == std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4});
  CHECK_THROWS_WITH(partial.run(), ContainsSubstring("element 0 of 16 was never written"));
  partial.builder.emit(nki::DmaCopy{out.pattern(0, {{4, 4}, {1, 3}}), scratch.pattern(0, {{4, 4}, {1, 3}})});
  CHECK_THROWS_WITH(partial.run(), ContainsSubstring("element 3 of 16 was never written"));
}

TEST_CASE("NaN with any payload and infinity count as defined values") {
  float const poison_like = nki::simulator::poison;
  SingleCoreProgram one;
  auto const x = one.load("x", 1, 3, {poison_like, -poison_like, std::numeric_limits<float>::infinity()});
  one.builder.emit(nki::TensorTensor{x.whole(), x.whole(), x.whole(), Operator::subtract});
  one.store("x", x);
  one.run();
  for (float const value : one.result("x")) CHECK(std::isnan(value));
}

TEST_CASE("Inputs of the wrong size or name are refused") {
  SingleCoreProgram one;
  one.load("x", 4, 4, std::vector<float>(16, 1.0f));
  auto const program = one.validated();
  CHECK_THROWS_WITH(nki::simulate(program, {}), ContainsSubstring("input x_in of program one is missing"));
  CHECK_THROWS_AS(nki::simulate(program, {{"x_in", std::vector<float>(15)}}), annulus::ShapeError);
  CHECK_THROWS_WITH(nki::simulate(program, {{"x_in", std::vector<float>(16)}, {"y", {}}}),
                    ContainsSubstring("no input y"));
  nki::simulate(program, {{"x_in", std::vector<float>(16)}});
}
