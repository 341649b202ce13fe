// Validator: barriers, permutes and rank queries (R19).
#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

namespace {

/// A valid permute, with fields that a test may change.
struct Permute {
  int cores = 1, ranks = 4;
  Memory src_memory = Memory::shared_hbm;
  std::vector<Index> dst_shape{16, 8};
  ElementType dst_type = ElementType::float32;
  bool onto_itself = false, part = false, on_one_core = false;

  Program program() const {
    Draft draft(cores, ranks);
    TensorHandle const src = draft.tensor("src", {16, 8}, ElementType::float32, Role::internal, src_memory);
    TensorHandle const dst = draft.scratch("dst", dst_shape, dst_type);
    TileHandle const tile = draft.filled("tile", 1, 128);
    draft.on_core(0, [&] { draft.emit(DmaCopy{src.whole(), tile.whole()}); });
    if (cores == 2) draft.emit(CoreBarrier{src.whole()});
    auto const permute = [&] {
      Access const whole = part ? src.pattern(0, {{8, 15}, {1, 8}}) : src.whole();
      draft.emit(CollectivePermute{whole, onto_itself ? src.whole() : dst.whole()});
    };
    if (on_one_core)
      draft.on_core(0, permute);
    else
      permute();
    return draft.done();
  }
};

constexpr char const* name = "collective_permute_implicit";

}  // namespace

TEST_CASE("R19: operands of a permute", "[nki][validate]") {
  check_accepted(Permute{}.program());
  check_accepted(Permute{.cores = 2}.program());
  check_refused(Permute{.src_memory = Memory::private_hbm}.program(),
                {"R19", name, "srcs_by_channel", "src is in private_hbm; accepted: shared_hbm"});
  check_refused(
      Permute{.dst_shape = {8, 16}}.program(),
      {"R19", name, "srcs_by_channel", "src is [16, 8] of float32; dsts_by_channel dst is [8, 16] of float32"});
  check_refused(
      Permute{.dst_type = ElementType::bfloat16}.program(),
      {"R19", name, "srcs_by_channel", "src is [16, 8] of float32; dsts_by_channel dst is [16, 8] of bfloat16"});
  check_refused(Permute{.onto_itself = true}.program(),
                {"R19", name, "srcs_by_channel", "is tensor src, and so is dsts_by_channel"});
  check_refused(Permute{.part = true}.program(),
                {"R19", name, "srcs_by_channel", "a part of tensor src; accepted: all of its 128 elements"});
}

TEST_CASE("R19: permutes require a ring and all cores", "[nki][validate]") {
  check_refused(Permute{.ranks = 1}.program(), {"R19", name, "", "in a program for 1 rank; a ring has at least 2"});
  check_accepted(Permute{.ranks = 2}.program());
  check_refused(Permute{.cores = 2, .on_one_core = true}.program(),
                {"R19", name, "", "is issued by one core only; all 2 cores must issue the same sequence"});
}

TEST_CASE("R19: both cores use a tensor that a collective touches, or neither", "[nki][validate]") {
  auto const program = [](int readers) {
    Draft draft(2, 4);
    TensorHandle const src = draft.scratch("src", {128}), dst = draft.scratch("dst", {128});
    TileHandle const tile = draft.filled("tile", 1, 128);
    draft.on_core(0, [&] { draft.emit(DmaCopy{src.whole(), tile.whole()}); });
    draft.emit(CoreBarrier{src.whole()});
    draft.emit(CollectivePermute{src.whole(), dst.whole()});
    for (int core = 0; core < readers; ++core)
      draft.on_core(core, [&] { draft.emit(DmaCopy{tile.whole(), dst.whole()}); });
    return draft.done();
  };
  check_accepted(program(0));
  check_accepted(program(2));
  check_refused(program(1), {"R19", "program", "dst", "of the two cores only 0 uses it otherwise"});
}

TEST_CASE("R19: operators of a permute that reduces", "[nki][validate]") {
  auto const program = [](Operator op) {
    Draft draft(1, 2);
    TensorHandle const a = draft.input("a", {8, 8}), b = draft.input("b", {8, 8}), c = draft.scratch("c", {8, 8});
    draft.emit(CollectivePermuteReduce{a.whole(), b.whole(), c.whole(), op});
    return draft.done();
  };
  check_refused(program(Operator::multiply),
                {"operator", "collective_permute_implicit_reduce", "op", "multiply; accepted: add, minimum, maximum"});
  check_accepted(program(Operator::add));
}

TEST_CASE("R19: barriers require two cores, and both must issue them", "[nki][validate]") {
  auto const program = [](int cores, bool on_one_core) {
    Draft draft(cores);
    TensorHandle const tensor = draft.scratch("t", {16, 8});
    auto const barrier = [&] { draft.emit(CoreBarrier{tensor.whole()}); };
    if (on_one_core)
      draft.on_core(0, barrier);
    else
      barrier();
    return draft.done();
  };
  check_refused(program(1, false), {"R19", "core_barrier", "", "in a program for 1 core; barriers are for 2 cores"});
  check_refused(program(2, true), {"R19", "core_barrier", "", "is issued by one core only"});
  check_accepted(program(2, false));

  Draft part(2);
  TensorHandle const tensor = part.scratch("t", {16, 8});
  part.emit(CoreBarrier{tensor.pattern(8, {{8, 15}, {1, 8}})});
  check_refused(part.done(), {"R19", "core_barrier", "data", "a part of tensor t; accepted: all of its 128 elements"});
}

TEST_CASE("R19: the rank query takes 0 to ranks - 1 hops", "[nki][validate]") {
  auto const program = [](Index steps) {
    Draft draft(1, 4);
    int const number = draft.make_register();
    TensorHandle const src = draft.input("src", {16, 8}), dst = draft.scratch("dst", {16, 8});
    draft.emit(CollectivePermute{src.whole(), dst.whole()});
    draft.loop("step", steps, [&](Affine step) { draft.emit(ProcessingRank{number, step}); });
    return draft.done();
  };
  check_refused(program(5), {"R19", "collective_permute_implicit_current_processing_rank_id", "iteration_id",
                             "0..4; accepted: 0 to 3"});
  check_accepted(program(4));
}
