// Counts of instructions, bytes and multiply-adds of a program, against closed forms.

#include "annulus/nki/program/builder.hpp"
#include "annulus/nki/program/walk.hpp"
#include "support/catch.hpp"

using namespace annulus::nki;
using annulus::Index;

namespace {

/// n loads of [128, 512] bf16 into nested loops of m matmuls each; core 1 alone stores n results.
Program tiles(Index n, Index m) {
  Builder builder("tiles", Target::trn2, 2, 4);
  TensorHandle const from = builder.tensor("from", {128, 512}, ElementType::bfloat16);
  TensorHandle const to = builder.tensor("to", {128, 512}, ElementType::float32);
  TensorHandle const next = builder.tensor("next", {128, 512}, ElementType::bfloat16);
  TileHandle const loaded = builder.declare("loaded", Memory::sbuf, 128, 512, ElementType::bfloat16);
  TileHandle const product = builder.declare("product", Memory::psum, 96, 512, ElementType::float32);
  TileHandle const result = builder.tile("result", Memory::sbuf, 128, 512, ElementType::float32);
  builder.emit(CollectivePermute{from.whole(), next.whole()});
  builder.emit(CoreBarrier{from.whole()});
  builder.loop("i", n, [&](Affine) {
    builder.allocate(loaded);
    builder.allocate(product);
    builder.emit(DmaCopy{loaded.whole(), from.pattern(0, {{512, 128}, {1, 512}})});
    builder.loop("j", m, [&](Affine) { builder.emit(MatMul{product.whole(), loaded.columns(0, 96), loaded.whole()}); });
    builder.emit(MatMul{product.whole(), loaded.columns(0, 96), loaded.whole(), true});
    builder.on_core(1, [&] { builder.emit(DmaCopy{to.pattern(0, {{512, 128}, {1, 512}}), result.whole()}); });
  });
  builder.loop("never", 0, [&](Affine) { builder.emit(Memset{result.whole(), 0.0f}); });
  return std::move(builder).finish();
}

}  // namespace

TEST_CASE("instructions, bytes and multiply-adds of nested loops", "[nki][cost]") {
  Index const n = GENERATE(1, 7), m = GENERATE(0, 1, 5);
  Program const program = tiles(n, m);
  Counts const first = count(program, 0), second = count(program, 1), both = count(program);

  CHECK(first.of<DmaCopy>() == n);
  CHECK(second.of<DmaCopy>() == 2 * n);
  CHECK(first.of<MatMul>() == n * (m + 1));
  CHECK(first.of<CollectivePermute>() == 1);
  CHECK(first.of<Memset>() == 0);
  CHECK(both.instructions() == 2 * (n * (m + 2) + 2) + n);

  Index const block = 128 * 512;
  CHECK(first.hbm_read == n * block * 2);
  CHECK(first.hbm_written == 0);
  CHECK(second.hbm_written == n * block * 4);
  CHECK(first.permuted == block * 2);
  CHECK(second.permuted == 0);
  CHECK(first.multiply_adds == n * (m + 1) * 128 * 96 * 512);
  CHECK(both.multiply_adds == 2 * first.multiply_adds);
}

TEST_CASE("counts agree with a walk over the executed instructions", "[nki][cost]") {
  Program const program = tiles(3, 4);
  for (int core = 0; core < 2; ++core) {
    Walk walk(program, core);
    std::array<Index, Counts::kinds> executed{};
    while (Node const* node = walk.next())
      if (auto const* instruction = node->as<Instruction>()) ++executed[instruction->index()];
    CHECK(executed == count(program, core).executed);
  }
}
