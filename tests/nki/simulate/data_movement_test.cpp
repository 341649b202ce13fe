// Simulator: DMA, partition shuffles and index patterns.

#include <cmath>
#include <numeric>

#include "nki/simulate/one_program.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::nki::Affine;
using annulus::nki::Memory;
using annulus::nki::Operator;
using annulus::nki::Role;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<float> counting(Index count, float first = 0) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

}  // namespace

TEST_CASE("dma_copy matches elements in row-major order of both patterns") {
  SingleCoreProgram one;
  auto const source = one.builder.tensor("source", {3, 4, 10}, f32, Role::input);
  one.inputs["source"] = random_values(120, 41);
  auto const tile = one.load("tile", 64, 30, random_values(64 * 30, 42), bf16);
  one.store("before", tile);
  auto const from = source.pattern(1, {{40, 3}, {2, 4}, {10, 2}});  // 3 x 8
  auto const to = tile.pattern(32, 6, 3, {{5, 4}});                 // 6 x 4
  one.builder.emit(nki::DmaCopy{to, from});
  auto const same_rows = tile.pattern(0, 3, 0, {{1, 2}, {7, 4}});
  one.builder.emit(nki::DmaCopy{same_rows, from});
  one.store("tile", tile);
  one.run();
  std::vector<float> expected = one.result("before");
  nki::Program const& program = one.builder.program();
  for (Index i = 0; i < 24; ++i) {
    float const value =
        static_cast<float>(Eigen::bfloat16(one.inputs["source"][place_of(program, from, i / 8, i % 8)]));
    expected[place_of(program, to, i / 4, i % 4)] = value;
    expected[place_of(program, same_rows, i / 8, i % 8)] = value;
  }
  CHECK(one.result("tile") == expected);
}

TEST_CASE("dma_copy between tensors in HBM, between tiles, and onto itself") {
  SingleCoreProgram one;
  auto const a = one.builder.tensor("a", {4, 6}, f32, Role::input),
             b = one.builder.tensor("b", {6, 4}, f16, Role::output);
  one.inputs["a"] = random_values(24, 43);
  one.builder.emit(nki::DmaCopy{b.pattern(0, {{1, 4}, {4, 6}}), a.pattern(0, {{6, 4}, {1, 6}})});
  auto const x = one.load("x", 4, 9, counting(36));
  one.builder.emit(nki::DmaCopy{x.columns(1, 8), x.columns(0, 8)});
  one.store("x", x);
  one.run();
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 6; ++j)
      CHECK(one.outputs["b"][j * 4 + i] == static_cast<float>(Eigen::half(one.inputs["a"][i * 6 + j])));
  for (std::size_t i = 0; i < 36; ++i) CHECK(one.result("x")[i] == static_cast<float>(i % 9 == 0 ? i : i - 1));
}

TEST_CASE("A register offsets an access in HBM by indices of one dimension") {
  auto const [dimension, stride] = GENERATE(std::pair{0, 20}, std::pair{1, 5}, std::pair{2, 1});
  auto const id = GENERATE(0, 3);
  SingleCoreProgram one;
  auto const table = one.builder.tensor("table", {4, 4, 5}, f32, Role::input);
  one.inputs["table"] = counting(80);
  int const number = one.builder.make_register();
  one.builder.emit(nki::ProcessingRank{number, 0});
  auto const cell = one.builder.tile("cell", Memory::sbuf, 1, 1, f32);
  auto from = table.pattern(1, {{1, 1}, {1, 1}});
  from.register_offset = nki::RegisterOffset{number, dimension};
  one.builder.emit(nki::DmaCopy{cell.whole(), from});
  one.store("cell", cell);
  nki::Arrangement arrangement;
  arrangement.ids = nki::Arrangement::Ids::global;
  arrangement.group_begin = id;
  auto const outputs = nki::simulate(one.validated(), one.inputs, arrangement);
  CHECK(outputs.at("cell_out")[0] == static_cast<float>(1 + id * stride));
  arrangement.group_begin = 80;
  CHECK_THROWS_WITH(nki::simulate(one.validated(), one.inputs, arrangement),
                    ContainsSubstring("operand src covers") && ContainsSubstring("of table, which has 1 x 80"));
}

TEST_CASE("A register that is loaded offsets reads and writes in HBM") {
  auto const flag = GENERATE(0.0f, 1.0f);
  SingleCoreProgram one;
  auto const table = one.builder.tensor("table", {4, 5}, f32, Role::input),
             result = one.builder.tensor("result", {1, 3}, f32, Role::output);
  one.inputs["table"] = counting(20);
  auto const choice = one.load("choice", 1, 1, {flag});
  auto const word = one.builder.tile("word", Memory::sbuf, 1, 1, nki::ElementType::int32),
             cell = one.builder.tile("cell", Memory::sbuf, 1, 1, f32);
  one.builder.emit(nki::Memset{cell.whole(), -1.0f});
  for (Index column : {0, 1, 2})
    one.builder.emit(nki::DmaCopy{result.pattern(column, {{1, 1}, {1, 1}}), cell.whole()});
  nki::RegisterLoad const load{one.builder.make_register({.count = 2, .step = 2}), word.whole()};
  one.builder.emit(nki::TensorScalar{.dst = word.whole(), .data = choice.whole(), .operand0 = 2.0f});
  one.builder.emit(load);
  auto from = table.pattern(1, {{1, 1}, {1, 1}}), to = result.pattern(0, {{1, 1}, {1, 1}});
  from.register_offset = nki::RegisterOffset{load.register_number, 0};
  to.register_offset = nki::RegisterOffset{load.register_number, 1};
  one.builder.emit(nki::DmaCopy{cell.whole(), from});
  one.builder.emit(nki::DmaCopy{to, cell.whole()});
  one.run();
  for (std::size_t column : {0, 1, 2})
    CHECK(one.outputs["result"][column] == (static_cast<float>(column) == 2 * flag ? 1 + 10 * flag : -1));
}

TEST_CASE("A register is refused a value that it is not declared to hold") {
  auto const value = GENERATE(1.0f, 4.0f, -2.0f);
  SingleCoreProgram one;
  auto const table = one.builder.tensor("table", {4, 5}, f32, Role::input);
  one.inputs["table"] = counting(20);
  auto const loaded = one.load("loaded", 1, 1, {value});
  auto const word = one.builder.tile("word", Memory::sbuf, 1, 1, nki::ElementType::int32),
             cell = one.builder.tile("cell", Memory::sbuf, 1, 1, f32);
  nki::RegisterLoad const load{one.builder.make_register({.count = 2, .step = 2}), word.whole()};
  one.builder.emit(nki::TensorScalar{.dst = word.whole(), .data = loaded.whole(), .operand0 = 1.0f});
  one.builder.emit(load);
  auto from = table.pattern(1, {{1, 1}, {1, 1}});
  from.register_offset = nki::RegisterOffset{load.register_number, 0};
  one.builder.emit(nki::DmaCopy{cell.whole(), from});
  one.store("cell", cell);
  CHECK_THROWS_WITH(nki::simulate(one.validated(), one.inputs, {}),
                    ContainsSubstring("into a register of 2 values that are multiples of 2"));
}

TEST_CASE("What a register selects must have been written") {
  SingleCoreProgram one;
  auto const table = one.builder.tensor("table", {4, 5}, f32);
  auto const row = one.load("row", 1, 5, counting(5));
  one.builder.emit(nki::DmaCopy{table.pattern(0, {{1, 1}, {1, 5}}), row.whole()});
  int const number = one.builder.make_register();
  one.builder.emit(nki::ProcessingRank{number, 0});
  auto from = table.pattern(0, {{1, 1}, {1, 5}});
  from.register_offset = nki::RegisterOffset{number, 0};
  one.builder.emit(nki::DmaCopy{row.whole(), from});
  one.store("row", row);
  one.run();
  CHECK(one.result("row") == counting(5));
  nki::Arrangement const arrangement{.ring = {}, .ids = nki::Arrangement::Ids::global, .group_begin = 2};
  CHECK_THROWS_WITH(nki::simulate(one.validated(), one.inputs, arrangement),
                    ContainsSubstring("operand src reads element 10 of table, which was never written"));
}

TEST_CASE("dma_transpose of two, three and four axes") {
  SingleCoreProgram one;
  auto const x = one.load("x", 32, 64, random_values(32 * 64, 44), bf16);
  one.store("x", x);
  auto const two = one.builder.tile("two", Memory::sbuf, 64, 32, bf16),
             three = one.builder.tile("three", Memory::sbuf, 16, 4 * 32, bf16),
             four = one.builder.tile("four", Memory::sbuf, 16, 4 * 32, bf16),
             part = one.builder.tile("part", Memory::sbuf, 64, 16, bf16);
  one.builder.emit(nki::DmaTranspose{two.whole(), x.whole()});
  one.builder.emit(
      nki::DmaTranspose{three.pattern(0, 16, 0, {{32, 4}, {1, 32}}), x.pattern(0, 32, 0, {{16, 4}, {1, 16}})});
  one.builder.emit(nki::DmaTranspose{four.pattern(0, 16, 0, {{32, 2}, {64, 2}, {1, 32}}),
                                     x.pattern(0, 32, 0, {{32, 2}, {16, 2}, {1, 16}})});
  auto const hbm = one.builder.tensor("hbm", {16, 100}, bf16, Role::input);
  one.inputs["hbm"] = random_values(1600, 45);
  one.builder.emit(nki::DmaTranspose{part.whole(), hbm.pattern(20, {{100, 16}, {1, 64}})});
  for (auto const& [name, tile] : {std::pair{"two", two}, {"three", three}, {"four", four}, {"part", part}})
    one.store(name, tile);
  one.run();
  bool right = true;
  for (std::size_t i = 0; i < 32; ++i)
    for (std::size_t j = 0; j < 4; ++j)
      for (std::size_t k = 0; k < 16; ++k) {
        float const value = one.result("x")[i * 64 + j * 16 + k];
        right = right && one.result("two")[(j * 16 + k) * 32 + i] == value &&
                one.result("three")[k * 128 + j * 32 + i] == value &&
                one.result("four")[k * 128 + (j % 2) * 64 + (j / 2) * 32 + i] == value;
      }
  CHECK(right);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 64; ++j)
      REQUIRE(one.result("part")[j * 16 + i] ==
              static_cast<float>(Eigen::bfloat16(one.inputs["hbm"][i * 100 + 20 + j])));
}

TEST_CASE("dma_transpose in place, as attention uses it") {
  SingleCoreProgram one;
  auto const p = one.load("p", 32, 128, random_values(32 * 128, 46), bf16);
  one.store("before", p);
  auto const pattern = p.pattern(0, 32, 0, {{1, 1}, {32, 4}, {1, 32}});
  one.builder.emit(nki::DmaTranspose{pattern, pattern});
  one.store("p", p);
  one.run();
  for (std::size_t i = 0; i < 32; ++i)
    for (std::size_t b = 0; b < 4; ++b)
      for (std::size_t j = 0; j < 32; ++j)
        REQUIRE(one.result("p")[j * 128 + b * 32 + i] == one.result("before")[i * 128 + b * 32 + j]);
}

TEST_CASE("nc_stream_shuffle broadcasts a partition, also its own") {
  SingleCoreProgram one;
  auto const z = one.load("z", 128, 3, random_values(3 * 128, 49));
  for (Index quadrant = 0; quadrant < 4; ++quadrant)
    one.builder.emit(nki::StreamShuffle{z.part(32 * quadrant, 32, 0, 3), z.part(0, 1, 0, 3)});
  one.store("z", z);
  one.run();
  for (std::size_t i = 0; i < 3 * 128; ++i) CHECK(one.result("z")[i] == one.inputs["z_in"][i % 3]);
}

TEST_CASE("iota follows its index pattern") {
  std::vector<nki::Axis> const pattern{{100, 3}, {-2, 4}};
  SingleCoreProgram one;
  auto const numbers = one.load("numbers", 40, 30, std::vector<float>(1200, 9));
  auto const to = numbers.pattern(32, 8, 2, {{2, 12}});
  one.builder.emit(nki::Iota{to, pattern, -5, 7});
  one.store("numbers", numbers);
  one.run();
  std::vector<float> expected(1200, 9);
  for (Index p = 0; p < 8; ++p)
    for (Index i = 0; i < 12; ++i) {
      Index const sum = p * 7 + (i / 4) * 100 - 2 * (i % 4);
      expected[place_of(one.builder.program(), to, p, i)] = static_cast<float>(sum - 5);
    }
  CHECK(one.result("numbers") == expected);
}

TEST_CASE("Indices depend on loop variables") {
  SingleCoreProgram one;
  auto const x = one.load("x", 4, 12, random_values(48, 52));
  auto const y = one.builder.tile("y", Memory::sbuf, 4, 12, f32), n = one.builder.tile("n", Memory::sbuf, 1, 6, f32);
  one.builder.loop("outer", 3, [&](Affine i) {
    one.builder.loop("inner", 2, [&](Affine j) {
      one.builder.emit(nki::TensorCopy{y.columns(i * 4 + j * 2, 2), x.columns(i * -4 + j * -2 + Affine(10), 2)});
      one.builder.emit(nki::Iota{n.column(i * 2 + j), {{0, 1}}, i * 10 + j});
    });
  });
  one.store("y", y);
  one.store("n", n);
  one.run();
  for (std::size_t p = 0; p < 4; ++p)
    for (std::size_t i = 0; i < 12; ++i)
      CHECK(one.result("y")[p * 12 + i] == one.inputs["x_in"][p * 12 + 10 - i / 2 * 2 + i % 2]);
  CHECK(one.result("n") == std::vector<float>{0, 1, 10, 11, 20, 21});
}
