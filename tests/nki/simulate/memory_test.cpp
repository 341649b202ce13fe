// Simulator: reads of elements that were never written are refused, with their place.

#include <cmath>
#include <functional>
#include <limits>

#include "nki/simulate/one_program.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::nki::Memory;
using annulus::nki::Operator;
using annulus::nki::Role;
using Catch::Matchers::ContainsSubstring;

namespace {

/// An instruction with one undefined operand among those it reads.
struct Reader {
  char const* keyword;
  std::function<nki::Instruction(nki::Access full, nki::Access hole, nki::Access dst, nki::Access column)> write;
};

}  // namespace

TEST_CASE("Every operand that is read is checked") {
  using A = nki::Access;
  auto const reader =
      GENERATE(
          Reader{"stationary",
                 [](A x, A hole, A dst, A) {
                   return nki::MatMul{dst, hole, x};
                 }},
          Reader{"moving",
                 [](A x, A hole, A dst, A) {
                   return nki::MatMul{dst, x, hole};
                 }},
          Reader{"dst",
                 [](A x, A hole, A, A) {
                   return nki::MatMul{hole, x, x, true};
                 }},
          Reader{"data",
                 [](A, A hole, A dst, A) {
                   return nki::Transpose{dst, hole};
                 }},
          Reader{"src",
                 [](A, A hole, A dst, A) {
                   return nki::DmaCopy{dst, hole};
                 }},
          Reader{"data", [](A, A hole, A dst, A) { return nki::Activation{.dst = dst, .data = hole}; }},
          Reader{"bias",
                 [](A x, A hole, A dst, A) {
                   hole = A(hole.buffer, {{1, 4}, {1, 1}});
                   return nki::Activation{.dst = dst, .data = x, .bias = hole};
                 }},
          Reader{"scale",
                 [](A x, A hole, A dst, A) {
                   hole = A(hole.buffer, {{1, 4}, {1, 1}});
                   return nki::Activation{.dst = dst, .data = x, .scale = hole};
                 }},
          Reader{"data1",
                 [](A x, A hole, A dst, A) {
                   return nki::TensorTensor{dst, hole, x};
                 }},
          Reader{"data2",
                 [](A x, A hole, A dst, A) {
                   return nki::TensorTensor{dst, x, hole};
                 }},
          Reader{"operand1", [](A x, A hole, A dst,
                                A) { return nki::ScalarTensorTensor{.dst = dst, .data = x, .operand1 = hole}; }},
          Reader{"data",
                 [](A, A hole, A dst, A column) {
                   return nki::TensorScalarReduce{dst, hole, Operator::multiply, 1.0f, Operator::add, column};
                 }},
          Reader{"data",
                 [](A, A hole, A, A column) {
                   return nki::TensorReduce{column, Operator::add, hole};
                 }},
          Reader{"src",
                 [](A, A hole, A dst, A) {
                   return nki::TensorCopy{dst, hole};
                 }},
          Reader{
              "data",
              [](A, A hole, A dst, A) {
                return nki::Reciprocal{dst, hole};
              }},
          Reader{"on_true_tile", [](A, A hole, A dst, A) { return nki::AffineSelect{dst, {{1, 4}}, 0, hole}; }},
          Reader{"src", [](A, A hole, A dst, A) {
                   return nki::StreamShuffle{dst, hole, std::vector<int>(32, 0)};
                 }});
  INFO(reader.keyword);
  auto const run = [&](int undefined) {
    SingleCoreProgram one;
    auto const x = one.load("x", 4, 4, std::vector<float>(16, 1.0f));
    auto const hole = one.builder.tile("hole", Memory::sbuf, 4, 4, f32),
               dst = one.builder.tile("dst", Memory::sbuf, 4, 4, f32),
               column = one.builder.tile("column", Memory::sbuf, 4, 1, f32);
    for (Index i = 0; i < 16; ++i)
      if (i != undefined) one.builder.emit(nki::Memset{hole.part(i / 4, 1, i % 4, 1), 1.0f});
    one.builder.section("step", 3);
    one.builder.emit(reader.write(x.whole(), hole.whole(), dst.whole(), column.whole()));
    one.run();
  };
  run(-1);
  int const undefined = std::string(reader.keyword) == "bias" || std::string(reader.keyword) == "scale" ? 8 : 9;
  CHECK_THROWS_WITH(run(undefined),
                    ContainsSubstring(std::string("operand ") + reader.keyword + " ") && ContainsSubstring("step 3") &&
                        ContainsSubstring("partition 2, element " + std::to_string(undefined % 4) + " of hole") &&
                        ContainsSubstring("never written"));
}

TEST_CASE("The error names the instruction") {
  SingleCoreProgram one;
  auto const a = one.builder.tile("a", Memory::sbuf, 2, 2, f32), b = one.builder.tile("b", Memory::sbuf, 2, 2, f32);
  one.builder.emit(nki::Memset{a.whole(), 0.0f});
  one.builder.emit(nki::TensorCopy{a.whole(), b.whole()});
  CHECK_THROWS_WITH(one.run(), ContainsSubstring("core 0") && ContainsSubstring("instruction 2, tensor_copy"));
}

TEST_CASE("range_select reads both bounds and all of its tile") {
  for (int undefined = 0; undefined < 3; ++undefined) {
    SingleCoreProgram one;
    nki::TileHandle tiles[3] = {one.builder.tile("tile", Memory::sbuf, 2, 4, f32),
                                one.builder.tile("low", Memory::sbuf, 2, 1, f32),
                                one.builder.tile("high", Memory::sbuf, 2, 1, f32)};
    for (int i = 0; i < 3; ++i)
      if (i != undefined) one.builder.emit(nki::Memset{tiles[i].whole(), 1.0f});
    // No element passes, but all are read.
    one.builder.emit(nki::RangeSelect{.dst = tiles[0].whole(),
                                      .on_true_tile = tiles[0].whole(),
                                      .bound0 = tiles[1].whole(),
                                      .bound1 = tiles[2].whole()});
    char const* const names[] = {"tile", "low", "high"};
    CHECK_THROWS_WITH(one.run(), ContainsSubstring(std::string("element 0 of ") + names[undefined]));
  }
}

TEST_CASE("A newly allocated tile is undefined; older tiles are kept until their place is reused") {
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

  SingleCoreProgram again = one;
  again.builder.allocate(tile);
  again.builder.emit(nki::TensorCopy{kept.whole(), tile.before(1).whole()});
  again.run();
  SingleCoreProgram empty = again;
  empty.builder.emit(nki::TensorCopy{kept.whole(), tile.whole()});
  CHECK_THROWS_WITH(empty.run(), ContainsSubstring("of tile, which was never written"));
  SingleCoreProgram gone = again;
  gone.builder.emit(nki::TensorCopy{kept.whole(), tile.before(2).whole()});
  CHECK_THROWS_WITH(gone.run(), ContainsSubstring("was replaced by a newer one"));
}

TEST_CASE("A new tile holds nothing of the previous one, whatever its bits") {
  SingleCoreProgram one;
  auto const tile = one.builder.tile("tile", Memory::sbuf, 2, 2, f32),
             copy = one.builder.tile("copy", Memory::sbuf, 2, 2, f32);
  for (Index p = 0; p < 2; ++p) one.builder.emit(nki::Memset{tile.part(p, 1, 0, 2), 1.0f});
  one.builder.emit(nki::TensorCopy{copy.whole(), tile.whole()});
  one.run();
  one.builder.allocate(tile);
  one.builder.emit(nki::Memset{tile.part(0, 1, 0, 2), 1.0f});
  one.builder.emit(nki::TensorCopy{copy.whole(), tile.whole()});
  CHECK_THROWS_WITH(one.run(), ContainsSubstring("partition 1, element 0 of tile, which was never written"));
}

TEST_CASE("Definedness is tracked per element, for every order of writes") {
  // Columns 0..3, 6..7, then 4: column 5 stays undefined until the end.
  SingleCoreProgram one;
  auto const tile = one.builder.tile("tile", Memory::sbuf, 3, 8, f32),
             copy = one.builder.tile("copy", Memory::sbuf, 3, 8, f32);
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
  one.builder.emit(nki::Memset{tile.part(0, 2, 5, 1), 1.0f});
  fails(0, 8);
  one.builder.emit(nki::Memset{tile.part(2, 1, 5, 1), 1.0f});
  passes(0, 8);
  one.store("copy", copy);
  one.run();
  CHECK(one.result("copy") == std::vector<float>(24, 1.0f));
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
  CHECK_THROWS_WITH(partial.run(), ContainsSubstring("element 0 of output out was never written"));
  partial.builder.emit(nki::DmaCopy{out.pattern(0, {{4, 4}, {1, 3}}), scratch.pattern(0, {{4, 4}, {1, 3}})});
  CHECK_THROWS_WITH(partial.run(), ContainsSubstring("element 3 of output out was never written"));
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

TEST_CASE("Accesses outside a buffer, and inputs of the wrong size or name, are refused") {
  SingleCoreProgram one;
  auto const x = one.load("x", 4, 4, std::vector<float>(16, 1.0f));
  auto const fails = [&](nki::Access const& access) {
    SingleCoreProgram tried = one;
    tried.builder.emit(nki::Memset{access, 0.0f});
    CHECK_THROWS_WITH(tried.run(), ContainsSubstring("of x, which has 4 x 4"));
  };
  fails(x.columns(1, 4));
  fails(x.columns(-1, 2));
  fails(x.part(1, 4, 0, 1));
  fails(x.pattern(0, 4, 0, {{3, 3}}));
  one.run();

  auto const hardware = nki::hardware_of(nki::Target::trn2);
  nki::Tensors const good{{"x_in", std::vector<float>(16)}};
  CHECK_THROWS_WITH(nki::simulate(one.builder.program(), hardware, {}),
                    ContainsSubstring("input x_in of program one is missing"));
  CHECK_THROWS_AS(nki::simulate(one.builder.program(), hardware, {{"x_in", std::vector<float>(15)}}),
                  annulus::ShapeError);
  CHECK_THROWS_WITH(nki::simulate(one.builder.program(), hardware, {{"x_in", std::vector<float>(16)}, {"y", {}}}),
                    ContainsSubstring("no input y"));
  CHECK_THROWS_AS(nki::simulate(one.builder.program(), nki::hardware_of(nki::Target::trn3), good),
                  annulus::UnsupportedError);
  nki::simulate(one.builder.program(), hardware, good);
}

TEST_CASE("Tensors larger than the machine's memory are refused by name") {
  for (std::vector<Index> const& shape : {std::vector<Index>{Index{1} << 40, 4}, {Index{1} << 40, Index{1} << 40}}) {
    SingleCoreProgram one;
    one.builder.tensor("large", shape, f32);
    CHECK_THROWS_WITH(one.run(), ContainsSubstring("buffer large has [1099511627776, ") &&
                                     ContainsSubstring("more memory than this machine has available"));
  }
}

TEST_CASE("Indices of undeclared buffers, variables and registers are refused before anything runs") {
  SingleCoreProgram one;
  auto const tile = one.builder.tile("tile", Memory::sbuf, 4, 4, f32);
  one.builder.emit(nki::TensorCopy{tile.whole(), nki::Access()});
  CHECK_THROWS_WITH(one.run(), ContainsSubstring("tensor_copy: operand src names buffer -1 of 1"));
}
