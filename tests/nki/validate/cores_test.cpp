// Validator: races between the two cores of a rank (R20, R21).
#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

namespace {

/// Two cores and a tensor that both access.
struct Pair : Draft {
  TensorHandle shared = scratch("shared", {2, 64}), received = scratch("received", {2, 64});
  TileHandle row = filled("row", 1, 64), both = filled("both", 1, 128);

  explicit Pair(int ranks = 1) : Draft(2, ranks) {}

  Access part(TensorHandle const& tensor, Affine const& index) const {
    return tensor.pattern(index * 64, {{64, 1}, {1, 64}});
  }
  static Affine own() { return Affine::of(core_variable); }
  static Affine other() { return Affine(1) - own(); }

  void write(Affine const& index) { emit(DmaCopy{part(shared, index), row.whole()}); }
  void read(Affine const& index) { emit(DmaCopy{row.whole(), part(shared, index)}); }
  void barrier() { emit(CoreBarrier{shared.whole()}); }
  void permute() { emit(CollectivePermute{shared.whole(), received.whole()}); }
  /// Each core writes its part, followed by a barrier.
  void fill_shared() {
    write(own());
    barrier();
  }
};

}  // namespace

TEST_CASE("R20: a core reads what the other wrote only after a barrier", "[nki][validate]") {
  auto const program = [](bool with_barrier) {
    Pair pair;
    pair.fill_shared();
    pair.on_core(0, [&] { pair.write(0); });
    if (with_barrier) pair.barrier();
    pair.on_core(1, [&] { pair.read(0); });
    return pair.done();
  };
  check_refused(program(false),
                {"R20", "dma_copy", "src",
                 "element 0 of tensor shared is read after a core wrote it; between them a core_barrier"});
  check_accepted(program(true));
}

TEST_CASE("R20: a barrier on another tensor does not order the accesses", "[nki][validate]") {
  auto const program = [](bool on_this_one) {
    Pair pair;
    pair.fill_shared();
    pair.on_core(0, [&] { pair.write(0); });
    pair.emit(CoreBarrier{on_this_one ? pair.shared.whole() : pair.received.whole()});
    pair.on_core(1, [&] { pair.read(0); });
    return pair.done();
  };
  check_refused(program(false), {"R20", "dma_copy", "src", "element 0 of tensor shared"});
  check_accepted(program(true));
}

TEST_CASE("R20: a collective sends what both cores wrote only after a barrier", "[nki][validate]") {
  auto const program = [](bool with_barrier) {
    Pair pair(2);
    pair.write(Pair::own());
    if (with_barrier) pair.barrier();
    pair.permute();
    return pair.done();
  };
  check_refused(program(false), {"R20", "collective_permute_implicit", "srcs_by_channel",
                                 "element 0 of tensor shared is sent after a core wrote it"});
  check_accepted(program(true));
}

TEST_CASE("R20: data received by a collective are visible to both cores", "[nki][validate]") {
  Pair pair(2);
  pair.fill_shared();
  pair.permute();
  pair.emit(DmaCopy{pair.row.whole(), pair.part(pair.received, Pair::other())});
  check_accepted(pair.done());
}

TEST_CASE("Cores that access disjoint parts need no barrier", "[nki][validate]") {
  auto const program = [](bool own_part) {
    Pair pair;
    pair.write(Pair::own());
    pair.read(Pair::own());
    pair.write(own_part ? Pair::own() : Pair::other());
    return pair.done();
  };
  check_accepted(program(true));
  std::vector<Finding> const found = findings(program(false), hardware_of(Target::trn2));
  REQUIRE(!found.empty());
  CHECK(found[0].rule == Rule::overwrite);
}

TEST_CASE("R21: a core overwrites what the other read only after a barrier", "[nki][validate]") {
  auto const program = [](bool with_barrier, bool reader_first) {
    Pair pair;
    pair.fill_shared();
    pair.on_core(reader_first ? 0 : 1, [&] { pair.read(1); });
    if (with_barrier) pair.barrier();
    pair.on_core(reader_first ? 1 : 0, [&] { pair.write(1); });
    return pair.done();
  };
  check_refused(program(false, true),
                {"R21", "dma_copy", "dst",
                 "element 64 of tensor shared is overwritten after a core read it; between them a core_barrier"});
  // The shadow pass runs one core after the other: the race is found even if the writer runs first.
  check_refused(program(false, false),
                {"R20", "dma_copy", "src", "element 64 of tensor shared is read after a core wrote it"});
  check_accepted(program(true, true));
  check_accepted(program(true, false));
}

TEST_CASE("R21: both cores must not write the same element", "[nki][validate]") {
  auto const program = [](bool with_barrier) {
    Pair pair;
    pair.on_core(0, [&] { pair.write(1); });
    if (with_barrier) pair.barrier();
    pair.on_core(1, [&] { pair.write(1); });
    return pair.done();
  };
  check_refused(program(false),
                {"R21", "dma_copy", "dst", "element 64 of tensor shared is overwritten after a core wrote it"});
  check_accepted(program(true));
}

TEST_CASE("R21: a collective must not overwrite what a core may still read", "[nki][validate]") {
  auto const program = [](bool with_barrier) {
    Pair pair(2);
    pair.fill_shared();
    pair.permute();
    pair.emit(DmaCopy{pair.row.whole(), pair.part(pair.received, Pair::own())});
    if (with_barrier) pair.emit(CoreBarrier{pair.received.whole()});
    pair.permute();
    return pair.done();
  };
  check_refused(program(false), {"R21", "collective_permute_implicit", "dsts_by_channel",
                                 "element 0 of tensor received is overwritten after a core read it"});
  check_accepted(program(true));
  check_accepted(program(false), {.collectives_wait_for_both_cores = true});
}

TEST_CASE("R21: a core must not overwrite what a collective may still send", "[nki][validate]") {
  auto const program = [](bool with_barrier) {
    Pair pair(2);
    pair.fill_shared();
    pair.permute();
    if (with_barrier) pair.barrier();
    pair.write(Pair::own());
    return pair.done();
  };
  check_refused(program(false),
                {"R21", "dma_copy", "dst", "element 0 of tensor shared is overwritten after a collective sent it"});
  check_accepted(program(true));
  check_accepted(program(false), {.collectives_wait_for_both_cores = true});
}

TEST_CASE("Each core has its own copy of a tensor in private_hbm", "[nki][validate]") {
  auto const program = [](Memory memory) {
    Draft draft(2);
    TensorHandle const scratch = draft.tensor("scratch", {1, 64}, ElementType::float32, Role::internal, memory);
    TileHandle const row = draft.filled("row", 1, 64);
    draft.emit(DmaCopy{scratch.whole(), row.whole()});
    draft.emit(DmaCopy{row.whole(), scratch.whole()});
    return draft.done();
  };
  check_accepted(program(Memory::private_hbm));
  CHECK(findings(program(Memory::shared_hbm), hardware_of(Target::trn2)).at(0).rule == Rule::overwrite);

  Draft one_fills(2);
  TensorHandle const scratch =
      one_fills.tensor("scratch", {1, 64}, ElementType::float32, Role::internal, Memory::private_hbm);
  TileHandle const row = one_fills.filled("row", 1, 64);
  one_fills.on_core(0, [&] { one_fills.emit(DmaCopy{scratch.whole(), row.whole()}); });
  one_fills.emit(DmaCopy{row.whole(), scratch.whole()});
  Program const program_of_one = one_fills.done();
  check_refused(program_of_one, {"R14", "dma_copy", "src", "element 0 of tensor scratch was never written"});
  CHECK(findings(program_of_one, hardware_of(Target::trn2)).at(0).place == "core 1");
}

TEST_CASE("A program for one core needs no barriers", "[nki][validate]") {
  Draft draft(1, 2);
  TensorHandle const a = draft.scratch("a", {1, 64}), b = draft.scratch("b", {1, 64});
  TileHandle const row = draft.filled("row", 1, 64);
  draft.emit(DmaCopy{a.whole(), row.whole()});
  draft.emit(CollectivePermute{a.whole(), b.whole()});
  draft.emit(DmaCopy{row.whole(), b.whole()});
  draft.emit(DmaCopy{a.whole(), row.whole()});
  draft.emit(CollectivePermute{b.whole(), a.whole()});
  check_accepted(draft.done());
}
