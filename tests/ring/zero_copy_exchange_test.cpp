// Zero-copy exchange: ranks read rows and results where their owners hold them.

#include "annulus/ring/exchanges.hpp"

#include <span>
#include <string>
#include <vector>

#include "ring/marked_pass.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

/// The storage of the slots that other ranks read rows in, of each rank.
using OwnedRows = std::vector<std::span<std::byte const>>;

/// Moves marks `calls` times on this rank with the same slots. Returns complaints.
std::string move_in_windows(RingPlan const& plan, SimulatedRing& ring, int calls, OwnedRows& owned) {
  ReferenceBackend reference;
  MarkedBackend backend(reference, [](std::string_view, Index) {});
  MarkedSlots<SimulatedRing> slots;
  ActionList const list = actions_of(plan, ring.rank());
  slots.reserve(backend, ring, list);
  auto const& own = slots.memory(0);
  owned[static_cast<std::size_t>(ring.rank())] = {own.buffer(), static_cast<std::size_t>(own.bytes())};
  std::vector<std::byte> all(static_cast<std::size_t>(plan.ranks()));
  ring.all_gather(std::span(all).first(1), all);  // returns when every rank has written its entry
  std::string wrong;
  MarkedCalls marked;
  marked.check = [&](int i, WorkRows const& here) {
    if (i == 0 || here.rows.empty()) return;
    auto const& rows = owned[static_cast<std::size_t>(plan.owner(ring.rank(), i))];
    std::byte const* const first = slots.memory(here.from.slot).incoming(here.from.rows, 1)[0].data();
    if (first < rows.data() || first >= rows.data() + rows.size())
      wrong += "rows are not read in the buffer of their owner\n";
  };
  for (int call = 0; call < calls; ++call) {
    move_marks(plan, list, ring, backend, slots, wrong, marked, static_cast<std::uint64_t>(call));
    for (auto const& pending : slots.pending)
      if (pending.window || pending.transfer) wrong += "an exchange is pending after the pass\n";
    for (std::size_t s = 0; s < list.slots.size(); ++s)
      if (list.slots[s].kind == SlotKind::rows && list.slots[s].number > 0 &&
          slots.memory(static_cast<int>(s)).bytes() > 0)
        wrong += "a buffer for arriving rows was allocated\n";
  }
  return wrong;
}

/// Complaints of all ranks.
std::string rotate_without_copies(PlanRequest request, int calls = 1) {
  request.zero_copy = true;
  RingPlan const plan(request);
  OwnedRows owned(static_cast<std::size_t>(plan.ranks()));
  auto const complaints =
      run_ring(plan.ranks(), [&](SimulatedRing& ring) { return move_in_windows(plan, ring, calls, owned); },
               {.zero_copy = ZeroCopy::always});
  std::string all;
  for (std::string const& complaint : complaints) all += complaint;
  return all;
}

}  // namespace

TEST_CASE("rows are read in the buffer of their owner, and results reach it from every rank", "[ring]") {
  for (int ranks : {1, 2, 3, 5, 8})
    for (Pass pass : {Pass::forward, Pass::backward})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        CAPTURE(ranks, static_cast<int>(pass), static_cast<int>(rotation));
        CHECK(rotate_without_copies(
                  rotation_request(std::vector<Index>(static_cast<std::size_t>(ranks), 3), pass, rotation)) == "");
      }
}

TEST_CASE("ranks without rows share nothing", "[ring]") {
  for (Pass pass : {Pass::forward, Pass::backward}) {
    CHECK(rotate_without_copies(rotation_request({4, 0, 3}, pass, Rotation::keys)) == "");
    CHECK(rotate_without_copies(rotation_request({0, 0}, pass, Rotation::queries)) == "");
  }
}

TEST_CASE("the same buffers serve call after call, with checksums", "[ring]") {
  PlanRequest request = rotation_request({3, 4, 2, 1}, Pass::backward, Rotation::keys);
  request.checked = true;
  CHECK(rotate_without_copies(request, 20) == "");
}
