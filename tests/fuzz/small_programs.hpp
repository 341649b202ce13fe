#pragma once
// Small valid tile programs that a fuzzer changes.

#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/program/builder.hpp"
#include "nki/program/golden_programs.hpp"

namespace annulus_fuzz {

namespace nki = annulus::nki;

/// A load, elementwise instructions of every engine, reductions and a store, on tiles of 32 x 16.
inline nki::Program elementwise_program() {
  using namespace annulus::nki;
  constexpr annulus::Index rows = 32, width = 16;
  Builder b("elementwise", Target::trn2, 1, 1);
  auto const x = b.tensor("x", {2, rows, width}, ElementType::float32, Role::input);
  auto const y = b.tensor("y", {2, rows, width}, ElementType::float32, Role::output);
  auto const extremes = b.tensor("extremes", {2, rows, 1}, ElementType::float32, Role::output);
  auto const one = b.declare("one", Memory::sbuf, rows, width, ElementType::float32, 2);
  auto const two = b.declare("two", Memory::sbuf, rows, width, ElementType::float32);
  auto const counts = b.declare("counts", Memory::sbuf, rows, width, ElementType::float32);
  auto const column = b.declare("column", Memory::sbuf, rows, 1, ElementType::float32);
  auto const bounds = b.declare("bounds", Memory::sbuf, rows, 2, ElementType::float32);
  b.loop("item", 2, [&](Affine const& item) {
    b.section("item", item);
    b.allocate(one);
    b.emit(DmaCopy{one.whole(), x.pattern(item * (rows * width), {{width, rows}, {1, width}})});
    b.allocate(two);
    b.emit(Memset{two.whole(), 2.0f});
    b.emit(TensorTensor{two.whole(), one.whole(), two.whole(), Operator::multiply});
    b.emit(TensorScalar{.dst = one.whole(), .data = two.whole(), .op0 = Operator::maximum, .operand0 = 0.5f});
    b.allocate(column);
    b.emit(TensorReduce{column.whole(), Operator::maximum, one.whole()});
    b.emit(ScalarTensorTensor{.dst = two.whole(),
                              .data = one.whole(),
                              .op0 = Operator::subtract,
                              .operand0 = column.whole(),
                              .op1 = Operator::add,
                              .operand1 = two.whole()});
    b.emit(Activation{.dst = one.whole(), .op = Function::tanh, .data = two.whole()});
    b.allocate(counts);
    b.emit(Iota{counts.whole(), {{1, width}}, item, 3});
    b.emit(TensorCopy{two.whole(), counts.whole()});
    b.emit(TensorTensor{two.whole(), one.whole(), two.whole(), Operator::greater, Engine::gpsimd});
    b.emit(StreamShuffle{one.whole(), two.part(0, 1, 0, width)});
    b.allocate(bounds);
    b.emit(Memset{bounds.column(0), 0.0f});
    b.emit(Memset{bounds.column(1), 9.0f});
    b.emit(RangeSelect{.dst = two.whole(),
                       .on_true_tile = one.whole(),
                       .bound0 = bounds.column(0),
                       .bound1 = bounds.column(1),
                       .reduce_res = column.whole()});
    b.emit(DmaCopy{y.pattern(item * (rows * width), {{width, rows}, {1, width}}), one.whole()});
    b.emit(DmaCopy{extremes.pattern(item * rows, {{1, rows}, {1, 1}}), column.whole()});
  });
  return std::move(b).finish();
}

/// Weights exp(k^T q) of 16 queries and 32 keys, their sums, and their product with v: matmuls with accumulation,
/// transposes and a chain of reductions.
inline nki::Program attention_program() {
  using namespace annulus::nki;
  constexpr annulus::Index dim = 8, rows = 16, keys = 32, width = 16;
  Builder b("attention", Target::trn2, 1, 1);
  auto const q = b.tensor("q", {dim, rows}, ElementType::bfloat16, Role::input);
  auto const k = b.tensor("k", {dim, keys}, ElementType::bfloat16, Role::input);
  auto const v = b.tensor("v", {keys, dim}, ElementType::bfloat16, Role::input);
  auto const output = b.tensor("output", {rows, dim}, ElementType::float32, Role::output);
  auto const q_tile = b.tile("q_tile", Memory::sbuf, dim, rows, ElementType::bfloat16);
  auto const k_tile = b.declare("k_tile", Memory::sbuf, dim, width, ElementType::bfloat16, 2);
  auto const v_tile = b.declare("v_tile", Memory::sbuf, width, dim, ElementType::bfloat16, 2);
  auto const scores = b.declare("scores", Memory::psum, rows, width, ElementType::float32);
  auto const weights = b.declare("weights", Memory::sbuf, rows, width, ElementType::bfloat16);
  auto const turned = b.declare("turned", Memory::psum, width, rows, ElementType::bfloat16);
  auto const keys_first = b.declare("keys_first", Memory::sbuf, width, rows, ElementType::bfloat16);
  auto const product = b.tile("product", Memory::psum, rows, dim, ElementType::float32);
  auto const sum = b.tile("sum", Memory::sbuf, rows, 1, ElementType::float32);
  auto const result = b.tile("result", Memory::sbuf, rows, dim, ElementType::float32);
  b.emit(DmaCopy{q_tile.whole(), q.whole()});
  for (int tile = 0; tile < 2; ++tile) {
    b.section("tile", tile);
    b.allocate(k_tile);
    b.emit(DmaCopy{k_tile.whole(), k.pattern(tile * width, {{keys, dim}, {1, width}})});
    b.allocate(v_tile);
    b.emit(DmaCopy{v_tile.whole(), v.pattern(tile * width * dim, {{dim, width}, {1, dim}})});
    b.allocate(scores);
    b.emit(MatMul{scores.whole(), q_tile.whole(), k_tile.whole(), false});
    b.allocate(weights);
    Activation exponentials{.dst = weights.whole(),
                            .op = Function::exp,
                            .data = scores.whole(),
                            .scale = 0.25f,
                            .reduce_op = Operator::add};
    exponentials.reduce_cmd = tile == 0 ? ReduceCommand::reset_reduce : ReduceCommand::reduce;
    if (tile == 1) exponentials.reduce_res = sum.whole();
    b.emit(exponentials);
    b.allocate(turned);
    b.emit(Transpose{turned.whole(), weights.whole()});
    b.allocate(keys_first);
    b.emit(TensorCopy{keys_first.whole(), turned.whole(), Engine::scalar});
    b.emit(MatMul{product.whole(), keys_first.whole(), v_tile.whole(), tile == 1});
  }
  b.emit(Reciprocal{sum.whole(), sum.whole()});
  b.emit(TensorScalar{.dst = result.whole(), .data = product.whole(), .operand0 = sum.whole()});
  b.emit(DmaCopy{output.whole(), result.whole()});
  return std::move(b).finish();
}

/// A column per core, exchanged through shared HBM and around a ring of two ranks.
inline nki::Program exchange_program() {
  using namespace annulus::nki;
  constexpr annulus::Index rows = 8, width = 4, half = rows * width;
  Builder b("exchange", Target::trn2, 2, 2);
  auto const x = b.tensor("x", {2, rows, width}, ElementType::float32, Role::input);
  auto const total = b.tensor("total", {2, rows, width}, ElementType::float32, Role::output);
  auto const here = b.tensor("here", {2, rows, width}, ElementType::float32);
  auto const there = b.tensor("there", {2, rows, width}, ElementType::float32);
  auto const sum = b.tile("sum", Memory::sbuf, rows, width, ElementType::float32);
  auto const part = b.declare("part", Memory::sbuf, rows, width, ElementType::float32);
  Affine const mine = Affine::of(core_variable, half), others = Affine(half) - mine;
  int const processing = b.make_register();
  auto const pattern = [&](TensorHandle const& tensor, Affine const& from) {
    return tensor.pattern(from, {{width, rows}, {1, width}});
  };
  b.emit(DmaCopy{pattern(here, mine), pattern(x, mine)});
  b.emit(CoreBarrier{here.whole()});
  b.emit(DmaCopy{sum.whole(), pattern(here, others)});
  b.emit(CollectivePermute{here.whole(), there.whole()});
  b.emit(ProcessingRank{processing, 1});
  b.emit(CoreBarrier{there.whole()});
  b.allocate(part);
  b.emit(DmaCopy{part.whole(), pattern(there, others)});
  b.emit(TensorTensor{sum.whole(), sum.whole(), part.whole(), Operator::add});
  Access chosen = pattern(there, 0);
  chosen.register_offset = RegisterOffset{processing, 0};
  b.emit(DmaCopy{part.whole(), chosen});
  b.emit(TensorTensor{sum.whole(), sum.whole(), part.whole(), Operator::add});
  b.emit(DmaCopy{pattern(total, mine), sum.whole()});
  return std::move(b).finish();
}

inline std::vector<nki::Program> small_programs() {
  return {elementwise_program(), attention_program(), exchange_program(), nki::golden::newest_tiles()};
}

}  // namespace annulus_fuzz
