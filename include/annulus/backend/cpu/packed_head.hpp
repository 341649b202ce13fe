#pragma once
// Packed keys and values of one kv head: packed once per call for all queries, each block when it is first needed.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "annulus/backend/cpu/packing.hpp"
#include "annulus/backend/cpu/workspace.hpp"
#include "annulus/backend/step.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Storage for one packed head at a time, reused by the next head when the last reader of the current one has left.
template <class E>
class PackedHead {
  using B = Blocking<typename Operand<E>::Sum>;

 public:
  PackedHead(Arena& arena, PackedExtents<E> const& extents)
      : extents_(extents),
        keys_(arena.take<E>(extents.key_elements())),
        values_(arena.take<E>(extents.blocks() * extents.value_elements())),
        not_finite_(arena.take<RowSet>(extents.blocks())),
        states_(arena.take<std::uint32_t>(extents.blocks())) {}

  /// Assigns the storage to `head`, which `readers` work items will read. No other head may be in use.
  void hold(Index head, Index readers) {
    std::fill_n(states_, extents_.blocks(), untouched);
    readers_.store(readers, std::memory_order_relaxed);
    head_.store(head, std::memory_order_release);
  }
  bool holds(Index head) const { return head_.load(std::memory_order_acquire) == head; }
  /// Ends the use by one reader; true for the last one.
  bool leave() { return readers_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  /// Returns when `block` is packed, by this or another thread. While another thread packs it, packs later blocks below
  /// `end`, which the caller will need; waits when none is left. Throws if another thread of the team has failed.
  template <class T>
  void need(Index block, Index end, HeadRows<T const> const& keys, HeadRows<T const> const& values, Team const& team) {
    auto const state = [&](Index of) { return std::atomic_ref<std::uint32_t>(states_[of]); };
    auto const is_ready = [&] { return state(block).load(std::memory_order_acquire) == ready; };
    for (Index next = block; !is_ready() && next < end; ++next) {
      std::uint32_t expected = untouched;
      if (!state(next).compare_exchange_strong(expected, at_work, std::memory_order_acquire)) continue;
      pack(next, keys, values);
      state(next).store(ready, std::memory_order_release);
    }
    team.wait_until(is_ready);
  }

  /// Lists the rows of part `p` of `parts` of a block for prefetching, unless the block is packed.
  template <class T>
  void expect(Index block, Index p, Index parts, HeadRows<T const> const& keys, HeadRows<T const> const& values,
              PrefetchQueue& ahead) const {
    if (std::atomic_ref<std::uint32_t>(states_[block]).load(std::memory_order_relaxed) != untouched) return;
    Index const begin = block * B::key_block, count = std::min<Index>(B::key_block, extents_.keys - begin);
    for (Index i = begin + count * p / parts; i < begin + count * (p + 1) / parts; ++i) {
      ahead.add(keys.row(i), keys.dim_stride, extents_.head_dim);
      ahead.add(values.row(i), values.dim_stride, extents_.value_dim);
    }
  }

  /// Packed groups of keys from row `first` of the block on, a multiple of a group's rows.
  E const* keys(Index block, Index first) const { return keys_ + (block * B::key_block + first) * extents_.head_depth(); }
  /// Packed groups of value columns, from element `first` of the columns on, a multiple of a group's depth.
  E const* values(Index block, Index first) const {
    return values_ + block * extents_.value_elements() + first * PackedGroup<E>::rows;
  }
  /// Rows of values that hold NaN or infinity; they are packed as zeros.
  RowSet const& not_finite(Index block) const { return not_finite_[block]; }

 private:
  template <class T>
  void pack(Index block, HeadRows<T const> const& keys, HeadRows<T const> const& values) {
    Index const begin = block * B::key_block, count = std::min<Index>(B::key_block, extents_.keys - begin);
    pack_row_groups(keys, begin, count, extents_.head_dim, keys_ + begin * extents_.head_depth());
    pack_column_groups(values, begin, count, extents_.value_dim, values_ + block * extents_.value_elements(),
                       not_finite_[block]);
  }

  static constexpr std::uint32_t untouched = 0, at_work = 1, ready = 2;

  PackedExtents<E> extents_;
  E* keys_ = nullptr;
  E* values_ = nullptr;
  RowSet* not_finite_ = nullptr;
  std::uint32_t* states_ = nullptr;
  std::atomic<Index> head_{-1}, readers_{0};
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
