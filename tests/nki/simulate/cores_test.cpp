// Simulator: synchronization of the two cores of a rank, and collectives on a ring of ranks.

#include <algorithm>
#include <numeric>

#include "annulus/comm/simulated_ring.hpp"
#include "nki/simulate/one_program.hpp"
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

auto const trn2 = nki::hardware_of(Target::trn2);

/// Each core writes its half of `shared`, waits at a barrier if `waits`, and copies the other half to the output.
Program exchange_halves(bool waits, Memory memory = Memory::shared_hbm) {
  Builder b("exchange", Target::trn2, 2, 1);
  auto const shared = b.tensor("shared", {2, 4}, f32, Role::internal, memory),
             out = b.tensor("out", {2, 4}, f32, Role::output);
  auto const tile = b.tile("tile", Memory::sbuf, 1, 4, f32);
  auto const core = Affine::of(nki::core_variable);
  b.emit(nki::Iota{tile.whole(), {{1, 4}}, core * 10});
  b.emit(nki::DmaCopy{shared.pattern(core * 4, {{1, 1}, {1, 4}}), tile.whole()});
  if (waits) b.emit(nki::CoreBarrier{shared.whole()});
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
  nki::Statistics statistics;
  Tensors const outputs = nki::simulate(exchange_halves(true), trn2, {}, arrangement, &statistics);
  CHECK(outputs.at("out") == std::vector<float>{10, 11, 12, 13, 0, 1, 2, 3});
  CHECK(statistics.total() == 2 * 5);
  CHECK(statistics.of(nki::Engine::dma) == 2 * 3);
  CHECK(statistics.of(nki::Engine::gpsimd) == 2 * 2);
  // Without it, one of the cores reads too early.
  CHECK_THROWS_WITH(
      nki::simulate(exchange_halves(false), trn2, {}, arrangement),
      ContainsSubstring("core " + std::to_string(first)) && ContainsSubstring("of shared, which was never written"));
}

TEST_CASE("Each core has its own copy of a private tensor") {
  CHECK_THROWS_WITH(nki::simulate(exchange_halves(true, Memory::private_hbm), trn2, {}),
                    ContainsSubstring("of which each core has its own"));
  CHECK_THROWS_WITH(nki::simulate(exchange_halves(false, Memory::private_hbm), trn2, {}),
                    ContainsSubstring("of shared, which was never written"));
}

TEST_CASE("Cores that wait at different instructions are refused") {
  auto const program = [](auto&& write) {
    Builder b("astray", Target::trn2, 2, 1);
    auto const x = b.tensor("x", {1, 4}, f32), y = b.tensor("y", {1, 4}, f32);
    write(b, x.whole(), y.whole());
    return std::move(b).finish();
  };
  using A = nki::Access;
  auto const run = [&](auto&& write) { nki::simulate(program(write), trn2, {}); };
  CHECK_THROWS_WITH(run([](Builder& b, A x, A) {
                      b.section("step", 2);
                      b.on_core(1, [&] { b.emit(nki::CoreBarrier{x}); });
                    }),
                    ContainsSubstring("core 0 is at step 2, its end, core 1 at step 2, core_barrier"));
  CHECK_THROWS_WITH(run([](Builder& b, A x, A y) {
                      b.on_core(1, [&] { b.emit(nki::CoreBarrier{x}); });
                      b.emit(nki::CoreBarrier{y});
                      b.on_core(0, [&] { b.emit(nki::CoreBarrier{x}); });
                    }),
                    ContainsSubstring("cores do not meet"));
  run([](Builder& b, A x, A) { b.loop("again", 3, [&](Affine) { b.emit(nki::CoreBarrier{x}); }); });

  Builder alone("alone", Target::trn2, 1, 1);
  alone.emit(nki::CoreBarrier{alone.tensor("x", {4}, f32).whole()});
  CHECK_THROWS_WITH(nki::simulate(alone.program(), trn2, {}), ContainsSubstring("core_barrier requires 2 cores"));
}

TEST_CASE("Permutes follow any ring order, and queried ids name the owner of the data") {
  int const ranks = GENERATE(1, 2, 3, 4), cores = GENERATE(1, 2);
  auto const ids = GENERATE(Arrangement::Ids::position, Arrangement::Ids::global);
  Arrangement arrangement;
  arrangement.ids = ids;
  arrangement.group_begin = 12;
  arrangement.first_core = cores - 1;
  for (int worker = 0; worker < ranks; ++worker) arrangement.ring.push_back(worker);
  do {
    for (int hops = 0; hops <= ranks; ++hops) {
      Program const program = permute(ranks, cores, hops);
      auto const results = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
        return nki::simulate(program, trn2, {{"x", of_worker(arrangement.worker(ring.rank()))}}, ring, arrangement);
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

TEST_CASE("A program of one rank permutes to itself") {
  CHECK(nki::simulate(permute(1, 1, 1), trn2, {{"x", of_worker(1)}}).at("out") == of_worker(1));
}

TEST_CASE("A reducing permute adds the data of each rank, rounded at each hop") {
  int const ranks = GENERATE(1, 2, 3, 4);
  auto const op = GENERATE(Operator::add, Operator::maximum);
  Builder b("reduce", Target::trn2, 1, ranks);
  auto const x = b.tensor("x", {1, 300}, bf16, Role::input), out = b.tensor("out", {1, 300}, bf16, Role::output);
  nki::TensorHandle sums[2] = {b.tensor("a", {1, 300}, bf16), b.tensor("b", {1, 300}, bf16)};
  b.emit(nki::CollectivePermute{x.whole(), sums[0].whole()});
  for (int hop = 1; hop < ranks; ++hop)
    b.emit(nki::CollectivePermuteReduce{x.whole(), sums[(hop + 1) % 2].whole(), sums[hop % 2].whole(), op});
  b.emit(nki::DmaCopy{out.whole(), sums[(ranks - 1) % 2].whole()});
  Program const program = b.program();
  Arrangement arrangement;
  for (int worker = 0; worker < ranks; ++worker) arrangement.ring.push_back((worker * 3 + 1) % ranks);
  if (ranks == 3) arrangement.ring = {2, 0, 1};
  auto const input = [](int worker) { return random_values(300, 60 + static_cast<unsigned>(worker)); };
  auto const results = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    return nki::simulate(program, trn2, {{"x", input(arrangement.worker(ring.rank()))}}, ring, arrangement);
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

TEST_CASE("Permutes refuse undefined data and unequal extents, and no peer waits for a failed rank") {
  auto const run = [](bool defined, Index extent, nki::ElementType type) {
    Builder b("permute", Target::trn2, 1, 3);
    auto const x = b.tensor("x", {1, 8}, f32, Role::input), from = b.tensor("from", {1, 8}, f32),
               to = b.tensor("to", {1, extent}, type);
    b.emit(nki::DmaCopy{defined ? from.whole() : from.pattern(0, {{1, 1}, {1, 7}}),
                        defined ? x.whole() : x.pattern(0, {{1, 1}, {1, 7}})});
    b.emit(nki::CollectivePermute{from.whole(), to.whole()});
    annulus::run_ring(3, [&](annulus::SimulatedRing& ring) {
      nki::simulate(b.program(), trn2, {{"x", std::vector<float>(8)}}, ring);
    });
  };
  run(true, 8, f32);
  CHECK_THROWS_WITH(run(false, 8, f32),
                    ContainsSubstring("srcs_by_channel reads element 7 of from, which was never written"));
  CHECK_THROWS_WITH(run(true, 7, f32), ContainsSubstring("8 elements of float32, dst 7"));
  CHECK_THROWS_WITH(run(true, 8, bf16), ContainsSubstring("of bfloat16"));

  // The input of rank 1 is missing.
  Program const program = permute(3, 1, 2);
  CHECK_THROWS_WITH(
      annulus::run_ring(
          3,
          [&](annulus::SimulatedRing& ring) {
            return nki::simulate(program, trn2, ring.rank() == 1 ? Tensors{} : Tensors{{"x", of_worker(0)}}, ring);
          }),
      ContainsSubstring("input x of program permute is missing"));
}

TEST_CASE("Rings and arrangements that do not fit the program are refused") {
  auto const run = [](int ranks, Arrangement const& arrangement) {
    annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
      nki::simulate(permute(2, 1, 1), trn2, {{"x", of_worker(0)}}, ring, arrangement);
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
