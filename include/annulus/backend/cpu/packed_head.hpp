#pragma once
// Packed keys and values of one kv head: packed once per call for all queries, each block when it is first needed.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "annulus/backend/cpu/packing.hpp"
#include "annulus/backend/cpu/workspace.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Storage for one packed head at a time, reused by the next head when the last reader of the current one has left.
template <class T>
class PackedHead {
  using E = BlockElement<T>;
  using B = Blocking<Accumulator<T>>;

 public:
  /// The operands and extents of the step must outlive the object.
  PackedHead(Arena& arena, StepOperands<T, HostMemory> const& operands, StepExtents<E> const& extents)
      : operands_(operands),
        extents_(extents),
        packed_keys_(arena.take<E>(extents.key_elements())),
        packed_values_(arena.take<E>(extents.blocks() * extents.value_elements())),
        not_finite_(arena.take<RowSet>(extents.blocks())),
        states_(arena.take<std::uint32_t>(extents.blocks())) {}

  /// Assigns the storage to `head`, which `readers` work items will read. No other head may be in use.
  void hold(Index head, Index readers) {
    keys_ = HeadRows(operands_.k, extents_.rows(head).batch, extents_.rows(head).kv_head);
    values_ = HeadRows(operands_.v, extents_.rows(head).batch, extents_.rows(head).kv_head);
    std::fill_n(states_, extents_.blocks(), untouched);
    readers_.store(readers, std::memory_order_relaxed);
    head_.store(head, std::memory_order_release);
  }
  bool holds(Index head) const { return head_.load(std::memory_order_acquire) == head; }
  /// Ends the use by one reader; true for the last one.
  bool leave() { return readers_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  /// Returns when `block` is packed, by this or another thread. While another thread packs it, packs later blocks below
  /// `end`, which the caller will need; waits when none is left. Throws if another thread of the team has failed.
  void need(Index block, Index end, Team const& team) {
    auto const state = [&](Index of) { return std::atomic_ref<std::uint32_t>(states_[of]); };
    auto const is_ready = [&] { return state(block).load(std::memory_order_acquire) == ready; };
    for (Index next = block; !is_ready() && next < end; ++next) {
      std::uint32_t expected = untouched;
      if (!state(next).compare_exchange_strong(expected, at_work, std::memory_order_acquire)) continue;
      pack(next);
      state(next).store(ready, std::memory_order_release);
    }
    team.wait_until(is_ready);
  }

  /// Lists the rows of part `p` of `parts` of a block for prefetching, unless the block is packed.
  void expect(Index block, Index p, Index parts, PrefetchQueue& ahead) const {
    if (std::atomic_ref<std::uint32_t>(states_[block]).load(std::memory_order_relaxed) != untouched) return;
    Index const begin = block * B::key_block, count = std::min<Index>(B::key_block, extents_.keys - begin);
    for (Index i = begin + count * p / parts; i < begin + count * (p + 1) / parts; ++i) {
      ahead.add(keys_.row(i), keys_.dim_stride, extents_.head.size);
      ahead.add(values_.row(i), values_.dim_stride, extents_.value.size);
    }
  }

  /// Packed groups of keys from row `first` of the block on, a multiple of a group's rows.
  E const* keys(Index block, Index first) const {
    return packed_keys_ + (block * B::key_block + first) * extents_.head.packed();
  }
  /// Packed groups of value columns, from element `first` of the columns on, a multiple of a group's depth.
  E const* values(Index block, Index first) const {
    return packed_values_ + block * extents_.value_elements() + first * PackedGroup<E>::rows;
  }
  /// The values as given.
  HeadRows<T const> const& value_rows() const { return values_; }
  /// Rows of values that hold NaN or infinity; they are packed as zeros.
  RowSet const& not_finite(Index block) const { return not_finite_[block]; }

 private:
  void pack(Index block) {
    Index const begin = block * B::key_block, count = std::min<Index>(B::key_block, extents_.keys - begin);
    pack_row_groups(keys_, begin, count, extents_.head.size, packed_keys_ + begin * extents_.head.packed());
    pack_column_groups(values_, begin, count, extents_.value.size, packed_values_ + block * extents_.value_elements(),
                       not_finite_[block]);
  }

  static constexpr std::uint32_t untouched = 0, at_work = 1, ready = 2;

  StepOperands<T, HostMemory> const& operands_;
  StepExtents<E> const& extents_;
  HeadRows<T const> keys_, values_;
  E *packed_keys_, *packed_values_;
  RowSet* not_finite_;
  std::uint32_t* states_;
  std::atomic<Index> head_{-1}, readers_{0};
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
