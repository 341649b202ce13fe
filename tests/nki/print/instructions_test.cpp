// Printed NKI text of each instruction.
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/program/builder.hpp"
#include "nki/print/printed_text.hpp"
#include "support/catch.hpp"

namespace annulus::nki {
namespace {

/// One buffer of each kind, and the printed line of an instruction on them.
struct Bench {
  Builder b{"bench", Target::trn3, 2, 4};
  TensorHandle q = b.tensor("q", {2, 64, 512}, ElementType::bfloat16, Role::input);
  TensorHandle out = b.tensor("out", {128, 512}, ElementType::float32, Role::output);
  TensorHandle here = b.tensor("here", {128, 512}, ElementType::float32);
  TensorHandle there = b.tensor("there", {128, 512}, ElementType::float32);
  TileHandle x = b.declare("x", Memory::sbuf, 128, 512, ElementType::float32);
  TileHandle y = b.declare("y", Memory::sbuf, 128, 512, ElementType::float32);
  TileHandle narrow = b.declare("narrow", Memory::sbuf, 128, 512, ElementType::bfloat16);
  TileHandle column = b.declare("column", Memory::sbuf, 128, 1, ElementType::float32);
  TileHandle counts = b.declare("counts", Memory::sbuf, 128, 4, ElementType::float32);
  TileHandle bank = b.declare("bank", Memory::psum, 128, 512, ElementType::float32);
  int r = b.make_register();

  std::string print(Instruction instruction, Version version = Version::nki_0_3) {
    Builder alone = b;  // what repeats would become a loop
    alone.emit(std::move(instruction));
    auto const statements = statements_of(to_python(alone.program(), spelling_of(version)));
    return statements.empty() ? "" : statements.back();
  }
};

TEST_CASE("TensorE instructions") {
  Bench t;
  CHECK(t.print(MatMul{t.bank.part(0, 64, 0, 128), t.narrow.columns(64, 64), t.narrow.columns(128, 128), false}) ==
        "nisa.nc_matmul(dst=bank[0:64, 0:128], stationary=narrow[0:128, 64:128], moving=narrow[0:128, 128:256], "
        "accumulate=False)");
  CHECK(t.print(MatMul{t.bank.whole(), t.narrow.columns(0, 128), t.narrow.whole(), true}) ==
        "nisa.nc_matmul(dst=bank[0:128, 0:512], stationary=narrow[0:128, 0:128], moving=narrow[0:128, 0:512], "
        "accumulate=True)");
  CHECK(t.print(Transpose{t.bank.columns(0, 128), t.x.columns(0, 128)}) ==
        "nisa.nc_transpose(dst=bank[0:128, 0:128], data=x[0:128, 0:128], engine=nisa.engine.tensor)");
}

TEST_CASE("activation: only arguments that differ from NKI's defaults are printed") {
  Bench t;
  Activation plain;
  plain.dst = t.x.whole();
  plain.op = Function::log;
  plain.data = t.bank.whole();
  CHECK(t.print(plain) == "nisa.activation(dst=x[0:128, 0:512], op=nl.log, data=bank[0:128, 0:512])");
  Activation full = plain;
  full.op = Function::exp;
  full.bias = t.column.whole();
  full.scale = 0.1f;
  full.reduce_op = Operator::add;
  full.reduce_res = t.column.whole();
  full.reduce_cmd = ReduceCommand::reset_reduce;
  CHECK(t.print(full) ==
        "nisa.activation(dst=x[0:128, 0:512], op=nl.exp, data=bank[0:128, 0:512], bias=column[0:128, 0:1], scale=0.1, "
        "reduce_op=nl.add, reduce_res=column[0:128, 0:1], reduce_cmd=nisa.reduce_cmd.reset_reduce)");
}

TEST_CASE("VectorE instructions on tensors") {
  Bench t;
  CHECK(t.print(TensorTensor{t.x.whole(), t.x.whole(), t.bank.whole(), Operator::subtract}) ==
        "nisa.tensor_tensor(dst=x[0:128, 0:512], data1=x[0:128, 0:512], data2=bank[0:128, 0:512], op=nl.subtract, "
        "engine=nisa.engine.vector)");
  TensorScalar scale;
  scale.dst = t.x.whole();
  scale.data = t.bank.whole();
  scale.operand0 = -2.0f;
  CHECK(t.print(scale) ==
        "nisa.tensor_scalar(dst=x[0:128, 0:512], data=bank[0:128, 0:512], op0=nl.multiply, operand0=-2.0, "
        "engine=nisa.engine.vector)");
  scale.op0 = Operator::subtract;
  scale.op1 = Operator::maximum;
  scale.operand1 = t.column.whole();
  scale.engine = Engine::scalar;
  CHECK(t.print(scale) ==
        "nisa.tensor_scalar(dst=x[0:128, 0:512], data=bank[0:128, 0:512], op0=nl.subtract, operand0=-2.0, "
        "op1=nl.maximum, operand1=column[0:128, 0:1], engine=nisa.engine.scalar)");
  ScalarTensorTensor both;
  both.dst = t.x.whole();
  both.data = t.x.whole();
  both.operand0 = t.column.whole();
  both.operand1 = t.bank.whole();
  CHECK(t.print(both) ==
        "nisa.scalar_tensor_tensor(dst=x[0:128, 0:512], data=x[0:128, 0:512], op0=nl.multiply, "
        "operand0=column[0:128, 0:1], op1=nl.add, operand1=bank[0:128, 0:512])");
  CHECK(t.print(TensorCopy{t.narrow.whole(), t.bank.whole(), Engine::gpsimd}) ==
        "nisa.tensor_copy(dst=narrow[0:128, 0:512], src=bank[0:128, 0:512], engine=nisa.engine.gpsimd)");
  CHECK(t.print(Reciprocal{t.column.whole(), t.column.whole()}) ==
        "nisa.reciprocal(dst=column[0:128, 0:1], data=column[0:128, 0:1])");
}

TEST_CASE("reductions") {
  Bench t;
  CHECK(t.print(TensorReduce{t.column.whole(), Operator::maximum, t.x.whole(), 1, true}) ==
        "nisa.tensor_reduce(dst=column[0:128, 0:1], op=nl.maximum, data=x[0:128, 0:512], axis=1, negate=True)");
  INFO("a reduction depends on its axes, so they are kept even if a slice would name the same elements");
  CHECK(
      t.print(TensorReduce{t.y.columns(0, 4), Operator::add, t.x.pattern(0, 128, 0, {{128, 4}, {1, 128}}), 2}) ==
      "nisa.tensor_reduce(dst=y[0:128, 0:4], op=nl.add, data=x.ap(pattern=[[512, 128], [128, 4], [1, 128]], offset=0), "
      "axis=2)");
}

TEST_CASE("range_select: fill, bounds and command are always written") {
  Bench t;
  RangeSelect select;
  select.dst = t.x.whole();
  select.on_true_tile = t.bank.whole();
  select.bound0 = t.column.whole();
  select.bound1 = t.column.whole();
  CHECK(t.print(select) ==
        "nisa.range_select(dst=x[0:128, 0:512], on_true_tile=bank[0:128, 0:512], comp_op0=nl.greater_equal, "
        "comp_op1=nl.less, bound0=column[0:128, 0:1], bound1=column[0:128, 0:1], "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_op=nl.maximum, range_start=0, on_false_value=-3.4028235e+38)");
  select.reduce_res = t.column.whole();
  select.reduce_cmd = ReduceCommand::reduce;
  select.range_start = 1024;
  CHECK_THAT(t.print(select),
             Catch::Matchers::ContainsSubstring(
                 "reduce_cmd=nisa.reduce_cmd.reduce, reduce_res=column[0:128, 0:1], reduce_op=nl.maximum, "
                 "range_start=1024, "));
}

TEST_CASE("memset") {
  Bench t;
  CHECK(t.print(Memset{t.x.whole(), 0.0f, Engine::gpsimd}) ==
        "nisa.memset(dst=x[0:128, 0:512], value=0.0, engine=nisa.engine.gpsimd)");
  CHECK(t.print(Memset{t.x.whole(), lowest_float}) ==
        "nisa.memset(dst=x[0:128, 0:512], value=-3.4028235e+38, engine=nisa.engine.vector)");
}

TEST_CASE("index patterns and shuffle masks") {
  Bench t;
  CHECK(t.print(Iota{t.counts.whole(), {{128, 4}}, 512, 1}) ==
        "nisa.iota(dst=counts[0:128, 0:4], pattern=[[128, 4]], offset=512, channel_multiplier=1)");
  CHECK(t.print(StreamShuffle{t.column.part(32, 32, 0, 1), t.column.part(0, 1, 0, 1)}) ==
        "nisa.nc_stream_shuffle(dst=column[32:64, 0:1], src=column[0:1, 0:1], shuffle_mask=[0] * 32)");
}

TEST_CASE("DMA: equal shapes on both sides") {
  Bench t;
  CHECK(t.print(DmaCopy{t.narrow.part(0, 64, 0, 512), t.q.pattern(32768, {{512, 64}, {1, 512}})}) ==
        "nisa.dma_copy(dst=narrow[0:64, 0:512], src=q.ap(pattern=[[512, 64], [1, 512]], offset=32768))");
  INFO("the contiguous side is split like the other one");
  CHECK(t.print(DmaCopy{t.x.columns(0, 256), t.out.pattern(0, {{64, 128}, {8192, 4}, {1, 64}})}) ==
        "nisa.dma_copy(dst=x.ap(pattern=[[512, 128], [64, 4], [1, 64]], offset=0), "
        "src=out.ap(pattern=[[64, 128], [8192, 4], [1, 64]], offset=0))");
  CHECK(t.print(DmaCopy{t.out.pattern(64, {{1, 128}}), t.column.whole()}) ==
        "nisa.dma_copy(dst=out.ap(pattern=[[1, 128], [1, 1]], offset=64), src=column[0:128, 0:1])");
  CHECK(t.print(DmaCopy{t.out.pattern(0, {{1, 512}}), t.x.part(0, 1, 0, 512)}) ==
        "nisa.dma_copy(dst=out.ap(pattern=[[1, 1], [1, 512]], offset=0), src=x[0:1, 0:512])");
  INFO("whole tensors of equal shape are printed by name");
  CHECK(t.print(DmaCopy{t.there.whole(), t.here.pattern(0, {{512, 128}, {1, 512}})}) ==
        "nisa.dma_copy(dst=there, src=here)");
  CHECK(t.print(DmaCopy{t.there.pattern(0, {{512, 64}, {1, 512}}), t.here.pattern(32768, {{32768, 1}, {1, 32768}})}) ==
        "nisa.dma_copy(dst=there.ap(pattern=[[512, 64], [1, 512]], offset=0), "
        "src=here.ap(pattern=[[512, 64], [1, 512]], offset=32768))");
  INFO("no common shape: both patterns are printed unchanged");
  CHECK(t.print(DmaCopy{t.x.part(0, 4, 0, 3), t.here.pattern(0, {{512, 3}, {1, 4}})}) ==
        "nisa.dma_copy(dst=x[0:4, 0:3], src=here.ap(pattern=[[512, 3], [1, 4]], offset=0))");
  CHECK(t.print(DmaCopy{t.x.part(0, 64, 0, 4), t.here.pattern(0, {{512, 2}, {1, 128}})}) ==
        "nisa.dma_copy(dst=x[0:64, 0:4], src=here.ap(pattern=[[512, 2], [1, 128]], offset=0))");
}

TEST_CASE("DMA: offsets by register") {
  Bench t;
  Access row = t.q.pattern(3, {{1, 1}, {1, 8}});
  row.register_offset = RegisterOffset{t.r, 1};
  CHECK(t.print(DmaCopy{t.narrow.part(0, 1, 0, 8), row}) ==
        "nisa.dma_copy(dst=narrow[0:1, 0:8], "
        "src=q.ap(pattern=[[1, 1], [1, 8]], offset=3, scalar_offset=r0, indirect_dim=1))");
}

TEST_CASE("DMA transposes keep every axis") {
  Bench t;
  CHECK(t.print(DmaTranspose{t.narrow.part(0, 64, 0, 128), t.q.pattern(0, {{64, 128}, {1, 64}})}) ==
        "nisa.dma_transpose(dst=narrow[0:64, 0:128], src=q.ap(pattern=[[64, 128], [1, 64]], offset=0))");
  auto const blocks = t.narrow.pattern(0, 128, 0, {{1, 1}, {128, 4}, {1, 128}});
  CHECK(t.print(DmaTranspose{blocks, blocks}) ==
        "nisa.dma_transpose(dst=narrow.ap(pattern=[[512, 128], [1, 1], [128, 4], [1, 128]], offset=0), "
        "src=narrow.ap(pattern=[[512, 128], [1, 1], [128, 4], [1, 128]], offset=0))");
}

TEST_CASE("barriers and collectives name whole tensors") {
  Bench t;
  CHECK(t.print(CoreBarrier{t.here.whole()}) == "nisa.core_barrier(data=here, cores=(0, 1))");
  CHECK(t.print(CollectivePermute{t.here.whole(), t.there.whole()}) ==
        "ncc.collective_permute_implicit(srcs_by_channel=[[here]], dsts_by_channel=[[there]], replica_group=ring, "
        "channel_ids=[0])");
  CHECK(t.print(CollectivePermuteReduce{t.here.whole(), t.there.whole(), t.out.whole(), Operator::add}) ==
        "ncc.collective_permute_implicit_reduce(srcs0_by_channel=[[here]], srcs1_by_channel=[[there]], "
        "dsts_by_channel=[[out]], replica_group=ring, op=nl.add, channel_ids=[0])");
  CHECK(t.print(ProcessingRank{t.r, 3}) ==
        "r0 = ncc.collective_permute_implicit_current_processing_rank_id(iteration_id=3, replica_group=ring, "
        "channel_id=0)");
}

TEST_CASE("a register that is loaded is a new one") {
  Builder b("bench", Target::trn2, 1, 1);
  TensorHandle const out = b.tensor("out", {1, 8}, ElementType::float32, Role::output);
  TileHandle const word = b.tile("word", Memory::sbuf, 1, 1, ElementType::int32),
                   row = b.tile("row", Memory::sbuf, 1, 4, ElementType::float32);
  RegisterLoad const load{b.make_register({.count = 2, .step = 4}), word.whole()};
  b.emit(load);
  Access to = out.pattern(0, {{8, 1}, {1, 4}});
  to.register_offset = RegisterOffset{load.register_number, 1};
  b.emit(DmaCopy{to, row.whole()});
  std::string const text = to_python(b.program());
  CHECK(text.find("word = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)") != std::string::npos);
  CHECK(text.find("    r0 = nisa.register_alloc()\n"
                  "    nisa.register_load(dst=r0, src=word[0:1, 0:1])\n"
                  "    nisa.dma_copy(dst=out.ap(pattern=[[8, 1], [1, 4]], offset=0, scalar_offset=r0, indirect_dim=1), "
                  "src=row[0:1, 0:4])\n") != std::string::npos);
}

}  // namespace
}  // namespace annulus::nki
