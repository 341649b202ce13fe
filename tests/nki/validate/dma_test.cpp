// Validator: DMA instructions (R6, R12), inputs and outputs (R16).
#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

TEST_CASE("R6: DMA does not reach PSUM", "[nki][validate]") {
  auto const program = [](bool evacuate) {
    Draft draft;
    TensorHandle const output = draft.tensor("o", {32, 8}, ElementType::float32, Role::output);
    TileHandle const sum = draft.filled("sum", 32, 8, ElementType::float32, Memory::psum);
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 32, 8, ElementType::float32);
    draft.emit(TensorCopy{tile.whole(), sum.whole()});
    draft.emit(DmaCopy{output.whole(), evacuate ? tile.whole() : sum.whole()});
    return draft.done();
  };
  check_refused(program(false), {"R6", "dma_copy", "src", "sum is in psum; DMA reaches sbuf and HBM"});
  check_accepted(program(true));
}

TEST_CASE("src and dst of dma_copy have equal numbers of elements", "[nki][validate]") {
  auto const program = [](Index columns) {
    Draft draft;
    TensorHandle const q = draft.input("q", {32, 8});
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 32, 8, ElementType::float32);
    draft.emit(DmaCopy{tile.whole(), q.pattern(0, {{8, 32}, {1, columns}})});
    return draft.done();
  };
  check_refused(program(7), {"shape", "dma_copy", "src", "224 elements; dst has 256"});
  check_accepted(program(8));
}

TEST_CASE("R12: dma_transpose", "[nki][validate]") {
  struct Case {
    ElementType from = ElementType::bfloat16, to = ElementType::bfloat16;
    Index rows = 32, columns = 64;
    Index dst_elements = 32;
    Index begin = 0;
    Memory memory = Memory::sbuf;
  };
  auto const program = [](Case const& of) {
    Draft draft;
    TensorHandle const q = draft.input("q", {64, 256}, of.from);
    TileHandle const dst = draft.tile("dst", of.memory, 128, 64, of.to);
    draft.emit(DmaTranspose{dst.part(0, of.columns, of.begin, of.dst_elements),
                            q.pattern(0, {{256, of.rows}, {1, of.columns}})});
    return draft.done();
  };
  check_accepted(program({}));
  check_refused(program({.to = ElementType::float16}), {"R12", "dma_transpose", "dst", "is float16; src is bfloat16"});
  check_refused(program({.from = ElementType::float32, .to = ElementType::float32}),
                {"R12", "dma_transpose", "src", "is float32; accepted: types of 2 bytes"});
  check_refused(program({.dst_elements = 31}), {"R12", "dma_transpose", "dst", "is [64, 31]; src is [32, 64]"});
  check_refused(program({.rows = 24, .dst_elements = 24}),
                {"R12", "dma_transpose", "src", "first axis of 24; accepted: multiples of 16"});
  check_refused(program({.columns = 40}),
                {"R12", "dma_transpose", "src", "last axis of 40; accepted: multiples of 16 up to 128"});
  check_refused(program({.begin = 8}),
                {"R12", "dma_transpose", "dst", "begins at byte 16 of a partition; accepted: multiples of 32"});
  check_accepted(program({.begin = 16}));
  check_refused(program({.memory = Memory::psum}), {"R6", "dma_transpose", "dst", "dst is in psum; accepted: sbuf"});
}

TEST_CASE("R12: one dma_transpose transposes four tiles of weights", "[nki][validate]") {
  auto const program = [](bool with_inner_axis) {
    Draft draft;
    TileHandle const weights = draft.filled("weights", 128, 512, ElementType::bfloat16);
    TileHandle const flipped = draft.tile("flipped", Memory::sbuf, 128, 512, ElementType::bfloat16);
    Access const whole = flipped.pattern(0, 128, 0, {{1, 1}, {128, 4}, {1, 128}});
    draft.emit(DmaTranspose{with_inner_axis ? whole : flipped.pattern(0, 128, 0, {{128, 4}, {1, 128}}),
                            weights.pattern(0, 128, 0, {{1, 1}, {128, 4}, {1, 128}})});
    return draft.done();
  };
  check_refused(program(false), {"R12", "dma_transpose", "dst", "is [128, 4, 128]; src is [128, 1, 4, 128]"});
  check_accepted(program(true));
}

TEST_CASE("R16: inputs and outputs are in shared_hbm, and inputs are only read", "[nki][validate]") {
  auto const memory = [](Memory of, Role role) {
    Draft draft;
    TensorHandle const tensor = draft.tensor("t", {32, 8}, ElementType::float32, role, of);
    TileHandle const tile = draft.filled("tile", 32, 8);
    if (role == Role::output) draft.emit(DmaCopy{tensor.whole(), tile.whole()});
    return draft.done();
  };
  check_refused(memory(Memory::private_hbm, Role::output),
                {"R16", "program", "t", "is in private_hbm; inputs and outputs are in shared_hbm"});
  check_refused(memory(Memory::private_hbm, Role::input),
                {"R16", "program", "t", "is in private_hbm; inputs and outputs are in shared_hbm"});
  check_accepted(memory(Memory::shared_hbm, Role::output));
  check_accepted(memory(Memory::shared_hbm, Role::input));

  auto const overwrite = [](Role role) {
    Draft draft;
    TensorHandle const tensor = draft.tensor("t", {32, 8}, ElementType::float32, role);
    TileHandle const tile = draft.filled("tile", 32, 8);
    draft.emit(DmaCopy{tensor.whole(), tile.whole()});
    return draft.done();
  };
  check_refused(overwrite(Role::input),
                {"R16", "dma_copy", "dst", "writes input t; kernels are functions of their inputs"});
  check_accepted(overwrite(Role::internal));
}

TEST_CASE("R16: every element of an output must be written", "[nki][validate]") {
  auto const program = [](Index rows) {
    Draft draft;
    TensorHandle const output = draft.tensor("o", {64, 8}, ElementType::float32, Role::output);
    TileHandle const tile = draft.filled("tile", 1, 8);
    draft.loop("row", rows, [&](Affine row) {
      draft.emit(DmaCopy{output.pattern(row * 8, {{8, 1}, {1, 8}}), tile.whole()});
    });
    return draft.done();
  };
  check_refused(program(63), {"R16", "program", "o", "element 504 of 512 was never written"});
  check_accepted(program(64));
}
