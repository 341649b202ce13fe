// Validator: matmuls and transposes (R3 to R5, R13).
#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

namespace {

/// A program with one matmul of filled operands; the fields vary between tests.
struct Product {
  Index contracted = 64, rows = 128, columns = 512;
  Index contracted_moving = 64;
  ElementType stationary_type = ElementType::bfloat16, moving_type = ElementType::bfloat16,
              dst_type = ElementType::float32;
  Memory dst_memory = Memory::psum, stationary_memory = Memory::sbuf, moving_memory = Memory::sbuf;
  Target target = Target::trn2;

  Program program() const {
    Draft draft(1, 1, target);
    TileHandle const stationary = draft.filled("left", contracted, rows, stationary_type, stationary_memory);
    TileHandle const moving = draft.filled("right", contracted_moving, columns, moving_type, moving_memory);
    TileHandle const dst = draft.tile("product", dst_memory, std::min<Index>(rows, 128), columns, dst_type);
    draft.emit(MatMul{dst.whole(), stationary.whole(), moving.whole()});
    return draft.done();
  }
};

}  // namespace

TEST_CASE("R3: memories of a matmul", "[nki][validate]") {
  check_accepted(Product{}.program());
  check_refused(Product{.dst_memory = Memory::sbuf}.program(),
                {"R3", "nc_matmul", "dst", "is in sbuf; TensorE writes psum only"});
  Product const in_psum{.stationary_type = ElementType::float32, .moving_type = ElementType::float32};
  Product left = in_psum, right = in_psum;
  left.stationary_memory = Memory::psum;
  right.moving_memory = Memory::psum;
  check_refused(left.program(), {"R3", "nc_matmul", "stationary", "is in psum; TensorE reads sbuf only"});
  check_refused(right.program(), {"R3", "nc_matmul", "moving", "is in psum; TensorE reads sbuf only"});
  check_accepted(in_psum.program());
}

TEST_CASE("R3: extents of a matmul", "[nki][validate]") {
  check_refused(Product{.contracted_moving = 63}.program(),
                {"R3", "nc_matmul", "moving", "contracts 63 partitions; stationary has 64"});

  auto const stationary = [](Index columns) {
    Draft draft;
    TileHandle const left = draft.filled("left", 16, 256, ElementType::bfloat16);
    TileHandle const right = draft.filled("right", 16, 4, ElementType::bfloat16);
    TileHandle const dst = draft.tile("product", Memory::psum, 128, 4, ElementType::float32);
    draft.emit(MatMul{dst.part(0, std::min<Index>(columns, 128), 0, 4), left.columns(0, columns), right.whole()});
    return draft.done();
  };
  std::vector<Finding> const wide = findings(stationary(129), hardware_of(Target::trn2));
  REQUIRE(wide.size() == 2);  // 129 columns cannot be the partitions of any dst
  CHECK(wide[0].rule == Rule::matmul);
  CHECK(wide[0].operand == "stationary");
  CHECK(wide[0].message == "129 columns; at most 128");
  CHECK(wide[1].message == "is 128 x 4; the product is 129 x 4");
  check_accepted(stationary(128));

  auto const result = [](Index columns) {
    Draft draft;
    TileHandle const left = draft.filled("left", 16, 32, ElementType::bfloat16);
    TileHandle const right = draft.filled("right", 16, 100, ElementType::bfloat16);
    TileHandle const dst = draft.tile("product", Memory::psum, 32, 100, ElementType::float32);
    draft.emit(MatMul{dst.columns(0, columns), left.whole(), right.whole()});
    return draft.done();
  };
  check_refused(result(99), {"R3", "nc_matmul", "dst", "is 32 x 99; the product is 32 x 100"});
  check_accepted(result(100));
}

TEST_CASE("R3: moving columns, by generation", "[nki][validate]") {
  check_refused(Product{.columns = 513}.program(), {"R3", "nc_matmul", "moving", "513 columns; at most 512"});
  check_accepted(Product{.columns = 513, .target = Target::trn3}.program());
  check_accepted(Product{.columns = 4096, .target = Target::trn3}.program());
  // A result of half the width: PSUM holds twice as many columns.
  Product const wide{.columns = 8192, .dst_type = ElementType::bfloat16, .target = Target::trn3};
  check_accepted(wide.program());
  auto const refusals = [](Product const& product) {
    std::string text;
    for (Finding const& finding : findings(product.program(), hardware_of(Target::trn3)))
      if (finding.rule == Rule::matmul) text += finding.message;
    return text;
  };
  CHECK(refusals({.columns = 4097, .target = Target::trn3}) == "4097 columns; at most 4096");
  CHECK(refusals({.columns = 8193, .dst_type = ElementType::bfloat16, .target = Target::trn3}) ==
        "8193 columns; at most 8192");
}

TEST_CASE("R3: a product stays in one PSUM bank, in every iteration of its loops", "[nki][validate]") {
  auto const program = [](Index step, Target target) {
    Draft draft(1, 1, target);
    TileHandle const left = draft.filled("left", 16, 32, ElementType::bfloat16);
    TileHandle const right = draft.filled("right", 16, 256, ElementType::bfloat16);
    TileHandle const dst = draft.tile("product", Memory::psum, 32, 1024, ElementType::float32);
    draft.loop("half", 3, [&](Affine half) {
      draft.emit(MatMul{dst.columns(half * step, 256), left.whole(), right.whole()});
    });
    return draft.done();
  };
  check_refused(program(255, Target::trn2),
                {"R3", "nc_matmul", "dst", "bytes 2040..3063 of a partition of tile product"});
  CHECK_THAT(findings(program(255, Target::trn2), hardware_of(Target::trn2)).at(0).message,
             Catch::Matchers::ContainsSubstring("one bank of 2048 bytes"));
  CHECK(findings(program(255, Target::trn2), hardware_of(Target::trn2)).at(0).place == "half_1 = 2");
  check_accepted(program(256, Target::trn2));
  check_accepted(program(255, Target::trn3));
}

TEST_CASE("R3: type of a product, by generation", "[nki][validate]") {
  check_refused(Product{.dst_type = ElementType::bfloat16}.program(),
                {"R3", "nc_matmul", "dst", "is bfloat16; accepted: float32"});
  check_accepted(Product{.dst_type = ElementType::bfloat16, .target = Target::trn3}.program());
  check_refused(Product{.dst_type = ElementType::float16, .target = Target::trn3}.program(),
                {"R3", "nc_matmul", "dst", "is float16; accepted: float32, bfloat16"});
}

TEST_CASE("R4: float32 is multiplied with float32 only", "[nki][validate]") {
  check_refused(Product{.stationary_type = ElementType::float32}.program(),
                {"R4", "nc_matmul", "moving", "is bfloat16 and stationary float32; float32 goes with float32 only"});
  check_accepted(Product{.stationary_type = ElementType::float16}.program());
}

TEST_CASE("R5: accumulation continues a matmul of the same tile", "[nki][validate]") {
  enum class Before { nothing, matmul, memset, matmul_and_memset, matmul_of_older_tile, matmul_of_half };
  auto const program = [](Before before) {
    Draft draft;
    TileHandle const left = draft.filled("left", 16, 32, ElementType::bfloat16);
    TileHandle const right = draft.filled("right", 16, 64, ElementType::bfloat16);
    TileHandle const dst = draft.tile("product", Memory::psum, 32, 64, ElementType::float32);
    auto const multiply = [&](bool accumulate) {
      draft.emit(MatMul{dst.whole(), left.whole(), right.whole(), accumulate});
    };
    if (before == Before::matmul_of_half)
      draft.emit(MatMul{dst.columns(0, 32), left.whole(), right.columns(0, 32)});
    else if (before != Before::nothing && before != Before::memset)
      multiply(false);
    if (before == Before::memset || before == Before::matmul_and_memset) draft.emit(Memset{dst.columns(40, 1), 0.0f});
    if (before == Before::matmul_of_older_tile) draft.allocate(dst);
    multiply(true);
    return draft.done();
  };
  check_refused(program(Before::nothing), {"R5", "nc_matmul", "dst", "accumulates onto element 0 of tile product"});
  check_refused(program(Before::memset), {"R5", "nc_matmul", "dst", "accumulates onto element 0 of tile product"});
  check_refused(program(Before::matmul_and_memset),
                {"R5", "nc_matmul", "dst", "accumulates onto element 40 of tile product"});
  check_refused(program(Before::matmul_of_older_tile),
                {"R5", "nc_matmul", "dst", "accumulates onto element 0 of tile product"});
  check_refused(program(Before::matmul_of_half),
                {"R5", "nc_matmul", "dst", "accumulates onto element 32 of tile product"});
  check_accepted(program(Before::matmul));
}

TEST_CASE("R5: a matmul must not accumulate onto a transpose", "[nki][validate]") {
  auto const program = [](bool accumulate) {
    Draft draft;
    TileHandle const left = draft.filled("left", 32, 32);
    TileHandle const dst = draft.tile("product", Memory::psum, 32, 32, ElementType::float32);
    draft.emit(Transpose{dst.whole(), left.whole()});
    draft.emit(MatMul{dst.whole(), left.whole(), left.whole(), accumulate});
    return draft.done();
  };
  check_refused(program(true), {"R5", "nc_matmul", "dst", "which no matmul wrote last"});
  check_accepted(program(false));
}

TEST_CASE("R5: at most eight accumulation groups are open", "[nki][validate]") {
  // Each of `groups` results of 128 columns takes its first matmul; then those from `continued` on take another.
  auto const program = [](Index groups, Index continued) {
    Draft draft;
    TileHandle const left = draft.filled("left", 16, 32, ElementType::bfloat16),
                     right = draft.filled("right", 16, 128, ElementType::bfloat16),
                     dst = draft.tile("product", Memory::psum, 32, groups * 128, ElementType::float32);
    auto const multiply = [&](Index group, bool accumulate) {
      draft.emit(MatMul{dst.columns(group * 128, 128), left.whole(), right.whole(), accumulate});
    };
    for (Index group = 0; group < groups; ++group) multiply(group, false);
    for (Index group = continued; group < groups; ++group) multiply(group, true);
    return draft.done();
  };
  check_accepted(program(8, 0));
  check_refused(program(9, 0), {"R5", "nc_matmul", "dst", "9 accumulation groups are open at once; at most 8"});
  // A result of one matmul, and one that is never continued, are not open.
  check_accepted(program(12, 4));
  check_refused(program(12, 3), {"R5", "nc_matmul", "dst", "9 accumulation groups are open at once; at most 8"});

  Assumptions const one_per_bank{.one_accumulation_per_bank = true};
  check_accepted(program(4, 3), one_per_bank);
  std::vector<Finding> const found = findings(program(4, 2), hardware_of(Target::trn2), 20, one_per_bank);
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0].message, Catch::Matchers::ContainsSubstring("2 accumulation groups are open in a bank of psum"));
}

TEST_CASE("R13: transposes", "[nki][validate]") {
  struct Case {
    Index partitions = 64, elements = 128;
    ElementType to = ElementType::bfloat16;
    Memory memory = Memory::psum;
    Index dst_elements = 0;  // 0: as needed
  };
  auto const program = [](Case const& of) {
    Draft draft;
    TileHandle const data = draft.filled("data", of.partitions, of.elements, ElementType::bfloat16);
    Index const columns = of.dst_elements == 0 ? of.partitions : of.dst_elements;
    TileHandle const dst = draft.tile("flipped", of.memory, std::min<Index>(of.elements, 128), columns, of.to);
    draft.emit(Transpose{dst.whole(), data.whole()});
    return draft.done();
  };
  check_accepted(program({}));
  check_refused(program({.to = ElementType::float32}), {"R13", "nc_transpose", "dst", "is float32; data is bfloat16"});
  check_refused(program({.memory = Memory::sbuf}),
                {"R13", "nc_transpose", "dst", "is in sbuf; TensorE writes psum only"});
  check_refused(program({.dst_elements = 65}),
                {"R13", "nc_transpose", "dst", "is 128 x 65; the transpose is 128 x 64"});

  Draft wide;
  TileHandle const data = wide.filled("data", 16, 129, ElementType::bfloat16);
  TileHandle const dst = wide.tile("flipped", Memory::psum, 128, 16, ElementType::bfloat16);
  wide.emit(Transpose{dst.whole(), data.whole()});
  CHECK(findings(wide.done(), hardware_of(Target::trn2)).at(0).message ==
        "is 16 x 129; TensorE transposes at most 128 x 128");
}
