// Validator: whole programs, and the text of findings.
#include <set>
#include <string_view>

#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

namespace {

constexpr auto bf16 = ElementType::bfloat16;
constexpr auto f32 = ElementType::float32;

/// exp(q^T k) of one query tile, with row sums chained over the key tiles: load, multiply, activate, store.
Program weights_and_sums(Index keys, bool first_resets = true) {
  Draft draft;
  TensorHandle const q = draft.input("q", {64, 128}, bf16), k = draft.input("k", {64, keys}, bf16);
  TensorHandle const p = draft.tensor("p", {128, keys}, f32, Role::output),
                     sums = draft.tensor("sums", {128, 1}, f32, Role::output);
  TileHandle const q_tile = draft.tile("q_tile", Memory::sbuf, 64, 128, bf16),
                   sum = draft.tile("sum", Memory::sbuf, 128, 1, f32);
  TileHandle const k_tile = draft.declare("k_tile", Memory::sbuf, 64, 512, bf16, 2);
  TileHandle const scores = draft.declare("scores", Memory::psum, 128, 512, f32, 2);
  TileHandle const weights = draft.declare("weights", Memory::sbuf, 128, 512, f32, 2);
  draft.section("load");
  draft.emit(DmaCopy{q_tile.whole(), q.whole()});
  Index const tiles = (keys + 511) / 512;
  for (Index tile = 0; tile < tiles; ++tile) {
    Index const columns = std::min<Index>(512, keys - 512 * tile);
    draft.section("key tile", tile);
    draft.allocate(k_tile);
    draft.emit(DmaCopy{k_tile.columns(0, columns), k.pattern(512 * tile, {{keys, 64}, {1, columns}})});
    draft.allocate(scores);
    draft.emit(MatMul{scores.columns(0, columns), q_tile.whole(), k_tile.columns(0, columns)});
    draft.allocate(weights);
    Activation exp{weights.columns(0, columns), Function::exp, scores.columns(0, columns), 0.0f, 0.125f, Operator::add};
    exp.reduce_cmd = tile == 0 && first_resets ? ReduceCommand::reset_reduce : ReduceCommand::reduce;
    if (tile == tiles - 1) exp.reduce_res = sum.whole();
    draft.emit(exp);
    draft.emit(DmaCopy{p.pattern(512 * tile, {{keys, 128}, {1, columns}}), weights.columns(0, columns)});
  }
  draft.emit(DmaCopy{sums.whole(), sum.whole()});
  return draft.done();
}

/// Keys move once around a ring of `ranks`; each core adds its half to its own sum.
Program sums_around_the_ring(int ranks, bool with_barrier_before_overwriting = true) {
  Draft draft(2, ranks);
  TensorHandle const k = draft.input("k", {128, 64}, bf16), sums = draft.tensor("sums", {128, 64}, f32, Role::output);
  TensorHandle const buffers[] = {draft.scratch("ring_a", {128, 64}, bf16), draft.scratch("ring_b", {128, 64}, bf16)};
  auto const half = [](TensorHandle const& tensor) {
    return tensor.pattern(Affine::of(core_variable, 64 * 64), {{64, 64}, {1, 64}});
  };
  TileHandle const sum = draft.filled("sum", 64, 64);
  TileHandle const tile = draft.declare("tile", Memory::sbuf, 64, 64, bf16, 2);
  draft.emit(DmaCopy{half(buffers[0]), half(k)});
  for (int step = 0; step < ranks; ++step) {
    TensorHandle const& here = buffers[step % 2];
    TensorHandle const& next = buffers[(step + 1) % 2];
    draft.section("step", step);
    if (step == 0) draft.emit(CoreBarrier{here.whole()});
    if (step + 1 < ranks) {
      if (step > 0 && with_barrier_before_overwriting) draft.emit(CoreBarrier{next.whole()});
      draft.emit(CollectivePermute{here.whole(), next.whole()});
    }
    draft.allocate(tile);
    draft.emit(DmaCopy{tile.whole(), half(here)});
    draft.emit(TensorTensor{sum.whole(), sum.whole(), tile.whole(), Operator::add});
  }
  draft.emit(DmaCopy{half(sums), sum.whole()});
  return draft.done();
}

}  // namespace

TEST_CASE("A small attention program is valid", "[nki][validate]") {
  for (Index keys : {1, 512, 513, 1200}) check_accepted(weights_and_sums(keys));
  check_refused(weights_and_sums(1200, false), {"R15", "activation", "reduce_cmd", "reduce before any reset"});
}

TEST_CASE("A ring program on two cores is valid with barriers", "[nki][validate]") {
  for (int ranks : {1, 2, 3, 4, 8}) check_accepted(sums_around_the_ring(ranks));
  for (int ranks : {1, 2}) check_accepted(sums_around_the_ring(ranks, false));
  check_refused(sums_around_the_ring(3, false), {"R21", "collective_permute_implicit", "dsts_by_channel",
                                                 "element 0 of tensor ring_a is overwritten after a core read it"});
}

TEST_CASE("A finding names its place", "[nki][validate]") {
  Draft draft(2);
  TileHandle const tile = draft.declare("tile", Memory::sbuf, 32, 8, f32);
  TileHandle const to = draft.tile("to", Memory::sbuf, 32, 8, f32);
  draft.loop("pair", 3, [&](Affine pair) {
    draft.section("step", pair * 2 + 1);
    draft.allocate(tile);
    draft.on_core(0, [&] { draft.fill(tile.whole()); });
    draft.loop("column", 8, [&](Affine column) {
      draft.fill(tile.columns(0, 7));
      draft.emit(TensorCopy{to.column(column), tile.column(column)});
    });
  });
  Program const program = draft.done();
  std::vector<Finding> const found = findings(program, hardware_of(Target::trn2));
  REQUIRE(found.size() == 1);
  CHECK(text_of(found[0]) ==
        "rule R14, tensor_copy (section \"step\" 1, pair_1 = 0, column_2 = 7, core 1), src: element 7 of tile tile was "
        "never "
        "written in all of partitions 0..31; what is read must have been written");
  CHECK_THROWS_WITH(validate(program, hardware_of(Target::trn2)), "nki program draft: " + text_of(found[0]));
}

TEST_CASE("A place found by the text pass names the ranges of its loops", "[nki][validate]") {
  Draft draft(2);
  TileHandle const tile = draft.tile("tile", Memory::sbuf, 32, 8, f32);
  draft.loop("pair", 3, [&](Affine pair) {
    draft.section("step", pair * 2 + 1);
    draft.on_core(1, [&] { draft.fill(tile.columns(pair, 7)); });
  });
  std::vector<Finding> const found = findings(draft.done(), hardware_of(Target::trn2));
  REQUIRE(found.size() == 1);
  CHECK(found[0].place == "section \"step\" 1..5, pair_1 = 0..2, core 1");
  CHECK(found[0].message == "elements 0..8 of a partition of tile tile, which has 8");
}

TEST_CASE("The number of findings is limited", "[nki][validate]") {
  Draft draft;
  TileHandle const tile = draft.tile("tile", Memory::sbuf, 32, 8, f32);
  for (int i = 0; i < 30; ++i) draft.emit(Memset{tile.whole(), 1.0f, Engine::scalar});
  Program const program = draft.done();
  CHECK(findings(program, hardware_of(Target::trn2)).size() == 20);
  CHECK(findings(program, hardware_of(Target::trn2), 3).size() == 3);
  CHECK(findings(program, hardware_of(Target::trn2), 100).size() == 30);
}

TEST_CASE("Every rule has a name of its own", "[nki][validate]") {
  std::set<std::string_view> names;
  for (int rule = 0; rule <= static_cast<int>(Rule::lifetime); ++rule)
    CHECK(names.insert(name_of(static_cast<Rule>(rule))).second);
  CHECK(name_of(Rule::partitions) == "R1");
  CHECK(name_of(Rule::overwrite) == "R21");
}
