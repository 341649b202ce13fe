// Costs of single instructions, computed by hand from the published formulas.

#include "annulus/nki/cost/instruction_cost.hpp"
#include "annulus/nki/program/builder.hpp"
#include "support/catch.hpp"

using namespace annulus::nki;

namespace {

constexpr ElementType f32 = ElementType::float32, bf16 = ElementType::bfloat16;

/// Tiles of 128 partitions, as operands of instructions.
struct Bench {
  using Index = annulus::Index;

  explicit Bench(Target of, int cores = 1) : target(of), builder("bench", of, cores, 4) {}

  Access sbuf(Index elements, ElementType type, Index partitions = 128) {
    return builder.tile("s", Memory::sbuf, partitions, elements, type).whole();
  }
  Access psum(Index elements, ElementType type) { return builder.tile("p", Memory::psum, 128, elements, type).whole(); }
  TensorHandle hbm(std::vector<Index> shape, ElementType type) { return builder.tensor("h", std::move(shape), type); }

  InstructionCost cost(Instruction const& instruction) const {
    return cost_of(builder.program(), hardware_of(target), instruction);
  }
  /// Cycles of the engine's own clock.
  double cycles(Instruction const& instruction) const {
    InstructionCost const seen = cost(instruction);
    return seen.seconds * hardware_of(target).costs.clock[static_cast<std::size_t>(seen.engine)];
  }

  Target target;
  Builder builder;
};

}  // namespace

TEST_CASE("a matmul streams its moving columns, in four passes for fp32", "[nki][cost]") {
  Target const target = GENERATE(Target::trn2, Target::trn3);
  Bench bench(target);
  CHECK(bench.cycles(MatMul{bench.psum(512, f32), bench.sbuf(128, bf16), bench.sbuf(512, bf16)}) == Approx(512));
  CHECK(bench.cost(MatMul{bench.psum(512, f32), bench.sbuf(128, bf16), bench.sbuf(512, bf16)}).seconds ==
        Approx(512 / 2.4e9));
  CHECK(bench.cycles(MatMul{bench.psum(32, f32), bench.sbuf(128, bf16), bench.sbuf(32, bf16)}) == Approx(64));
  CHECK(bench.cycles(MatMul{bench.psum(32, f32), bench.sbuf(16, bf16), bench.sbuf(32, bf16)}) == Approx(32));
  CHECK(bench.cycles(MatMul{bench.psum(512, f32), bench.sbuf(128, f32), bench.sbuf(512, f32)}) == Approx(2048));
  CHECK_FALSE(bench.cost(MatMul{bench.psum(32, f32), bench.sbuf(16, bf16), bench.sbuf(32, bf16)}).estimate);
}

TEST_CASE("transposes take their rows on TensorE and their columns on VectorE", "[nki][cost]") {
  Bench bench(Target::trn2);
  CHECK(bench.cycles(Transpose{bench.psum(128, bf16), bench.sbuf(128, bf16)}) == Approx(128));
  CHECK(bench.cycles(Transpose{bench.psum(16, bf16), bench.sbuf(128, bf16, 16)}) == Approx(64));
}

TEST_CASE("an activation takes a cycle per element, plus the read-out of its sum", "[nki][cost]") {
  Bench bench(Target::trn2);
  Activation exp{.dst = bench.sbuf(512, bf16), .op = Function::exp, .data = bench.sbuf(512, f32)};
  CHECK(bench.cost(exp).engine == Engine::scalar);
  CHECK(bench.cost(exp).seconds == Approx(512 / 1.2e9));
  exp.reduce_res = bench.sbuf(1, f32);
  CHECK(bench.cycles(exp) == Approx(512 + 64));
  CHECK(bench.cost(exp).dependent == 0);
  Activation const tiny{.dst = bench.sbuf(1, f32), .op = Function::exp, .data = bench.sbuf(1, f32)};
  CHECK(bench.cycles(tiny) == Approx(64));
  CHECK(bench.cost(tiny).dependent == Approx(100 / 1.2e9));
}

TEST_CASE("VectorE takes two cycles per element for two tensors, with exceptions", "[nki][cost]") {
  Bench bench(Target::trn2);
  Access const wide = bench.sbuf(256, f32), narrow = bench.sbuf(256, bf16), bank = bench.psum(256, f32);
  CHECK(bench.cycles(TensorTensor{wide, wide, wide}) == Approx(512));
  CHECK(bench.cycles(TensorTensor{wide, wide, bank}) == Approx(256));
  CHECK(bench.cycles(TensorTensor{narrow, narrow, narrow}) == Approx(256));
  CHECK(bench.cycles(TensorTensor{narrow, narrow, wide}) == Approx(512));
  ScalarTensorTensor fused{
      .dst = narrow, .data = narrow, .op0 = Operator::subtract, .op1 = Operator::multiply, .operand1 = narrow};
  CHECK(bench.cycles(fused) == Approx(256));
  fused.op1 = Operator::add;
  CHECK(bench.cycles(fused) == Approx(512));
  CHECK(bench.cost(fused).seconds == Approx(512 / 0.96e9));
}

TEST_CASE("VectorE copies 16-bit tensors faster, depending on their memory", "[nki][cost]") {
  Bench bench(Target::trn2);
  Access const wide = bench.sbuf(512, f32), narrow = bench.sbuf(512, bf16), bank = bench.psum(512, bf16);
  TileHandle const sparse = bench.builder.tile("sparse", Memory::sbuf, 128, 1024, bf16);
  CHECK(bench.cycles(TensorCopy{narrow, narrow}) == Approx(128));
  CHECK(bench.cycles(TensorCopy{narrow, bank}) == Approx(256));
  CHECK(bench.cycles(TensorCopy{narrow, sparse.pattern(0, 128, 0, {{2, 512}})}) == Approx(256));
  CHECK(bench.cycles(TensorCopy{wide, narrow}) == Approx(512));
  CHECK(bench.cycles(TensorCopy{narrow, narrow, Engine::scalar}) == Approx(512));
  CHECK(bench.cycles(TensorScalar{.dst = narrow, .data = narrow}) == Approx(128));
  CHECK_FALSE(bench.cost(TensorCopy{narrow, narrow}).estimate);
  CHECK(bench.cost(TensorCopy{narrow, narrow, Engine::gpsimd}).estimate);

  // trn3 halves ScalarE's copies as well; its VectorE is inferred to have the modes of trn2.
  Bench next(Target::trn3);
  Access const half = next.sbuf(512, bf16);
  CHECK(next.cycles(TensorCopy{half, half, Engine::scalar}) == Approx(256));
  CHECK(next.cost(TensorCopy{half, half}).seconds == Approx(128 / 1.2e9));
  CHECK(next.cost(TensorCopy{half, half}).estimate);
}

TEST_CASE("the other instructions of VectorE and GpSimdE", "[nki][cost]") {
  Bench bench(Target::trn2);
  Access const wide = bench.sbuf(512, f32), narrow = bench.sbuf(512, bf16), column = bench.sbuf(1, f32);
  CHECK(bench.cycles(TensorReduce{.dst = column, .op = Operator::maximum, .data = wide}) == Approx(512));
  CHECK(bench.cycles(TensorReduce{.dst = column, .op = Operator::maximum, .data = narrow}) == Approx(256));
  CHECK(bench.cycles(TensorReduce{.dst = column, .op = Operator::minimum, .data = narrow}) == Approx(512));
  CHECK(bench.cycles(RangeSelect{.dst = wide, .on_true_tile = wide, .bound0 = column, .bound1 = column}) ==
        Approx(512));
  CHECK(bench.cycles(Reciprocal{wide, wide}) == Approx(4096));
  CHECK(bench.cycles(Reciprocal{column, column}) == Approx(64));
  CHECK(bench.cycles(Memset{wide, 0.0f}) == Approx(512));
  CHECK(bench.cycles(Memset{narrow, 0.0f}) == Approx(256));
  CHECK(bench.cycles(Memset{narrow, 1.0f}) == Approx(512));
  CHECK(bench.cycles(StreamShuffle{column, column}) == Approx(64));
  CHECK(bench.cycles(Iota{.dst = wide}) == Approx(150 + 512));
}

TEST_CASE("a DMA uses one engine per 8 partitions and is slower for short rows", "[nki][cost]") {
  Bench bench(Target::trn2);
  TensorHandle const k = bench.hbm({128, 4096}, bf16);
  // 128 rows of 512 * 2 bytes: all 16 engines at 1024 / (1024 + 256) of 23 bytes per ns.
  InstructionCost const load = bench.cost(DmaCopy{bench.sbuf(512, bf16), k.pattern(0, {{4096, 128}, {1, 512}})});
  CHECK(load.seconds == Approx(128 * 1024 / (16 * 23e9 * 0.8)));
  CHECK(load.share == Approx(1));
  CHECK(load.latency == Approx(1.3e-6));
  CHECK(load.issue == Approx(0.6e-6));
  CHECK(load.alone() == Approx(1.9e-6 + load.seconds));
  CHECK(load.estimate);
  // 20 partitions: 3 engines.
  InstructionCost const small = bench.cost(DmaCopy{bench.sbuf(512, bf16, 20), k.pattern(0, {{4096, 20}, {1, 512}})});
  CHECK(small.seconds == Approx(20 * 1024 / (3 * 23e9 * 0.8)));
  CHECK(small.share == Approx(3.0 / 16));
  // The shorter row of both sides counts, here single elements in HBM; a cast moves the wider type.
  InstructionCost const scattered = bench.cost(DmaCopy{bench.sbuf(32, f32), k.pattern(0, {{1, 128}, {4096, 32}})});
  CHECK(scattered.seconds == Approx(128 * 32 * 4 / (16 * 23e9 * (2.0 / 258))));

  Bench next(Target::trn3);
  TensorHandle const same = next.hbm({128, 4096}, bf16);
  CHECK(next.cost(DmaCopy{next.sbuf(512, bf16), same.pattern(0, {{4096, 128}, {1, 512}})}).seconds ==
        Approx(128 * 1024 / (16 * 33e9 * 0.8)));
}

TEST_CASE("HBM traffic of a pair's core stays below half of the stack's rate", "[nki][cost]") {
  Bench alone(Target::trn2, 1), pair(Target::trn2, 2);
  for (Bench* bench : {&alone, &pair}) {
    TensorHandle const from = bench->hbm({128, 8192}, bf16), to = bench->hbm({128, 8192}, bf16);
    double const bytes = 128 * 8192 * 2, rate = 2.9e12 / 4 / (bench == &pair ? 2 : 1);
    // One run of 2 MiB: every byte is read from HBM and written to it. A single core is bound by its DMA engines.
    InstructionCost const copy = bench->cost(DmaCopy{to.whole(), from.whole()});
    double const engines = 16 * 23e9 * bytes / (bytes + 256);
    CHECK(copy.seconds == Approx(bytes / std::min(engines, rate / 2)));
    CHECK(copy.share == Approx(1));
    // 12 pieces of 4 KiB: 12 engines, which do not exceed a single core's HBM rate, but that of a core of a pair.
    InstructionCost const part =
        bench->cost(DmaCopy{to.pattern(0, {{1, 1}, {1, 24576}}), from.pattern(0, {{1, 1}, {1, 24576}})});
    double const twelve = 12 * 23e9 * 49152 / (49152 + 256.0);
    CHECK(part.seconds == Approx(49152 / std::min(twelve, rate / 2)));
    CHECK(part.share == Approx(bench == &pair ? 1 : 2 * twelve / rate));
  }
}

TEST_CASE("a DMA transpose runs at a fraction of the copy's rate", "[nki][cost]") {
  Bench bench(Target::trn2);
  Access const from = bench.sbuf(128, bf16), to = bench.sbuf(128, bf16);
  double const copy = bench.cost(DmaCopy{to, from}).seconds;
  CHECK(bench.cost(DmaTranspose{to, from}).seconds == Approx(copy / 0.5));
  TensorHandle const k = bench.hbm({128, 128}, bf16);
  Access const rows = k.pattern(0, {{128, 128}, {1, 128}});
  CHECK(bench.cost(DmaTranspose{to, rows}).seconds == Approx(bench.cost(DmaCopy{to, rows}).seconds / 0.9));
}

TEST_CASE("collectives, barriers and rank queries are estimates", "[nki][cost]") {
  Bench bench(Target::trn2, 2);
  TensorHandle const a = bench.hbm({64, 1024}, bf16), b = bench.hbm({64, 1024}, bf16);
  InstructionCost const permute = bench.cost(CollectivePermute{a.whole(), b.whole()});
  CHECK(permute.engine == Engine::collective);
  CHECK(permute.alone() == Approx(1.5e-6 + 64 * 1024 * 2 / 256e9));
  CHECK(permute.estimate);
  CHECK(bench.cost(CollectivePermuteReduce{a.whole(), a.whole(), b.whole()}) == permute);
  CHECK(bench.cost(CoreBarrier{a.whole()}).seconds == Approx(1.3e-6));
  CHECK(bench.cost(CoreBarrier{a.whole()}).estimate);
  CHECK(bench.cost(ProcessingRank{}).seconds == Approx(2e-6));
  CHECK(bench.cost(ProcessingRank{}).estimate);
}
