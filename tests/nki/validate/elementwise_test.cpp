// Validator: elementwise instructions (R6 to R8, R18), engines, operators and shapes.
#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

TEST_CASE("R6: memories that each engine reaches", "[nki][validate]") {
  auto const copy = [](Engine engine, Memory memory) {
    Draft draft;
    TileHandle const from = draft.filled("from", 32, 8, ElementType::float32, memory);
    TileHandle const to = draft.tile("to", Memory::sbuf, 32, 8, ElementType::float32);
    draft.emit(TensorCopy{to.whole(), from.whole(), engine});
    return draft.done();
  };
  check_refused(copy(Engine::gpsimd, Memory::psum),
                {"R6", "tensor_copy", "src", "from is in psum; gpsimd reaches sbuf only"});
  check_accepted(copy(Engine::gpsimd, Memory::sbuf));
  check_accepted(copy(Engine::vector, Memory::psum));
  check_accepted(copy(Engine::scalar, Memory::psum));

  auto const from_tensor = [](bool load_first) {
    Draft draft;
    TensorHandle const tensor = draft.input("q", {32, 8});
    TileHandle const from = draft.tile("from", Memory::sbuf, 32, 8, ElementType::float32);
    draft.emit(DmaCopy{from.whole(), tensor.pattern(0, {{8, 32}, {1, 8}})});
    TileHandle const to = draft.tile("to", Memory::sbuf, 32, 8, ElementType::float32);
    draft.emit(TensorCopy{to.whole(), load_first ? from.whole() : tensor.pattern(0, {{8, 32}, {1, 8}})});
    return draft.done();
  };
  check_refused(from_tensor(false), {"R6", "tensor_copy", "src", "q is in shared_hbm; vector reaches sbuf and psum"});
  check_accepted(from_tensor(true));

  auto const indices = [](Memory memory) {
    Draft draft;
    TileHandle const dst = draft.tile("indices", memory, 32, 8, ElementType::float32);
    draft.emit(Iota{dst.whole(), {{1, 8}}, 0, 1});
    return draft.done();
  };
  check_refused(indices(Memory::psum), {"R6", "iota", "dst", "indices is in psum; gpsimd reaches sbuf only"});
  check_accepted(indices(Memory::sbuf));
}

TEST_CASE("R7: at most one of two inputs is in PSUM", "[nki][validate]") {
  auto const add = [](Memory second) {
    Draft draft;
    TileHandle const a = draft.filled("a", 32, 8, ElementType::float32, Memory::psum);
    TileHandle const b = draft.filled("b", 32, 8, ElementType::float32, second);
    draft.emit(TensorTensor{a.whole(), a.whole(), b.whole(), Operator::add});
    return draft.done();
  };
  check_refused(add(Memory::psum),
                {"R7", "tensor_tensor", "data2", "is in psum (b), and so is data1 (a); at most one"});
  check_accepted(add(Memory::sbuf));

  auto const scaled = [](Memory second) {
    Draft draft;
    TileHandle const a = draft.filled("a", 32, 8, ElementType::float32, Memory::psum);
    TileHandle const b = draft.filled("b", 32, 8, ElementType::float32, second);
    ScalarTensorTensor update;
    update.dst = update.data = a.whole();
    update.operand0 = 2.0f;
    update.operand1 = b.whole();
    draft.emit(update);
    return draft.done();
  };
  check_refused(scaled(Memory::psum),
                {"R7", "scalar_tensor_tensor", "operand1", "is in psum (b), and so is data (a); at most one"});
  check_accepted(scaled(Memory::sbuf));
}

TEST_CASE("R8: columns have one element per partition, of float32 where required", "[nki][validate]") {
  auto const scaled = [](Index rows, Index columns, ElementType type) {
    Draft draft;
    TileHandle const tile = draft.filled("tile", 64, 8);
    TileHandle const factor = draft.filled("factor", 64, 8, type);
    TensorScalar scale;
    scale.dst = scale.data = tile.whole();
    scale.operand0 = factor.part(0, rows, 0, columns);
    draft.emit(scale);
    return draft.done();
  };
  check_refused(scaled(64, 2, ElementType::float32),
                {"R8", "tensor_scalar", "operand0", "is 64 x 2; accepted: 64 x 1"});
  check_refused(scaled(32, 1, ElementType::float32),
                {"R8", "tensor_scalar", "operand0", "is 32 x 1; accepted: 64 x 1"});
  check_refused(scaled(64, 1, ElementType::bfloat16),
                {"R8", "tensor_scalar", "operand0", "is bfloat16; accepted: a number or a column of float32"});
  check_accepted(scaled(64, 1, ElementType::float32));

  auto const activation = [](ElementType bias_type, ElementType scale_type, Index sums) {
    Draft draft;
    TileHandle const tile = draft.filled("tile", 64, 8);
    TileHandle const bias = draft.filled("bias", 64, 1, bias_type), scale = draft.filled("scale", 64, 1, scale_type);
    TileHandle const sum = draft.tile("sum", Memory::sbuf, 64, 2, ElementType::float32);
    Activation exp{tile.whole(),  Function::exp, tile.whole(),         bias.whole(),
                   scale.whole(), Operator::add, sum.columns(0, sums), ReduceCommand::reset_reduce};
    draft.emit(exp);
    return draft.done();
  };
  auto const f32 = ElementType::float32, bf16 = ElementType::bfloat16;
  check_accepted(activation(bf16, f32, 1));
  check_refused(activation(bf16, bf16, 1),
                {"R8", "activation", "scale", "is bfloat16; accepted: a number or a column of float32"});
  check_refused(activation(bf16, f32, 2), {"R8", "activation", "reduce_res", "is 64 x 2; accepted: 64 x 1"});
}

TEST_CASE("R18: features that a generation lacks", "[nki][validate]") {
  auto const narrow = [](Target target, ElementType type) {
    Draft draft(1, 1, target);
    TileHandle const from = draft.filled("from", 32, 8);
    TileHandle const to = draft.tile("to", Memory::psum, 32, 8, type);
    draft.emit(TensorCopy{to.whole(), from.whole()});
    return draft.done();
  };
  check_refused(narrow(Target::trn2, ElementType::bfloat16),
                {"R18", "tensor_copy", "dst", "writes bfloat16 to psum tile to; trn2 writes 4-byte types there"});
  check_accepted(narrow(Target::trn2, ElementType::float32));
  check_accepted(narrow(Target::trn3, ElementType::bfloat16));
  check_refused(
      narrow(Target::trn3, ElementType::float16),
      {"R18", "tensor_copy", "dst", "writes float16 to psum tile to; trn3 writes 4-byte types and bfloat16 there"});
}

TEST_CASE("Each engine accepts only its own instructions", "[nki][validate]") {
  auto const with = [](auto instruction, Engine engine) {
    Draft draft;
    TileHandle const a = draft.filled("a", 32, 8);
    for_each_access(instruction,
                    [&](std::string_view, Use, Access const& access) { const_cast<Access&>(access) = a.whole(); });
    instruction.engine = engine;
    draft.emit(instruction);
    return draft.done();
  };
  check_refused(with(TensorTensor{}, Engine::scalar),
                {"engine", "tensor_tensor", "engine", "scalar; accepted: vector, gpsimd"});
  check_refused(with(TensorScalar{}, Engine::tensor),
                {"engine", "tensor_scalar", "engine", "tensor; accepted: scalar, vector"});
  check_refused(with(TensorScalar{}, Engine::gpsimd),
                {"engine", "tensor_scalar", "engine", "gpsimd; accepted: scalar, vector"});
  check_refused(with(TensorCopy{}, Engine::sync),
                {"engine", "tensor_copy", "engine", "sync; accepted: scalar, vector, gpsimd"});
  check_refused(with(Memset{}, Engine::scalar), {"engine", "memset", "engine", "scalar; accepted: vector, gpsimd"});
  for (Engine engine : {Engine::vector, Engine::gpsimd}) {
    check_accepted(with(TensorTensor{}, engine));
    check_accepted(with(TensorCopy{}, engine));
    check_accepted(with(Memset{}, engine));
  }
  for (Engine engine : {Engine::vector, Engine::scalar}) check_accepted(with(TensorScalar{}, engine));
  check_accepted(with(TensorCopy{}, Engine::scalar));
}

TEST_CASE("Operators accepted by engines and instructions", "[nki][validate]") {
  auto const on_scalar = [](Operator op0, std::optional<Operator> op1) {
    Draft draft;
    TileHandle const tile = draft.filled("tile", 32, 8);
    TensorScalar work;
    work.dst = work.data = tile.whole();
    work.op0 = op0;
    work.op1 = op1;
    work.engine = Engine::scalar;
    draft.emit(work);
    return draft.done();
  };
  check_refused(on_scalar(Operator::subtract, std::nullopt),
                {"operator", "tensor_scalar", "op0", "subtract; scalar accepts multiply then add, multiply, or add"});
  check_refused(on_scalar(Operator::add, Operator::multiply),
                {"operator", "tensor_scalar", "op0", "add then multiply; scalar accepts"});
  check_accepted(on_scalar(Operator::multiply, Operator::add));
  check_accepted(on_scalar(Operator::add, std::nullopt));

  auto const unused = [](std::optional<Operator> op1) {
    Draft draft;
    TileHandle const tile = draft.filled("tile", 32, 8), column = draft.filled("column", 32, 1);
    TensorScalar work;
    work.dst = work.data = tile.whole();
    work.op1 = op1;
    work.operand1 = column.whole();
    draft.emit(work);
    return draft.done();
  };
  check_refused(unused(std::nullopt), {"operator", "tensor_scalar", "operand1", "op1, which uses it, is missing"});
  check_accepted(unused(Operator::add));

  auto const activation = [](std::optional<Operator> reduce_op) {
    Draft draft;
    TileHandle const tile = draft.filled("tile", 32, 8),
                     sum = draft.tile("sum", Memory::sbuf, 32, 1, ElementType::float32);
    draft.emit(Activation{tile.whole(), Function::exp, tile.whole(), 0.0f, 1.0f, reduce_op, sum.whole(),
                          ReduceCommand::reset_reduce});
    return draft.done();
  };
  check_refused(activation(Operator::maximum), {"operator", "activation", "reduce_op", "maximum; accepted: add"});
  check_refused(activation(std::nullopt),
                {"operator", "activation", "reduce_op", "is missing, but reduce_res is given; accepted: add"});
  check_accepted(activation(Operator::add));
}

TEST_CASE("Operands of one instruction have the same shape", "[nki][validate]") {
  auto const copy = [](Access const& dst, Access const& src, Draft draft) {
    draft.emit(TensorCopy{dst, src});
    return draft.done();
  };
  Draft draft;
  TileHandle const a = draft.filled("a", 64, 12);
  TileHandle const b = draft.filled("b", 64, 12);
  check_refused(copy(a.columns(0, 6), b.columns(0, 7), draft),
                {"shape", "tensor_copy", "src", "is 64 x 7; dst is 64 x 6"});
  check_refused(copy(a.whole(), b.part(0, 32, 0, 12), draft),
                {"shape", "tensor_copy", "src", "is 32 x 12; dst is 64 x 12"});
  check_accepted(copy(a.pattern(0, 64, 0, {{6, 2}, {1, 6}}), b.pattern(0, 64, 0, {{4, 3}, {1, 4}}), draft));
}

TEST_CASE("Patterns of iota and nc_stream_shuffle fit their tiles", "[nki][validate]") {
  auto const iota = [](std::vector<Axis> pattern, Index offset) {
    Draft draft;
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 32, 12, ElementType::float32);
    draft.emit(Iota{tile.whole(), std::move(pattern), offset, 1});
    return draft.done();
  };
  check_refused(iota({{4, 3}, {1, 3}}, 0), {"shape", "iota", "pattern", "counts 9 elements; dst has 12 per partition"});
  check_refused(iota({{1, 12}}, 2147483647 - 41),
                {"R17", "iota", "offset", "2147483606..2147483648; they are counted in int32"});
  // Negative counts with the right product, and steps whose sum overflows to 0.
  check_refused(iota({{1, -3}, {1, -4}}, 0),
                {"R17", "iota", "pattern", "an axis of -3 elements; at least 1 is needed"});
  check_refused(iota({{1, 0}, {1, 12}}, 0), {"R17", "iota", "pattern", "an axis of 0 elements"});
  check_refused(iota({{Index{1} << 62, 12}}, 0), {"R17", "iota", "offset", "they are counted in int32"});
  check_accepted(iota({{4, 3}, {1, 4}}, 0));
  check_accepted(iota({{1, 12}}, 2147483647 - 42));

  auto const shuffle = [](Index dst_partitions, Index src_partitions, ElementType type) {
    Draft draft;
    TileHandle const src = draft.filled("src", 128, 2), dst = draft.filled("dst", 128, 2, type);
    draft.emit(StreamShuffle{dst.part(64, dst_partitions, 0, 2), src.part(0, src_partitions, 0, 2)});
    return draft.done();
  };
  auto const f32 = ElementType::float32;
  check_refused(shuffle(33, 1, f32), {"shape", "nc_stream_shuffle", "dst", "33 partitions; at most 32, a quadrant"});
  check_refused(shuffle(32, 2, f32), {"shape", "nc_stream_shuffle", "src", "2 partitions; accepted: 1"});
  check_refused(shuffle(32, 1, ElementType::bfloat16),
                {"shape", "nc_stream_shuffle", "dst", "is bfloat16; src is float32"});
  check_accepted(shuffle(32, 1, f32));
}
