// Simulator: synchronization of the two cores of a rank, and collectives on a ring of ranks.

#include <algorithm>
#include <numeric>

#include "annulus/comm/simulated_ring.hpp"
#include "nki/simulate/one_program.hpp"
#include "nki/simulate/simulated_launch.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::nki::Affine;
using annulus::nki::Arrangement;
using annulus::nki::Builder;
using annulus::nki::Memory;
using annulus::nki::Operator;
using annulus::nki::Program;
using annulus::nki::Role;
using annulus::nki::Target;
using annulus::nki::Tensors;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Each core writes its half of `shared`, waits at a barrier, and copies the other half to the output.
Program exchange_halves() {
  Builder b("exchange", Target::trn2, 2, 1);
  auto const shared = b.tensor("shared", {2, 4}, f32, Role::internal), out = b.tensor("out", {2, 4}, f32, Role::output);
  auto const tile = b.tile("tile", Memory::sbuf, 1, 4, f32);
  auto const core = Affine::of(nki::core_variable);
  b.emit(nki::Iota{tile.whole(), {{1, 4}}, core * 10});
  b.emit(nki::DmaCopy{shared.pattern(core * 4, {{1, 1}, {1, 4}}), tile.whole()});
  b.emit(nki::CoreBarrier{shared.whole()});
  b.emit(nki::DmaCopy{tile.whole(), shared.pattern(core * -4 + Affine(4), {{1, 1}, {1, 4}})});
  b.emit(nki::DmaCopy{out.pattern(core * 4, {{1, 1}, {1, 4}}), tile.whole()});
  return std::move(b).finish();
}

/// Permutes x `hops` times and returns it, with the ids of the workers whose data was held after 0, ..., hops hops.
Program permute(int ranks, int cores, int hops) {
  Builder b("permute", Target::trn2, cores, ranks);
  auto const x = b.tensor("x", {3, 5}, bf16, Role::input);
  nki::TensorHandle buffers[2] = {b.tensor("a", {3, 5}, bf16), b.tensor("b", {3, 5}, bf16)};
  auto const out = b.tensor("out", {3, 5}, bf16, Role::output), ids = b.tensor("ids", {hops + 1}, f32, Role::output);
  auto const table = b.tensor("table", {1, 64}, f32, Role::internal, Memory::private_hbm);
  auto const numbers = b.tile("numbers", Memory::sbuf, 1, 64, f32), cell = b.tile("cell", Memory::sbuf, 1, 1, f32);
  int const number = b.make_register();
  b.emit(nki::Iota{numbers.whole(), {{1, 64}}});
  b.emit(nki::DmaCopy{table.pattern(0, {{64, 1}, {1, 64}}), numbers.whole()});
  auto const look_up = [&](int step) {
    b.emit(nki::ProcessingRank{number, step});
    auto entry = table.pattern(0, {{1, 1}, {1, 1}});
    entry.register_offset = nki::RegisterOffset{number, 1};
    b.emit(nki::DmaCopy{cell.whole(), entry});
    b.on_core(0, [&] { b.emit(nki::DmaCopy{ids.pattern(step, {{1, 1}, {1, 1}}), cell.whole()}); });
  };
  b.on_core(0, [&] { b.emit(nki::DmaCopy{buffers[0].whole(), x.whole()}); });
  if (cores > 1) b.emit(nki::CoreBarrier{buffers[0].whole()});
  look_up(0);
  for (int hop = 0; hop < hops; ++hop) {
    b.emit(nki::CollectivePermute{buffers[hop % 2].whole(), buffers[(hop + 1) % 2].whole()});
    look_up(hop + 1);
  }
  // Both cores use what a collective touches.
  auto const copies = b.tensor("copies", {2, 3, 5}, bf16, Role::internal, Memory::private_hbm);
  for (int side = 0; side < std::min(2, hops + 1); ++side)
    b.emit(nki::DmaCopy{copies.pattern(15 * side, {{15, 1}, {1, 15}}), buffers[side].whole()});
  b.on_core(cores - 1, [&] { b.emit(nki::DmaCopy{out.whole(), buffers[hops % 2].whole()}); });
  return std::move(b).finish();
}

std::vector<float> of_worker(int worker) {
  std::vector<float> values(15);
  std::iota(values.begin(), values.end(), static_cast<float>(worker * 16));
  return values;
}

}  // namespace

TEST_CASE("A barrier makes each core's writes visible to the other, whichever runs first") {
  int const first = GENERATE(0, 1);
  Arrangement arrangement;
  arrangement.first_core = first;
  Tensors const outputs = nki::simulate(valid(exchange_halves()), {}, arrangement);
  CHECK(outputs.at("out") == std::vector<float>{10, 11, 12, 13, 0, 1, 2, 3});
}

TEST_CASE("Each core has its own copy of a private tensor") {
  Builder b("private", Target::trn2, 2, 1);
  auto const own = b.tensor("own", {1, 4}, f32, Role::internal, Memory::private_hbm),
             out = b.tensor("out", {2, 4}, f32, Role::output);
  auto const tile = b.tile("tile", Memory::sbuf, 1, 4, f32);
  auto const core = Affine::of(nki::core_variable);
  b.emit(nki::Iota{tile.whole(), {{1, 4}}, core * 10});
  b.emit(nki::DmaCopy{own.whole(), tile.whole()});
  b.emit(nki::DmaCopy{out.pattern(core * 4, {{1, 1}, {1, 4}}), own.whole()});
  CHECK(nki::simulate(valid(std::move(b).finish()), {}).at("out") == std::vector<float>{0, 1, 2, 3, 10, 11, 12, 13});
}

TEST_CASE("Cores meet at a barrier in every iteration of its loop") {
  Builder b("again", Target::trn2, 2, 1);
  auto const x = b.tensor("x", {1, 4}, f32);
  b.loop("again", 3, [&](Affine) { b.emit(nki::CoreBarrier{x.whole()}); });
  CHECK_NOTHROW(nki::simulate(valid(std::move(b).finish()), {}));
}

TEST_CASE("Permutes follow any ring order, and queried ids name the owner of the data") {
  int const ranks = GENERATE(2, 3, 4), cores = GENERATE(1, 2);
  auto const ids = GENERATE(Arrangement::Ids::position, Arrangement::Ids::global);
  Arrangement arrangement;
  arrangement.ids = ids;
  arrangement.group_begin = 12;
  arrangement.first_core = cores - 1;
  for (int worker = 0; worker < ranks; ++worker) arrangement.ring.push_back(worker);
  do {
    for (int hops = 0; hops < ranks; ++hops) {
      auto const program = valid(permute(ranks, cores, hops));
      auto const results = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
        return nki::simulate(program, {{"x", of_worker(arrangement.worker(ring.rank()))}}, ring, arrangement);
      });
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<float> expected;
        for (int hop = 0; hop <= hops; ++hop)
          expected.push_back(
              static_cast<float>(arrangement.ring[static_cast<std::size_t>((rank - hop + 2 * ranks) % ranks)] +
                                 (ids == Arrangement::Ids::global ? 12 : 0)));
        Tensors const& got = results[static_cast<std::size_t>(rank)];
        CHECK(got.at("ids") == expected);
        CHECK(got.at("out") ==
              of_worker(static_cast<int>(expected.back()) - (ids == Arrangement::Ids::global ? 12 : 0)));
      }
    }
  } while (std::ranges::next_permutation(arrangement.ring).found);
}

TEST_CASE("A reducing permute adds the data of each rank, rounded at each hop") {
  int const ranks = GENERATE(2, 3, 4);
  auto const op = GENERATE(Operator::add, Operator::maximum);
  Builder b("reduce", Target::trn2, 1, ranks);
  auto const x = b.tensor("x", {1, 300}, bf16, Role::input), out = b.tensor("out", {1, 300}, bf16, Role::output);
  nki::TensorHandle sums[2] = {b.tensor("a", {1, 300}, bf16), b.tensor("b", {1, 300}, bf16)};
  b.emit(nki::CollectivePermute{x.whole(), sums[0].whole()});
  for (int hop = 1; hop < ranks; ++hop)
    b.emit(nki::CollectivePermuteReduce{x.whole(), sums[(hop + 1) % 2].whole(), sums[hop % 2].whole(), op});
  b.emit(nki::DmaCopy{out.whole(), sums[(ranks - 1) % 2].whole()});
  auto const program = valid(b.program());
  Arrangement arrangement;
  for (int worker = 0; worker < ranks; ++worker) arrangement.ring.push_back((worker * 3 + 1) % ranks);
  if (ranks == 3) arrangement.ring = {2, 0, 1};
  auto const input = [](int worker) { return random_values(300, 60 + static_cast<unsigned>(worker)); };
  auto const results = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    return nki::simulate(program, {{"x", input(arrangement.worker(ring.rank()))}}, ring, arrangement);
  });
  auto const narrow = [](float value) { return static_cast<float>(Eigen::bfloat16(value)); };
  for (int rank = 0; rank < ranks; ++rank) {
    // The data received last started at the next rank and have passed through all others.
    std::vector<float> expected(300);
    for (int hop = 0; hop < ranks; ++hop) {
      std::vector<float> const met = input(arrangement.ring[static_cast<std::size_t>((rank + hop) % ranks)]);
      for (std::size_t i = 0; i < 300; ++i) {
        float const value = narrow(met[i]);
        expected[i] = hop == 0              ? value
                      : op == Operator::add ? narrow(value + expected[i])
                                            : std::max(value, expected[i]);
      }
    }
    CHECK(results[static_cast<std::size_t>(rank)].at("out") == expected);
  }
}

TEST_CASE("No peer waits for a failed rank") {
  // The input of rank 1 is missing.
  auto const program = valid(permute(3, 1, 2));
  CHECK_THROWS_WITH(
      annulus::run_ring(
          3,
          [&](annulus::SimulatedRing& ring) {
            return nki::simulate(program, ring.rank() == 1 ? Tensors{} : Tensors{{"x", of_worker(0)}}, ring);
          }),
      ContainsSubstring("input x of program permute is missing"));
}

TEST_CASE("Rings and arrangements that do not fit the program are refused") {
  auto const run = [](int ranks, Arrangement const& arrangement) {
    annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
      nki::simulate(valid(permute(2, 1, 1)), {{"x", of_worker(0)}}, ring, arrangement);
    });
  };
  auto const ordered = [](std::vector<int> ring) {
    Arrangement arrangement;
    arrangement.ring = std::move(ring);
    return arrangement;
  };
  run(2, ordered({1, 0}));
  CHECK_THROWS_WITH(run(3, {}), ContainsSubstring("2 ranks on a ring of 3"));
  CHECK_THROWS_AS(run(2, ordered({0, 1, 2})), annulus::UnsupportedError);
  CHECK_THROWS_WITH(run(2, ordered({0, 0})), ContainsSubstring("[0, 0]"));
  CHECK_THROWS_AS(run(2, ordered({0, 2})), annulus::UnsupportedError);
  Arrangement absent;
  absent.first_core = 1;
  CHECK_THROWS_WITH(run(2, absent), ContainsSubstring("core 1 is to go first of 1"));
}
