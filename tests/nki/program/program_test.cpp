// Tile programs as data: affine indices, access patterns, walks.

#include "annulus/nki/program/builder.hpp"
#include "annulus/nki/program/walk.hpp"
#include "support/catch.hpp"

namespace {

using namespace annulus::nki;
using annulus::Index;

TEST_CASE("Affine indices add, scale and drop terms that cancel", "[nki][program]") {
  Affine const a = Affine::of(1, 3) + 5, b = Affine::of(2) * 4;
  std::vector<Index> const values{0, 10, 7};
  REQUIRE((a + b).at(values) == 30 + 5 + 28);
  REQUIRE((b - a).at(values) == 28 - 35);
  REQUIRE((a * -2).at(values) == -70);
  REQUIRE((a - Affine::of(1, 3)).is_constant());
  REQUIRE((a * 0) == Affine(0));
  REQUIRE(Affine::of(2) + Affine::of(1) == Affine::of(1) + Affine::of(2));
  REQUIRE(Affine::of(1) != Affine::of(2));
}

TEST_CASE("An access knows its elements, its extremes and whether it is contiguous", "[nki][program]") {
  Builder builder("p", Target::trn2, 1, 1);
  TileHandle const tile = builder.tile("t", Memory::sbuf, 128, 64, ElementType::float32);
  Access const part = tile.part(32, 32, 8, 16);
  REQUIRE(part.partitions() == 32);
  REQUIRE(part.elements() == 16);
  REQUIRE(part.contiguous());
  Access const strided = tile.pattern(0, 128, 0, {{16, 4}, {1, 4}});
  REQUIRE(strided.elements() == 16);
  REQUIRE(strided.extremes(1) == std::pair<Index, Index>{0, 51});
  REQUIRE_FALSE(strided.contiguous());
  REQUIRE(tile.pattern(0, 128, 0, {{4, 4}, {1, 4}}).contiguous());
  REQUIRE(tile.pattern(0, 128, 0, {{-1, 4}}).extremes(1) == std::pair<Index, Index>{-3, 0});
}

/// Offset and place of the destination of every instruction that a core executes.
std::vector<std::pair<Index, int>> executed(Program const& program, int core) {
  std::vector<std::pair<Index, int>> found;
  Walk walk(program, core);
  while (Node const* node = walk.next())
    if (auto const* instruction = node->as<Instruction>())
      for_each_access(*instruction, [&](std::string_view keyword, Use, Access const& access) {
        if (keyword == "dst") found.emplace_back(walk.at(access.offset), walk.place_of(access));
      });
  return found;
}

TEST_CASE("A walk iterates loops, follows one core and finds older tiles", "[nki][program]") {
  Builder builder("p", Target::trn2, 2, 1);
  TileHandle const tile = builder.declare("t", Memory::sbuf, 128, 64, ElementType::float32, 2);
  builder.loop("i", 3, [&](Affine const& i) {
    builder.allocate(tile);
    builder.on_core(1, [&] { builder.emit(Memset{tile.column(i * 10 + Affine::of(core_variable))}); });
    builder.loop("never", 0, [&](Affine const&) { builder.emit(Memset{tile.column(63)}); });
  });
  builder.emit(Memset{tile.before().column(1)});
  builder.emit(Memset{tile.before(2).column(2)});
  Program const program = std::move(builder).finish();
  using Found = std::vector<std::pair<Index, int>>;
  // Three tiles in two places: the newest is in place 0, the previous one in place 1, the first is overwritten.
  REQUIRE(executed(program, 0) == Found{{1, 1}, {2, -1}});
  REQUIRE(executed(program, 1) == Found{{1, 0}, {11, 1}, {21, 0}, {1, 1}, {2, -1}});
}

TEST_CASE("Cores synchronize at barriers and collectives only", "[nki][program]") {
  Builder builder("p", Target::trn2, 2, 2);
  TensorHandle const a = builder.tensor("a", {4}, ElementType::float32),
                     b = builder.tensor("b", {4}, ElementType::float32);
  REQUIRE(is_core_barrier({Instruction{CoreBarrier{a.whole()}}}));
  REQUIRE(is_core_barrier({Instruction{CollectivePermute{a.whole(), b.whole()}}}));
  REQUIRE(is_core_barrier({Instruction{CollectivePermuteReduce{a.whole(), a.whole(), b.whole()}}}));
  REQUIRE_FALSE(is_core_barrier({Instruction{DmaCopy{a.whole(), b.whole()}}}));
  REQUIRE_FALSE(is_core_barrier({Allocate{0}}));
}

TEST_CASE("Programs are equal iff all their parts are", "[nki][program]") {
  auto const make = [](Index offset, bool accumulate) {
    Builder builder("p", Target::trn2, 1, 1);
    TileHandle const tile = builder.tile("t", Memory::psum, 128, 64, ElementType::float32);
    builder.loop("i", 4, [&](Affine const& i) {
      builder.emit(MatMul{tile.column(i + offset), tile.whole(), tile.whole(), accumulate});
    });
    return std::move(builder).finish();
  };
  REQUIRE(make(1, true) == make(1, true));
  REQUIRE_FALSE(make(1, true) == make(2, true));
  REQUIRE_FALSE(make(1, true) == make(1, false));
}

}  // namespace
