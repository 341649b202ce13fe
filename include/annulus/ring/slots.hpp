#pragma once
// Slots of a pass: the buffers that a list of actions names, kept between calls, so that a repeated call allocates
// nothing. The communicator allocates those that other ranks read through windows, the backend all others.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <vector>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/ring/observer.hpp"
#include "annulus/ring/slot_memory.hpp"
#include "annulus/schedule/action.hpp"

namespace annulus::detail {

/// Stands for a window of communicators whose ranks do not share memory.
struct NoWindow {};

template <class C>
struct WindowIn : std::type_identity<NoWindow> {};
template <ZeroCopyCommunicator C>
struct WindowIn<C> : std::type_identity<WindowOf<C>> {};

/// An exchange that has been started.
template <Communicator C>
struct PendingExchange {
  Shift const* shift = nullptr;  ///< null: none
  int step = 0, lane = 0;        ///< of its action
  IntervalRecorder::Time started{};
  std::optional<TransferOf<C>> transfer{};
  std::optional<typename WindowIn<C>::type> window{};
};

template <Communicator C, Backend B>
class Slots {
 public:
  using Space = typename B::memory_space;

  /// Allocates what a list needs. No work on the previous contents may be pending.
  void reserve(B& backend, C& ring, ActionList const& list) {
    use(list);
    if (memory_.size() < list.slots.size()) memory_.resize(list.slots.size());
    for (std::size_t s = 0; s < list.slots.size(); ++s)
      if (list.slots[s].storage < 0) reserve_one(backend, ring, s);
    for (std::size_t s = 0; s < list.slots.size(); ++s) {
      Slot const& slot = list.slots[s];
      SlotMemory<Space> const& owner = memory_[slot.storage < 0 ? s : static_cast<std::size_t>(slot.storage)];
      memory_[s].arrange(owner, slot.layout, slot.rows, slot.nodes);
    }
    pending.resize(static_cast<std::size_t>(list.exchanges));
  }

  /// Sets the list whose slots have memory; call again when it has moved.
  void use(ActionList const& list) { list_ = &list; }

  SlotView<Space> operator[](SlotRows const& rows) const { return {&memory(rows.slot), rows.rows, rows.node}; }
  SlotMemory<Space>& memory(int slot) { return memory_[static_cast<std::size_t>(slot)]; }
  SlotMemory<Space> const& memory(int slot) const { return memory_[static_cast<std::size_t>(slot)]; }
  Slot const& slot(int number) const { return list_->slots[static_cast<std::size_t>(number)]; }
  int find(SlotKind kind, int number) const { return list_->find(kind, number); }
  /// All rows of a slot.
  SlotView<Space> all(int number) const { return {&memory(number), {0, slot(number).rows}}; }

  /// Bytes of all buffers.
  Index bytes() const {
    Index sum = 0;
    for (SlotMemory<Space> const& memory : memory_) sum += memory.bytes();
    return sum;
  }

  std::vector<PendingExchange<C>> pending;  ///< by number; none between passes, kept for their storage

 private:
  void reserve_one(B& backend, C& ring, std::size_t s) {
    Slot const& slot = list_->slots[s];
    Index bytes = slot.layout.buffer_bytes(slot.rows);
    for (Slot const& other : list_->slots)
      if (other.storage == static_cast<int>(s)) bytes = std::max(bytes, other.layout.buffer_bytes(other.rows));
    if constexpr (ZeroCopyCommunicator<C>)
      if (slot.windowed) return memory_[s].reserve(ring, bytes, true);
    memory_[s].reserve(backend, bytes, false);
  }

  ActionList const* list_ = nullptr;
  std::vector<SlotMemory<Space>> memory_;
};

}  // namespace annulus::detail
