#pragma once
// The slots of a plan: the buffers of one rank.

#include <algorithm>
#include <array>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

/// Numbers of the slots that the actions of a lane name; -1: there is none.
struct LaneSlots {
  std::array<int, 3> rows{-1, -1, -1};
  std::array<int, 5> results{-1, -1, -1, -1, -1};
  int resident = -1, delta = -1, bias_gradient = -1, sink_gradients = -1, joint_gradients = -1, widened = -1;
  std::array<int, 3> rounded{-1, -1, -1}, gathered{-1, -1, -1}, group_results{-1, -1, -1}, leaving{-1, -1, -1},
      arriving{-1, -1, -1};
};

/// Appends the slots of a lane. `first`: those of the first lane, some of which the lane may share.
LaneSlots add_slots(std::vector<Slot>& slots, RingPlan const& lane, Rank rank, LaneSlots const& first);

/// The slots of all lanes of a plan.
std::vector<LaneSlots> slots_of(std::vector<Slot>& slots, RingPlan const& plan, Rank rank);

/// Bytes of all slots. Slots that use the memory of another one take what exceeds it.
Index bytes_of(std::vector<Slot> const& slots);

#if defined(ANNULUS_DEFINITIONS)

/// Appends slots of one lane.
class SlotWriter {
 public:
  SlotWriter(std::vector<Slot>& slots, int lane) : slots_(slots), lane_(lane) {}

  int add(SlotKind kind, int number, PayloadLayout const& layout, Index rows, bool windowed = false, int storage = -1) {
    slots_.push_back({kind, number, lane_, layout, layout.empty() ? 0 : rows, 1, windowed, storage});
    return static_cast<int>(slots_.size()) - 1;
  }

 private:
  std::vector<Slot>& slots_;
  int lane_;
};

inline void add_group_slots(SlotWriter slots, GroupExchange const& exchange, Rank rank, LaneSlots& numbers) {
  for (GroupRows kind : GroupExchange::all) {
    auto const k = static_cast<std::size_t>(kind);
    int const number = static_cast<int>(kind);
    numbers.gathered[k] = slots.add(SlotKind::gathered, number, exchange.before(kind), exchange.gathered_rows(kind, rank));
    numbers.group_results[k] =
        slots.add(SlotKind::group_results, number, exchange.after(kind), exchange.result_rows(kind, rank));
    numbers.leaving[k] = slots.add(SlotKind::leaving, number, exchange.before(kind), exchange.leaving_rows(kind, rank));
    numbers.arriving[k] = slots.add(SlotKind::arriving, number, exchange.after(kind), exchange.arriving_rows(kind, rank),
                                    false, numbers.leaving[k]);
  }
}

inline void add_wire_slots(SlotWriter slots, WireBuffers const& wire, LaneSlots& numbers) {
  numbers.rounded = {slots.add(SlotKind::rounded, 0, wire.queries, wire.query_rows),
                     slots.add(SlotKind::rounded, 1, wire.keys, wire.key_rows),
                     slots.add(SlotKind::rounded, 2, wire.own_dout, wire.own_queries)};
}

ANNULUS_INLINE LaneSlots add_slots(std::vector<Slot>& slots, RingPlan const& lane, Rank rank, LaneSlots const& first) {
  SlotWriter writer(slots, lane.backwards() ? 1 : 0);
  LaneSlots numbers;
  if (lane.shares_buffers()) numbers = first;
  bool const windowed = lane.request().zero_copy;
  Index const travelling = lane.prefetched_rows(rank);
  PayloadLayout const& moving = lane.prefetched_layout();
  numbers.rows = {writer.add(SlotKind::rows, 0, moving, travelling, windowed),
                  windowed ? -1 : writer.add(SlotKind::rows, 1, moving, travelling),
                  windowed ? writer.add(SlotKind::rows, 2, moving, 0) : -1};
  std::array<Index, 4> const results = lane.carried_rows(rank);
  numbers.results[0] = writer.add(SlotKind::results, 0, lane.own_results_layout(), results[0]);
  for (std::size_t i = 1; i < results.size(); ++i)
    numbers.results[i] = writer.add(SlotKind::results, static_cast<int>(i), lane.carried_layout(), results[i], windowed);
  if (windowed) numbers.results[4] = writer.add(SlotKind::results, 4, lane.carried_layout(), 0);
  if (lane.leaves())
    for (std::size_t i = 1; i < numbers.results.size(); ++i)
      if (numbers.results[i] >= 0) slots[static_cast<std::size_t>(numbers.results[i])].nodes = lane.leaves()->nodes_sent();
  WireBuffers const wire = lane.wire_buffers(rank);
  numbers.widened = writer.add(SlotKind::widened, 0, wire.read, wire.read_rows);
  if (lane.shares_buffers()) return numbers;
  add_wire_slots(writer, wire, numbers);
  numbers.resident = writer.add(SlotKind::resident, 0, lane.resident_layout(), lane.resident_sum_rows(rank));
  add_group_slots(writer, lane.group_exchange(), rank, numbers);
  if (lane.request().pass == Pass::forward) return numbers;
  numbers.delta = writer.add(SlotKind::delta, 0, lane.delta_layout(), lane.local_queries(rank));
  numbers.bias_gradient = writer.add(SlotKind::bias_gradient, 0, lane.bias_gradient_layout(),
                                     lane.groups().rows(Side::query, rank));
  numbers.sink_gradients =
      writer.add(SlotKind::sink_gradients, 0, lane.sink_gradient_layout(), lane.all_sink_gradient_rows());
  JointGradients const joint = lane.joint_gradients();
  numbers.joint_gradients = writer.add(SlotKind::joint_gradients, 0, joint.layout, joint.rows);
  return numbers;
}

ANNULUS_INLINE std::vector<LaneSlots> slots_of(std::vector<Slot>& slots, RingPlan const& plan, Rank rank) {
  std::vector<LaneSlots> numbers;
  for (RingPlan const& lane : plan.lanes())
    numbers.push_back(add_slots(slots, lane, rank, numbers.empty() ? LaneSlots{} : numbers.front()));
  return numbers;
}

ANNULUS_INLINE Index slot_bytes(RingPlan const& plan, Rank rank) {
  std::vector<Slot> slots;
  slots_of(slots, plan, rank);
  return bytes_of(slots);
}

ANNULUS_INLINE Index bytes_of(std::vector<Slot> const& slots) {
  std::vector<Index> bytes(slots.size());
  for (std::size_t s = 0; s < slots.size(); ++s) {
    Index& memory = bytes[slots[s].storage < 0 ? s : static_cast<std::size_t>(slots[s].storage)];
    memory = std::max(memory, slots[s].layout.buffer_bytes(slots[s].rows));
  }
  Index sum = 0;
  for (Index one : bytes) sum += one;
  return sum;
}

#endif

}  // namespace annulus::detail
