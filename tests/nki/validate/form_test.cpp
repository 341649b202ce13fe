// Validator: form of programs, that is indices, loops and declarations.
#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

namespace {

/// A program that fills a tile in a loop, changed by `change(program, loop)`.
template <class Change>
Program changed(Change change) {
  Draft draft;
  TileHandle const tile = draft.tile("tile", Memory::sbuf, 32, 8, ElementType::float32);
  draft.loop("column", 8, [&](Affine column) { draft.fill(tile.column(column)); });
  Program program = draft.done();
  change(program, std::get<Loop>(program.body.back().content));
  return program;
}

Memset& memset_of(Loop& loop) { return std::get<Memset>(std::get<Instruction>(loop.body.front().content)); }

}  // namespace

TEST_CASE("Form: indices of buffers, variables and registers", "[nki][validate]") {
  check_accepted(changed([](Program&, Loop&) {}));
  check_refused(changed([](Program&, Loop& loop) { memset_of(loop).dst.buffer = 1; }),
                {"form", "memset", "dst", "buffer 1; the program has 1 buffers"});
  check_refused(changed([](Program&, Loop& loop) { memset_of(loop).dst.buffer = -1; }),
                {"form", "memset", "dst", "buffer -1"});
  check_refused(changed([](Program& program, Loop& loop) {
                  program.variables.push_back("stray");
                  memset_of(loop).dst.offset = Affine::of(2);
                }),
                {"form", "memset", "dst", "depends on variable 2, which no loop around it counts"});
  check_refused(changed([](Program&, Loop& loop) {
                  memset_of(loop).dst = Access(0, {{8, 32}, {1, 0}});
                }),
                {"form", "memset", "dst", "an axis of 0 elements; at least 1"});
  check_refused(changed([](Program& program, Loop&) {
                  program.body.push_back({Instruction{ProcessingRank{0, 0}}});
                }),
                {"form", "collective_permute_implicit_current_processing_rank_id", "",
                 "register 0; the program has 0 registers"});
  check_refused(changed([](Program& program, Loop&) { program.body.push_back({Allocate{3}}); }),
                {"form", "allocate", "buffer", "3; the program has 1 buffers"});
  check_refused(changed([](Program& program, Loop&) {
                  program.body.push_back({Section{"last", Affine::of(1)}});
                }),
                {"form", "section", "last", "numbered by a variable that no loop around it counts"});
  check_refused(changed([](Program&, Loop& loop) {
                  Affine const largest = std::numeric_limits<Index>::max();
                  loop.body.insert(loop.body.begin(), {Section{"many", largest + Affine::of(loop.variable)}});
                }),
                {"form", "section", "many", "accepted: numbers of 64 bits"});
}

TEST_CASE("Form: loops and code of one core", "[nki][validate]") {
  check_refused(changed([](Program&, Loop& loop) { loop.count = -1; }), {"form", "loop", "count", "-1; at least 0"});
  check_refused(changed([](Program& program, Loop& loop) {
                  loop.variable = 0;
                  memset_of(loop).dst.offset = 0;
                  program.cores = 1;
                }),
                {"form", "loop", "variable", "0; accepted: 1 to 1"});
  check_refused(changed([](Program&, Loop& loop) {
                  loop.body.push_back({Loop{loop.variable, 2, {}}});
                }),
                {"form", "loop", "variable", "column_1 is counted by a loop around this one"});
  check_refused(changed([](Program& program, Loop&) {
                  program.body.push_back({OnCore{1, {}}});
                }),
                {"form", "on_core", "core", "1; the program runs on 1"});
  // Two consecutive loops may use the same variable.
  check_accepted(changed([](Program& program, Loop& loop) { program.body.push_back({Loop{loop.variable, 2, {}}}); }));
}

TEST_CASE("Form: declarations of a program", "[nki][validate]") {
  check_refused(changed([](Program& program, Loop&) { program.buffers.push_back(program.buffers.front()); }),
                {"form", "program", "tile", "two buffers of this name"});
  check_refused(changed([](Program& program, Loop&) {
                  program.buffers.push_back({"none", Memory::sbuf, ElementType::float32, {4, 0}});
                }),
                {"form", "program", "none", "has shape [4, 0]; extents of at least 1"});
  check_refused(changed([](Program& program, Loop&) {
                  program.buffers.push_back({"deep", Memory::sbuf, ElementType::float32, {4, 2, 2}});
                }),
                {"form", "program", "deep", "has shape [4, 2, 2]; a tile has partitions and elements per partition"});
  check_refused(changed([](Program& program, Loop&) { program.buffers.front().rotation = 0; }),
                {"form", "program", "tile", "rotation 0; at least 1"});
  check_refused(changed([](Program& program, Loop&) { program.cores = 3; }),
                {"form", "program", "cores", "3; accepted: 1 or 2"});
  check_refused(changed([](Program& program, Loop&) { program.ranks = 0; }),
                {"form", "program", "ranks", "0; at least 1"});

  Program const program = changed([](Program&, Loop&) {});
  std::vector<Finding> const found = findings(program, hardware_of(Target::trn3));
  REQUIRE(found.size() == 1);
  CHECK(found[0].message == "is trn2; the hardware is trn3");
}

TEST_CASE("A tensor in HBM is not allocated and has no age", "[nki][validate]") {
  auto const program = [](bool allocate, int age) {
    Draft draft;
    TensorHandle const q = draft.input("q", {4, 8});
    TileHandle const tile = draft.tile("tile", Memory::sbuf, 4, 8, ElementType::float32);
    if (allocate) draft.allocate({q.buffer, 4, 8, 0});
    Access whole = q.whole();
    whole.age = age;
    draft.emit(DmaCopy{tile.whole(), whole});
    return draft.done();
  };
  check_refused(program(true, 0), {"form", "allocate", "q", "is in shared_hbm; tiles on chip are allocated"});
  check_refused(program(false, 1), {"form", "dma_copy", "src", "age 1 and start partition 0 of tensor q"});
  check_accepted(program(false, 0));
}
