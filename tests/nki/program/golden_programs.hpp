#pragma once
// Small programs whose printed text is kept in print/golden/ and executed by printed_kernels_test.py.

#include <string>
#include <vector>

#include "annulus/nki/program/builder.hpp"

namespace annulus::nki::golden {

/// Attention of 2 items without a mask, scores small enough to need no maximum. 128 queries, 256 keys in tiles of 128,
/// head_dim 64; the next key tile is loaded before the one at hand is used.
/// q [item, head_dim, query], k [item, head_dim, key], v [item, key, head_dim]; output [item, query, head_dim].
inline Program attention_tiles() {
  constexpr Index items = 2, dim = 64, rows = 128, keys = 256, width = 128, tiles = keys / width;
  Builder b("attention_tiles", Target::trn2, 1, 1);
  auto const q = b.tensor("q", {items, dim, rows}, ElementType::bfloat16, Role::input);
  auto const k = b.tensor("k", {items, dim, keys}, ElementType::bfloat16, Role::input);
  auto const v = b.tensor("v", {items, keys, dim}, ElementType::bfloat16, Role::input);
  auto const output = b.tensor("output", {items, rows, dim}, ElementType::float32, Role::output);
  auto const q_tile = b.declare("q_tile", Memory::sbuf, dim, rows, ElementType::bfloat16);
  auto const k_tile = b.declare("k_tile", Memory::sbuf, dim, width, ElementType::bfloat16, 2);
  auto const v_tiles = b.declare("v_tiles", Memory::sbuf, width, tiles * dim, ElementType::bfloat16);
  auto const scores = b.declare("scores", Memory::psum, rows, width, ElementType::float32);
  auto const weights = b.declare("weights", Memory::sbuf, rows, width, ElementType::bfloat16);
  auto const turned = b.declare("turned", Memory::psum, width, rows, ElementType::bfloat16);
  auto const keys_first = b.declare("keys_first", Memory::sbuf, width, rows, ElementType::bfloat16);
  auto const product = b.declare("product", Memory::psum, rows, dim, ElementType::float32);
  auto const tile_sum = b.declare("tile_sum", Memory::sbuf, rows, 1, ElementType::float32);
  auto const sum = b.declare("sum", Memory::sbuf, rows, 1, ElementType::float32);
  auto const result = b.declare("result", Memory::sbuf, rows, dim, ElementType::float32);

  b.loop("item", items, [&](Affine const& item) {
    auto const load_keys = [&](Affine const& tile) {
      b.allocate(k_tile);
      b.emit(DmaCopy{k_tile.whole(), k.pattern(item * (dim * keys) + tile * width, {{keys, dim}, {1, width}})});
    };
    auto const use_keys = [&](TileHandle const& of, Affine const& tile, bool first) {
      b.allocate(scores);
      b.emit(MatMul{scores.whole(), q_tile.whole(), of.whole(), false});
      b.allocate(weights);
      b.allocate(tile_sum);
      Activation exponentials;
      exponentials.dst = weights.whole();
      exponentials.op = Function::exp;
      exponentials.data = scores.whole();
      exponentials.scale = 0.125f;
      exponentials.reduce_op = Operator::add;
      exponentials.reduce_res = tile_sum.whole();
      exponentials.reduce_cmd = ReduceCommand::reset_reduce;
      b.emit(exponentials);
      b.emit(TensorTensor{sum.whole(), sum.whole(), tile_sum.whole(), Operator::add});
      b.allocate(turned);
      b.emit(Transpose{turned.whole(), weights.whole()});
      b.allocate(keys_first);
      b.emit(TensorCopy{keys_first.whole(), turned.whole(), Engine::scalar});
      b.emit(MatMul{product.whole(), keys_first.whole(), v_tiles.columns(tile * dim, dim), !first});
    };

    b.section("item", item);
    b.allocate(q_tile);
    b.emit(DmaCopy{q_tile.whole(), q.pattern(item * (dim * rows), {{rows, dim}, {1, rows}})});
    b.allocate(v_tiles);
    b.emit(DmaCopy{v_tiles.whole(), v.pattern(item * (keys * dim), {{dim, width}, {width * dim, tiles}, {1, dim}})});
    b.allocate(sum);
    b.emit(Memset{sum.whole(), 0.0f});
    b.allocate(product);
    load_keys(0);
    load_keys(1);
    use_keys(k_tile.before(), 0, true);
    use_keys(k_tile, 1, false);
    b.emit(Reciprocal{sum.whole(), sum.whole()});
    b.allocate(result);
    TensorScalar normalise;
    normalise.dst = result.whole();
    normalise.data = product.whole();
    normalise.operand0 = sum.whole();
    b.emit(normalise);
    b.emit(DmaCopy{output.pattern(item * (rows * dim), {{dim, rows}, {1, dim}}), result.whole()});
  });
  return std::move(b).finish();
}

/// The first Allocate of `tile` stands in two loops, and tiles older than it are asked for after them.
/// x [6, 32, 16]; last, before_last, first_of_last_three [32, 16] are x[5], x[4] and x[3].
inline Program newest_tiles() {
  constexpr Index outer = 2, inner = 3, rows = 32, width = 16;
  Builder b("newest_tiles", Target::trn2, 1, 1);
  auto const x = b.tensor("x", {outer * inner, rows, width}, ElementType::float32, Role::input);
  auto const tile = b.declare("tile", Memory::sbuf, rows, width, ElementType::float32, 3);
  b.loop("i", outer, [&](Affine const& i) {
    b.loop("j", inner, [&](Affine const& j) {
      b.allocate(tile);
      b.emit(DmaCopy{tile.whole(), x.pattern((i * inner + j) * (rows * width), {{width, rows}, {1, width}})});
    });
  });
  int age = 0;
  for (std::string const name : {"last", "before_last", "first_of_last_three"}) {
    auto const result = b.tensor(name, {rows, width}, ElementType::float32, Role::output);
    b.emit(DmaCopy{result.pattern(0, {{width, rows}, {1, width}}), tile.before(age++).whole()});
  }
  return std::move(b).finish();
}

/// The sum over 4 ranks of rank * x, as x goes round the ring; each core of the pair adds up one half of it.
/// x [core, 128, 64]; total [core, 128, 64].
inline Program ring_weighted_sum() {
  constexpr Index rows = 128, width = 64, half = rows * width;
  constexpr int ranks = 4;
  Builder b("ring_weighted_sum", Target::trn2, 2, ranks);
  auto const x = b.tensor("x", {2, rows, width}, ElementType::float32, Role::input);
  auto const total = b.tensor("total", {2, rows, width}, ElementType::float32, Role::output);
  auto const table = b.tensor("rank_table", {1, ranks}, ElementType::float32);
  TensorHandle here = b.tensor("travelling_a", {2, rows, width}, ElementType::float32);
  TensorHandle there = b.tensor("travelling_b", {2, rows, width}, ElementType::float32);
  auto const numbers = b.declare("numbers", Memory::sbuf, 1, ranks, ElementType::float32);
  auto const sum = b.declare("sum", Memory::sbuf, rows, width, ElementType::float32);
  auto const rank = b.declare("rank", Memory::sbuf, rows, 1, ElementType::float32);
  auto const part = b.declare("part", Memory::sbuf, rows, width, ElementType::float32);
  Affine const mine = Affine::of(core_variable, half);
  int const processing = b.make_register();

  b.section("tables");
  b.on_core(0, [&] {
    b.allocate(numbers);
    b.emit(Iota{numbers.whole(), {{1, ranks}}, 0, 0});
    b.emit(DmaCopy{table.pattern(0, {{ranks, 1}, {1, ranks}}), numbers.whole()});
  });
  b.emit(CoreBarrier{table.whole()});
  b.emit(DmaCopy{here.pattern(mine, {{width, rows}, {1, width}}), x.pattern(mine, {{width, rows}, {1, width}})});
  b.emit(CoreBarrier{here.whole()});
  b.allocate(sum);
  b.emit(Memset{sum.whole(), 0.0f});
  for (int step = 0; step < ranks; ++step) {
    b.section("step", step);
    if (step > 0) b.emit(CoreBarrier{there.whole()});
    if (step + 1 < ranks) b.emit(CollectivePermute{here.whole(), there.whole()});
    b.emit(ProcessingRank{processing, step});
    b.allocate(rank);
    Access id = table.pattern(0, {{1, 1}, {1, 1}});
    id.register_offset = RegisterOffset{processing, 1};
    b.emit(DmaCopy{rank.part(0, 1, 0, 1), id});
    for (Index quadrant = 0; quadrant < 4; ++quadrant)
      b.emit(StreamShuffle{rank.part(32 * quadrant, 32, 0, 1), rank.part(0, 1, 0, 1)});
    b.allocate(part);
    b.emit(DmaCopy{part.whole(), here.pattern(mine, {{width, rows}, {1, width}})});
    ScalarTensorTensor add;
    add.dst = sum.whole();
    add.data = part.whole();
    add.operand0 = rank.whole();
    add.operand1 = sum.whole();
    b.emit(add);
    std::swap(here, there);
  }
  b.section("result");
  b.emit(DmaCopy{total.pattern(mine, {{width, rows}, {1, width}}), sum.whole()});
  return std::move(b).finish();
}

inline std::vector<Program> all() { return {attention_tiles(), newest_tiles(), ring_weighted_sum()}; }

}  // namespace annulus::nki::golden
