// Validator: reads of elements that were never written (R14), and lifetimes of tiles.
#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

TEST_CASE("R14: every element of a tile must be written before it is read", "[nki][validate]") {
  auto const program = [](Index partitions, Index elements) {
    Draft draft;
    TileHandle const from = draft.tile("from", Memory::sbuf, 96, 16, ElementType::float32);
    draft.fill(from.part(0, partitions, 0, elements));
    TileHandle const to = draft.tile("to", Memory::sbuf, 96, 16, ElementType::float32);
    draft.emit(TensorCopy{to.whole(), from.whole()});
    return draft.done();
  };
  check_refused(program(96, 15),
                {"R14", "tensor_copy", "src", "element 15 of tile from was never written in all of partitions 0..95"});
  check_refused(program(95, 16), {"R14", "tensor_copy", "src", "element 0 of tile from was never written"});
  check_refused(program(64, 16), {"R14", "tensor_copy", "src", "element 0 of tile from was never written"});
  check_accepted(program(96, 16));
}

TEST_CASE("R14: every operand that is read is checked", "[nki][validate]") {
  using A = Access;
  struct Reader {
    char const* keyword;
    Instruction (*write)(A x, A hole, A dst, A in_psum, A column);
  };
  // `column` is the first column of the tile with the hole.
  auto const reader = GENERATE(
      Reader{"stationary", [](A x, A hole, A, A in_psum, A) { return Instruction(MatMul{in_psum, hole, x}); }},
      Reader{"moving", [](A x, A hole, A, A in_psum, A) { return Instruction(MatMul{in_psum, x, hole}); }},
      Reader{"data", [](A, A hole, A, A in_psum, A) { return Instruction(Transpose{in_psum, hole}); }},
      Reader{"src", [](A, A hole, A dst, A, A) { return Instruction(DmaCopy{dst, hole}); }},
      Reader{"data", [](A, A hole, A dst, A, A) { return Instruction(Activation{.dst = dst, .data = hole}); }},
      Reader{"bias", [](A x, A, A dst, A,
                        A column) { return Instruction(Activation{.dst = dst, .data = x, .bias = column}); }},
      Reader{"scale", [](A x, A, A dst, A,
                         A column) { return Instruction(Activation{.dst = dst, .data = x, .scale = column}); }},
      Reader{"data1", [](A x, A hole, A dst, A, A) { return Instruction(TensorTensor{dst, hole, x}); }},
      Reader{"data2", [](A x, A hole, A dst, A, A) { return Instruction(TensorTensor{dst, x, hole}); }},
      Reader{"operand0", [](A x, A, A dst, A,
                            A column) { return Instruction(TensorScalar{.dst = dst, .data = x, .operand0 = column}); }},
      Reader{"operand1", [](A x, A hole, A dst, A, A) {
               return Instruction(ScalarTensorTensor{.dst = dst, .data = x, .operand1 = hole});
             }},
      Reader{"data", [](A, A hole, A dst, A, A) {
               return Instruction(TensorReduce{A(dst.buffer, {{1, 4}, {1, 1}}), Operator::add, hole});
             }},
      Reader{"src", [](A, A hole, A dst, A, A) { return Instruction(TensorCopy{dst, hole}); }},
      Reader{"data", [](A, A hole, A dst, A, A) { return Instruction(Reciprocal{dst, hole}); }},
      Reader{"on_true_tile", [](A x, A hole, A dst, A, A) {
               A const bound(x.buffer, {{1, 4}, {1, 1}});
               return Instruction(RangeSelect{.dst = dst, .on_true_tile = hole, .bound0 = bound, .bound1 = bound});
             }},
      Reader{"bound0", [](A x, A, A dst, A, A column) {
               A const bound(x.buffer, {{1, 4}, {1, 1}});
               return Instruction(RangeSelect{.dst = dst, .on_true_tile = x, .bound0 = column, .bound1 = bound});
             }},
      Reader{"bound1", [](A x, A, A dst, A, A column) {
               A const bound(x.buffer, {{1, 4}, {1, 1}});
               return Instruction(RangeSelect{.dst = dst, .on_true_tile = x, .bound0 = bound, .bound1 = column});
             }});
  INFO(reader.keyword);
  auto const program = [&](Index undefined) {
    Draft draft;
    TileHandle const x = draft.filled("x", 4, 4), hole = draft.tile("hole", Memory::sbuf, 4, 4, ElementType::float32),
                     dst = draft.tile("dst", Memory::sbuf, 4, 4, ElementType::float32),
                     in_psum = draft.tile("in_psum", Memory::psum, 4, 4, ElementType::float32);
    TensorHandle const ones = draft.input("ones", {16});
    for (Index i = 0; i < 16; ++i)
      if (i != undefined) draft.emit(DmaCopy{hole.part(i / 4, 1, i % 4, 1), ones.pattern(i, {{1, 1}, {1, 1}})});
    draft.emit(reader.write(x.whole(), hole.whole(), dst.whole(), in_psum.whole(), hole.column(0)));
    return draft.done();
  };
  check_accepted(program(-1));
  Program const refused = program(8);
  check_refused(refused, {"R14", std::string(name_of(std::get<Instruction>(refused.body.back().content))),
                          reader.keyword, "element 0 of tile hole was never written in all of partitions 0..3"});
}

TEST_CASE("R14: a tile may be filled piece by piece", "[nki][validate]") {
  auto const program = [](std::vector<Index> const& quadrants, Index stride) {
    Draft draft;
    TileHandle const from = draft.tile("from", Memory::sbuf, 128, 16, ElementType::float32);
    for (Index quadrant : quadrants) {
      draft.fill(from.pattern(32 * quadrant, 32, 0, {{stride, 8}}));
      draft.fill(from.pattern(32 * quadrant, 32, 1, {{stride, 8}}));
    }
    TileHandle const to = draft.tile("to", Memory::sbuf, 128, 16, ElementType::float32);
    draft.emit(TensorCopy{to.whole(), from.whole()});
    return draft.done();
  };
  check_refused(program({3, 0, 2}, 2), {"R14", "tensor_copy", "src", "element 0 of tile from"});
  check_refused(program({3, 0, 2, 1}, 1), {"R14", "tensor_copy", "src", "element 9 of tile from"});
  check_accepted(program({3, 0, 2, 1}, 2));
}

TEST_CASE("R14: a newly allocated tile of a buffer is undefined", "[nki][validate]") {
  auto const program = [](bool fill_again) {
    Draft draft;
    TileHandle const tile = draft.filled("tile", 32, 8);
    draft.allocate(tile);
    if (fill_again) draft.fill(tile.whole());
    TileHandle const to = draft.tile("to", Memory::sbuf, 32, 8, ElementType::float32);
    draft.emit(TensorCopy{to.whole(), tile.whole()});
    return draft.done();
  };
  check_refused(program(false), {"R14", "tensor_copy", "src", "element 0 of tile tile"});
  check_accepted(program(true));
}

TEST_CASE("R14: every element of a tensor must be written before it is read", "[nki][validate]") {
  auto const program = [](Index written_columns, Index read_rows) {
    Draft draft;
    TensorHandle const tensor = draft.scratch("scratch", {50, 70});
    TileHandle const tile = draft.filled("tile", 50, 70);
    draft.emit(DmaCopy{tensor.pattern(0, {{70, 50}, {1, written_columns}}), tile.columns(0, written_columns)});
    TileHandle const back = draft.tile("back", Memory::sbuf, 50, 70, ElementType::float32);
    draft.emit(DmaCopy{back.part(0, read_rows, 0, 69), tensor.pattern(0, {{70, read_rows}, {1, 69}})});
    return draft.done();
  };
  check_refused(program(68, 50), {"R14", "dma_copy", "src", "element 68 of tensor scratch was never written"});
  check_accepted(program(69, 50));
  check_accepted(program(70, 50));
}

TEST_CASE("R14: a tensor written by rows and read by columns", "[nki][validate]") {
  auto const program = [](Index rows) {
    Draft draft;
    TensorHandle const tensor = draft.scratch("scratch", {40, 6});
    TileHandle const tile = draft.filled("tile", 40, 6);
    draft.emit(DmaCopy{tensor.pattern(0, {{6, rows}, {1, 6}}), tile.part(0, rows, 0, 6)});
    TileHandle const flipped = draft.tile("flipped", Memory::sbuf, 6, 40, ElementType::float32);
    draft.emit(DmaCopy{flipped.whole(), tensor.pattern(0, {{1, 6}, {6, 40}})});
    return draft.done();
  };
  check_refused(program(39), {"R14", "dma_copy", "src", "element 234 of tensor scratch was never written"});
  check_accepted(program(40));
}

TEST_CASE("R14: a register must be set before use, and may then hold any rank", "[nki][validate]") {
  auto const program = [](bool ask_first, Index filled) {
    Draft draft(1, 4);
    TensorHandle const table = draft.scratch("table", {1, 4});
    TileHandle const ranks = draft.filled("ranks", 1, 4),
                     mine = draft.tile("mine", Memory::sbuf, 1, 1, ElementType::float32);
    draft.emit(DmaCopy{table.pattern(0, {{4, 1}, {1, filled}}), ranks.columns(0, filled)});
    int const number = draft.make_register();
    Access at_rank = table.pattern(0, {{1, 1}, {1, 1}});
    at_rank.register_offset = RegisterOffset{number, 1};
    if (ask_first) draft.emit(ProcessingRank{number, 0});
    draft.emit(DmaCopy{mine.whole(), at_rank});
    return draft.done();
  };
  check_refused(program(false, 4), {"R14", "dma_copy", "src", "register 0 is used before it was set"});
  check_refused(program(true, 3), {"R14", "dma_copy", "src", "element 3 of tensor table was never written"});
  check_accepted(program(true, 4));
}

TEST_CASE("Tiles must be used after their allocation and before they are replaced", "[nki][validate]") {
  auto const early = [](bool allocate_first) {
    Draft draft;
    TileHandle const tile = draft.declare("tile", Memory::sbuf, 32, 8, ElementType::float32);
    if (allocate_first) draft.allocate(tile);
    draft.fill(tile.whole());
    return draft.done();
  };
  check_refused(early(false), {"lifetime", "memset", "dst", "tile tile, made 0 allocations ago, was not made yet"});
  check_accepted(early(true));

  auto const late = [](int rotation) {
    Draft draft;
    TileHandle const tile = draft.declare("tile", Memory::sbuf, 32, 8, ElementType::float32, rotation);
    TileHandle const to = draft.tile("to", Memory::sbuf, 32, 8, ElementType::float32);
    for (int i = 0; i < 3; ++i) {
      draft.allocate(tile);
      draft.fill(tile.whole());
    }
    draft.emit(TensorCopy{to.whole(), tile.before(2).whole()});
    return draft.done();
  };
  check_refused(late(2), {"lifetime", "tensor_copy", "src", "tile tile made 2 allocations ago; the last 2 are kept"});
  check_accepted(late(3));
}
