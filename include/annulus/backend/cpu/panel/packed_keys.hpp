#pragma once
// Packed keys and values of a section of one kv head: packed once per call for all its queries, each block when it is
// first needed.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "annulus/backend/cpu/panel/packing.hpp"
#include "annulus/backend/cpu/threads/workspace.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Storage for the keys of one section of one head at a time. When the last reader has left, it may hold another section
/// of any head. Key blocks count from the first key of the section.
template <class T>
class PackedKeys {
  using E = BlockElement<T>;
  using B = Blocking<Accumulator<T>>;

 public:
  /// For at most `most` keys. The operands and extents of the step must outlive the object.
  PackedKeys(Arena& arena, StepOperands<T, HostMemory> const& operands, StepExtents<E> const& extents, Index most)
      : operands_(operands),
        extents_(extents),
        packed_keys_(arena.take<E>(extents.key_elements(most))),
        packed_values_(arena.take<E>(B::key_blocks(most) * extents.value_elements())),
        not_finite_(arena.take<RowSet>(B::key_blocks(most))),
        states_(arena.take<std::uint32_t>(B::key_blocks(most))) {}

  /// Assigns the storage to the keys `rows` of `head`. `number` identifies the section for holds(); `readers` work items
  /// will read it. No other section may be in use.
  void hold(Index number, Index head, RowRange rows, Index readers) {
    GroupedQueries const queries = extents_.rows(head);
    keys_ = HeadView(operands_.k, queries.batch, queries.kv_head);
    values_ = HeadView(operands_.v, queries.batch, queries.kv_head);
    rows_ = rows;
    std::fill_n(states_, B::key_blocks(rows.size()), untouched);
    readers_.store(readers, std::memory_order_relaxed);
    number_.store(number, std::memory_order_release);
  }
  bool holds(Index number) const { return number_.load(std::memory_order_acquire) == number; }
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

  /// Lists the rows of part `p` of `parts` of the block that begins at key row `begin` for prefetching, unless it is
  /// packed. It may belong to another section of the head.
  void expect(Index begin, Index p, Index parts, PrefetchQueue& ahead) const {
    if (rows_.begin <= begin && begin < rows_.end)
      if (auto const state = std::atomic_ref<std::uint32_t>(states_[(begin - rows_.begin) / B::key_block]);
          state.load(std::memory_order_relaxed) != untouched)
        return;
    Index const count = std::min<Index>(B::key_block, extents_.keys - begin);
    for (Index i = begin + count * p / parts; i < begin + count * (p + 1) / parts; ++i) {
      ahead.add(keys_.row(i), keys_.dim_stride, extents_.head.size);
      ahead.add(values_.row(i), values_.dim_stride, extents_.value.size);
    }
  }

  /// The key rows of the section, and the first of a block.
  RowRange rows() const { return rows_; }
  Index begin(Index block) const { return rows_.begin + block * B::key_block; }

  /// Packed groups of keys from row `first` of the block on, a multiple of a group's rows.
  E const* keys(Index block, Index first) const {
    return packed_keys_ + (block * B::key_block + first) * extents_.head.packed();
  }
  /// Packed groups of value columns, from element `first` of the columns on, a multiple of a group's depth.
  E const* values(Index block, Index first) const {
    return packed_values_ + block * extents_.value_elements() + first * PackedGroup<E>::rows;
  }
  /// The values as given.
  HeadView<T const> const& value_rows() const { return values_; }
  /// Rows of values that hold NaN or infinity; they are packed as zeros.
  RowSet const& not_finite(Index block) const { return not_finite_[block]; }

 private:
  void pack(Index block) {
    Index const begin = this->begin(block), count = std::min<Index>(B::key_block, rows_.end - begin);
    pack_row_groups(keys_, begin, count, extents_.head.size,
                    packed_keys_ + block * B::key_block * extents_.head.packed());
    pack_column_groups(values_, begin, count, extents_.value.size, packed_values_ + block * extents_.value_elements(),
                       not_finite_[block]);
  }

  static constexpr std::uint32_t untouched = 0, at_work = 1, ready = 2;

  StepOperands<T, HostMemory> const& operands_;
  StepExtents<E> const& extents_;
  HeadView<T const> keys_, values_;
  E *packed_keys_, *packed_values_;
  RowSet* not_finite_;
  std::uint32_t* states_;
  RowRange rows_;
  std::atomic<Index> number_{-1}, readers_{0};
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
