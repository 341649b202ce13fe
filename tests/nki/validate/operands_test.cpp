// Validator: partitions, capacity, bounds and access patterns of operands (R1, R2, R17).
#include <limits>

#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

TEST_CASE("R1: a tile has at most 128 partitions", "[nki][validate]") {
  auto const program = [](Index partitions) {
    Draft draft;
    draft.tile("tile", Memory::sbuf, partitions, 4, ElementType::float32);
    return draft.done();
  };
  check_refused(program(129), {"R1", "program", "tile", "129 partitions; at most 128"});
  check_accepted(program(128));
}

TEST_CASE("R1: the number of partitions restricts the start partition", "[nki][validate]") {
  auto const program = [](Index start, Index count) {
    Draft draft;
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 128, 4, ElementType::float32);
    draft.emit(Memset{tile.part(start, count, 0, 4), 0.0f});
    return draft.done();
  };
  check_refused(program(32, 64),
                {"R1", "memset", "dst", "64 partitions from partition 32; they may start at multiples of 64"});
  check_refused(program(64, 33 + 32),
                {"R1", "memset", "dst", "65 partitions from partition 64; they may start at multiples of 128"});
  check_refused(program(16, 32),
                {"R1", "memset", "dst", "32 partitions from partition 16; they may start at multiples of 32"});
  for (auto const& [start, count] : {std::pair{0, 128}, {64, 64}, {0, 33}, {64, 33}, {96, 32}, {32, 1}})
    check_accepted(program(start, count));
}

TEST_CASE("R1: DMA may begin at any partition", "[nki][validate]") {
  auto const program = [](Index start, Index rows) {
    Draft draft;
    TensorHandle const q = draft.input("q", {128, 4});
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 128, 4, ElementType::float32);
    draft.emit(DmaCopy{tile.part(start, rows, 0, 4), q.pattern(0, {{4, rows}, {1, 4}})});
    draft.emit(DmaCopy{tile.part(0, start, 0, 4), q.pattern(0, {{4, start}, {1, 4}})});
    draft.emit(TensorCopy{tile.part(0, 64, 0, 4), tile.part(64, 64, 0, 4)});
    return draft.done();
  };
  check_accepted(program(77, 51));
  check_refused(program(77, 50),
                {"R14", "tensor_copy", "src", "element 0 of tile tile was never written in all of partitions 64..127"});
  check_refused(program(77, 52), {"R2", "dma_copy", "dst", "partitions 77..128 of tile tile, which has 128"});
}

TEST_CASE("R2: a start partition whose sum with the partitions overflows is outside its tile", "[nki][validate]") {
  constexpr Index largest = std::numeric_limits<Index>::max();
  Draft draft;
  TensorHandle const q = draft.input("q", {32, 4});
  TileHandle const tile = draft.tile("tile", Memory::sbuf, 32, 4, ElementType::float32);
  draft.emit(DmaCopy{tile.part(largest, 32, 0, 4), q.whole()});
  check_refused(draft.done(), {"R2", "dma_copy", "dst", "partitions 9223372036854775807.."});
}

TEST_CASE("R2: an operand must be inside its tile, in partitions and in elements", "[nki][validate]") {
  auto const partitions = [](Index of_tile) {
    Draft draft;
    TileHandle const tile = draft.tile("tile", Memory::sbuf, of_tile, 4, ElementType::float32);
    draft.emit(Memset{tile.part(64, 33, 0, 4), 0.0f});
    return draft.done();
  };
  check_refused(partitions(96), {"R2", "memset", "dst", "partitions 64..96 of tile tile, which has 96"});
  check_accepted(partitions(97));

  auto const elements = [](Index step) {
    Draft draft;
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 128, 64, ElementType::float32);
    draft.loop("column", 4, [&](Affine column) { draft.emit(Memset{tile.columns(column * step, 16), 0.0f}); });
    return draft.done();
  };
  check_refused(elements(17), {"R2", "memset", "dst", "elements 0..66 of a partition of tile tile, which has 64"});
  check_refused(elements(-1), {"R2", "memset", "dst", "elements -3..15 of a partition"});
  check_accepted(elements(16));
}

TEST_CASE("R2: offsets in code of one core are bounded for that core", "[nki][validate]") {
  auto const program = [](int core) {
    Draft draft(2);
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 128, 16, ElementType::float32);
    draft.on_core(core, [&] { draft.emit(Memset{tile.columns(Affine::of(core_variable, 8), 16), 0.0f}); });
    return draft.done();
  };
  check_refused(program(1), {"R2", "memset", "dst", "elements 8..23"});
  check_accepted(program(0));
}

TEST_CASE("R2: all SBUF tiles together must fit, counted once per place of the rotation", "[nki][validate]") {
  Index const usable = hardware_of(Target::trn2).limits.sbuf_bytes;
  auto const program = [](Index bytes) {
    Draft draft;
    draft.declare("small", Memory::sbuf, 1, 1000, ElementType::float32, 3);
    draft.declare("large", Memory::sbuf, 128, (bytes - 12000) / 2, ElementType::bfloat16);
    return draft.done();
  };
  check_refused(program(usable + 2),
                {"R2", "program", "large",
                 annulus::detail::message_of("take ", usable + 2, " bytes per partition; at most ", usable)});
  check_accepted(program(usable));
}

TEST_CASE("R2: every place of a PSUM tile takes whole banks", "[nki][validate]") {
  auto const program = [](Index elements) {
    Draft draft;
    draft.declare("scores", Memory::psum, 128, elements, ElementType::float32, 2);
    draft.declare("small", Memory::psum, 128, 1, ElementType::float32, 4);
    return draft.done();
  };
  check_refused(program(1025), {"R2", "program", "small", "take 10 banks; at most 8"});
  check_accepted(program(1024));
}

TEST_CASE("R2: extents whose product overflows are refused as too large", "[nki][validate]") {
  auto const program = [](Memory memory, std::vector<Index> shape) {
    Draft draft;
    draft.tensor("large", std::move(shape), ElementType::float32, Role::internal, memory);
    return draft.done();
  };
  constexpr Index large = Index{1} << 40;
  check_refused(program(Memory::shared_hbm, {large, large}),
                {"R2", "program", "large", "all tensors in HBM take 9223372036854775807 bytes; at most 103079215104"});
  check_refused(program(Memory::private_hbm, {large, 4}),
                {"R2", "program", "large", "all tensors in HBM take 17592186044416 bytes; at most 103079215104"});
  check_accepted(program(Memory::shared_hbm, {1024, 1024}));
  Draft sbuf;
  sbuf.declare("large", Memory::sbuf, 128, Index{1} << 61, ElementType::float32);
  check_refused(sbuf.done(), {"R2", "program", "large", "bytes per partition; at most 212984"});
  Draft psum;
  psum.declare("large", Memory::psum, 128, Index{1} << 61, ElementType::float32);
  check_refused(psum.done(), {"R2", "program", "large", "banks; at most 8"});
}

TEST_CASE("R17: a pattern whose reach overflows is outside its tensor", "[nki][validate]") {
  auto const program = [](Index stride, Index factor) {
    Draft draft;
    TensorHandle const q = draft.input("q", {4, 8});
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 4, 8, ElementType::float32);
    draft.loop("i", 2, [&](Affine i) {
      draft.emit(DmaCopy{tile.whole(), q.pattern(i * factor, {{stride, 4}, {1, 8}})});
    });
    return draft.done();
  };
  check_accepted(program(8, 0));
  check_refused(program(Index{1} << 62, 0), {"R17", "dma_copy", "src", "elements 0..9223372036854775807"});
  check_refused(program(8, std::numeric_limits<Index>::max()),
                {"R17", "dma_copy", "src", "elements 0..9223372036854775807"});
}

TEST_CASE("R17: strides, counts, axes and elements of a pattern", "[nki][validate]") {
  auto const stride = [](Index of_axis) {
    Draft draft;
    TileHandle const tile = draft.filled("tile", 1, 40000, ElementType::bfloat16);
    TileHandle const pair = draft.tile("pair", Memory::sbuf, 1, 2, ElementType::bfloat16);
    draft.emit(TensorCopy{pair.whole(), tile.pattern(0, 1, of_axis < 0 ? 10 : 0, {{of_axis, 2}})});
    return draft.done();
  };
  check_refused(stride(32768), {"R17", "tensor_copy", "src", "stride 32768; accepted: 0 to 32767"});
  check_refused(stride(-1), {"R17", "tensor_copy", "src", "stride -1; accepted: 0 to 32767"});
  check_accepted(stride(32767));
  check_accepted(stride(0));

  auto const elements = [](Index count) {
    Draft draft;
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 1, 66000, ElementType::bfloat16);
    draft.emit(Memset{tile.pattern(0, 1, 0, {{count / 4, 4}, {1, count / 4}}), 0.0f});
    return draft.done();
  };
  check_refused(elements(65540), {"R17", "memset", "dst", "65540 elements per partition in sbuf; at most 65536"});
  check_accepted(elements(65536));

  auto const count = [](Index of_axis) {
    Draft draft;
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 1, 65536, ElementType::bfloat16);
    draft.emit(Memset{tile.columns(0, of_axis), 0.0f});
    return draft.done();
  };
  check_refused(count(65536), {"R17", "memset", "dst", "an axis of 65536 elements; at most 65535"});
  check_accepted(count(65535));

  Draft without_free_axis;
  TileHandle const tile = without_free_axis.tile("tile", Memory::sbuf, 4, 4, ElementType::float32);
  without_free_axis.emit(Memset{Access(tile.buffer, {{4, 4}}), 0.0f});
  check_refused(without_free_axis.done(), {"R17", "memset", "dst", "0 free axes; 1 to 4"});
}

TEST_CASE("An access pattern cannot be made with more than five axes", "[nki]") {
  CHECK_NOTHROW(Access(0, {{1, 2}, {1, 2}, {1, 2}, {1, 2}, {1, 2}}));
  CHECK_THROWS_AS(Access(0, {{1, 2}, {1, 2}, {1, 2}, {1, 2}, {1, 2}, {1, 2}}), ShapeError);
  CHECK_THROWS_AS(Access(0, Axis{1, 2}, std::vector<Axis>(5)), ShapeError);
}

TEST_CASE("R17: a destination must name each element once", "[nki][validate]") {
  auto const program = [](Index stride) {
    Draft draft;
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 4, 64, ElementType::float32);
    draft.emit(Memset{tile.pattern(0, 4, 0, {{stride, 3}, {1, 8}}), 0.0f});
    return draft.done();
  };
  check_refused(program(7), {"R17", "memset", "dst", "names an element twice"});
  check_refused(program(0), {"R17", "memset", "dst", "names an element twice"});
  check_accepted(program(8));
}

TEST_CASE("R17: patterns in HBM must be inside the tensor", "[nki][validate]") {
  auto const program = [](Index step) {
    Draft draft;
    TensorHandle const tensor = draft.input("q", {64, 100});
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 64, 10, ElementType::float32);
    draft.loop("column", 10, [&](Affine column) {
      draft.emit(DmaCopy{tile.whole(), tensor.pattern(column * step, {{100, 64}, {1, 10}})});
    });
    return draft.done();
  };
  check_refused(program(11), {"R17", "dma_copy", "src", "elements 0..6408 of tensor q, which has 6400"});
  check_accepted(program(10));
}

TEST_CASE("R17: a register offset is bounded for all ranks, and accepted by dma_copy only", "[nki][validate]") {
  auto const program = [](Index entries) {
    Draft draft(1, 4);
    TensorHandle const table = draft.input("table", {1, entries});
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 1, 1, ElementType::float32);
    ProcessingRank const rank{draft.make_register(), 0};
    draft.emit(rank);
    Access at_rank = table.pattern(0, {{1, 1}, {1, 1}});
    at_rank.register_offset = RegisterOffset{rank.register_number, 1};
    draft.emit(DmaCopy{tile.whole(), at_rank});
    return draft.done();
  };
  check_refused(program(3),
                {"R17", "dma_copy", "src", "elements 0..3 of tensor table, which has 3; its register holds up to 3"});
  check_accepted(program(4));

  Program wrong_dimension = program(4);
  std::get<DmaCopy>(std::get<Instruction>(wrong_dimension.body.back().content)).src.register_offset->dimension = 2;
  check_refused(wrong_dimension, {"R17", "dma_copy", "src", "dimension 2 of tensor table, which has 2"});

  auto const transposed = [](bool by_register) {
    Draft draft(1, 2);
    TensorHandle const table = draft.input("table", {2, 16, 16}, ElementType::bfloat16);
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 16, 16, ElementType::bfloat16);
    draft.emit(ProcessingRank{draft.make_register(), 0});
    Access at_rank = table.pattern(0, {{16, 16}, {1, 16}});
    if (by_register) at_rank.register_offset = RegisterOffset{0, 0};
    draft.emit(DmaTranspose{tile.whole(), at_rank});
    return draft.done();
  };
  check_refused(transposed(true), {"R17", "dma_transpose", "src", "accepted in dma_copy only"});
  check_accepted(transposed(false));
}

TEST_CASE("A register is loaded from one int32 in SBUF, and offsets are bounded for its values", "[nki][validate]") {
  auto const program = [](Index largest, ElementType type = ElementType::int32, Index elements = 1) {
    Draft draft(1, 1);
    TensorHandle const table = draft.input("table", {1, 64}), flags = draft.input("flags", {1, elements});
    TileHandle const flag = draft.tile("flag", Memory::sbuf, 1, elements, ElementType::float32),
                     word = draft.tile("word", Memory::sbuf, 1, elements, type),
                     row = draft.tile("row", Memory::sbuf, 1, 32, ElementType::float32);
    draft.emit(DmaCopy{flag.whole(), flags.whole()});
    draft.emit(TensorScalar{.dst = word.whole(), .data = flag.whole(), .operand0 = 32.0f});
    RegisterLoad const load{draft.make_register({.count = 2, .step = largest}), word.whole()};
    draft.emit(load);
    Access part = table.pattern(0, {{32, 1}, {1, 32}});
    part.register_offset = RegisterOffset{load.register_number, 1};
    draft.emit(DmaCopy{row.whole(), part});
    return draft.done();
  };
  check_accepted(program(32));
  check_refused(program(33), {"R17", "dma_copy", "src",
                              "elements 0..64 of tensor table, which has 64; its register holds up to 33"});
  check_refused(program(32, ElementType::float32), {"R8", "register_load", "src", "is float32; accepted: int32"});
  check_refused(program(32, ElementType::int32, 2), {"R8", "register_load", "src", "is 1 x 2; accepted: 1 x 1"});

  Draft copied(1, 1);
  TileHandle const word = copied.tile("word", Memory::sbuf, 1, 1, ElementType::int32);
  copied.emit(Memset{word.whole(), 1.0f});
  check_refused(copied.done(),
                {"form", "memset", "dst", "is int32; accepted: in tensor_scalar and register_load only"});
}
