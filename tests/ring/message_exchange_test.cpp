// Exchanges by messages: bytes and hops of each shift, and which slots hold what.

#include "annulus/ring/exchanges.hpp"

#include <vector>

#include "ring/marked_pass.hpp"
#include "support/catch.hpp"
#include "support/recording_communicator.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Recorded = RecordingCommunicator<SimulatedRing>;

/// The shifts that a rank starts in one pass, and complaints.
struct Shifts {
  std::vector<RecordedEvent> started;
  std::string wrong;
};

std::vector<Shifts> shifts_of(RingPlan const& plan) {
  return run_ring(plan.ranks(), [&](SimulatedRing& simulated) {
    Recorded ring(simulated);
    ReferenceBackend reference;
    MarkedBackend backend(reference, [](std::string_view, Index) {});
    ActionList const list = actions_of(plan, ring.rank());
    MarkedSlots<Recorded> slots;
    Shifts shifts;
    int last = -1;
    MarkedCalls calls;
    calls.check = [&](int i, WorkRows const& here) {
      // Rows arrive in two slots by turns, so that a step works on one while the other fills.
      Slot const& slot = slots.slot(here.from.slot);
      if (slot.kind != SlotKind::rows || slot.number != i % 2 || here.from.slot == last)
        shifts.wrong += "rows in the wrong slot\n";
      last = here.from.slot;
    };
    move_marks(plan, list, ring, backend, slots, shifts.wrong, calls);
    for (RecordedEvent const& event : ring.events())
      if (event.kind == RecordedEvent::started) shifts.started.push_back(event);
    return shifts;
  });
}

}  // namespace

TEST_CASE("each shift sends the rows of the owner that is here, to the next rank", "[ring]") {
  std::vector<Index> const lengths = {4, 0, 3, 1};
  RingPlan const plan(rotation_request(lengths, Pass::forward, Rotation::keys));
  auto const all = shifts_of(plan);
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    Shifts const& shifts = all[static_cast<std::size_t>(rank)];
    CHECK(shifts.wrong == "");
    REQUIRE(shifts.started.size() == 3);
    for (int i = 0; i < 3; ++i) {
      RecordedEvent const& shift = shifts.started[static_cast<std::size_t>(i)];
      auto const bytes_of = [&](Rank owner) {
        return static_cast<std::size_t>(lengths[static_cast<std::size_t>(owner)] *
                                        plan.transport().prefetched.bytes_per_row());
      };
      CHECK((shift.channel == Channel::prefetched && shift.hop == 1));
      CHECK(shift.bytes_sent == bytes_of(plan.owner(rank, i)));  // none for the rows of a rank that has none
      CHECK(shift.bytes_received == bytes_of(plan.owner(rank, i + 1)));
    }
  }
}

TEST_CASE("carried results follow their rows and end at their owner", "[ring]") {
  RingPlan const plan(rotation_request({2, 2, 2}, Pass::backward, Rotation::keys));
  REQUIRE_FALSE(plan.transport().direct);
  for (Shifts const& shifts : shifts_of(plan)) {
    CHECK(shifts.wrong == "");
    std::size_t carried = 0;
    for (RecordedEvent const& shift : shifts.started)
      if (shift.channel == Channel::carried) {
        ++carried;
        CHECK(shift.hop == 1);
        CHECK(shift.bytes_sent == static_cast<std::size_t>(2 * plan.transport().carried.bytes_per_row()));
      }
    CHECK(carried == 3);
  }
}

TEST_CASE("with a local mask only the rows that are needed are sent, and results go straight to their owner",
          "[ring]") {
  RingPlan const plan(rotation_request({4, 4, 4, 4}, Pass::backward, Rotation::keys, sliding_window(1, 0)));
  REQUIRE(plan.transport().direct);
  REQUIRE(plan.steps() == 2);
  auto const all = shifts_of(plan);
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    auto const& started = all[static_cast<std::size_t>(rank)].started;
    REQUIRE(started.size() == 2);
    // The first query of a rank sees the last key of the rank before it.
    bool const needed = rank + 1 < plan.ranks(), needs = rank > 0;
    CHECK((started[0].channel == Channel::prefetched && started[0].hop == 1));
    CHECK(started[0].bytes_sent ==
          (needed ? static_cast<std::size_t>(plan.transport().prefetched.bytes_per_row()) : 0));
    CHECK((started[1].channel == Channel::carried && started[1].hop == 3));
    CHECK(started[1].bytes_sent == (needs ? static_cast<std::size_t>(plan.transport().carried.bytes_per_row()) : 0));
  }
}
