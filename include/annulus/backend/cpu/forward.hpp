#pragma once
// Forward pass of one step: online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135)
// over packed blocks of keys. Threads claim work items from a counter: each is a group of query panels of one kv head.

#include <algorithm>
#include <atomic>
#include <memory>

#include "annulus/backend/cpu/forward_panel.hpp"
#include "annulus/backend/cpu/run_with_scratch.hpp"
#include "annulus/backend/cpu/simd/flush_denormals.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// One call of Backend::fold: adds a step's keys and values to the running state of all its queries.
template <class T>
class ForwardFold {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;

 public:
  /// `threads` as in CpuBackend, 0: automatic. All arguments must outlive the object.
  ForwardFold(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
              RunningState<A, HostMemory> const& state, StepDocuments const& documents, int threads)
      : step_(step),
        operands_(operands),
        state_(state),
        documents_(documents),
        threads_(threads),
        extents_{operands.k.extent(axis::sequence), operands.q.extent(axis::dim), operands.v.extent(axis::dim)},
        kv_heads_(operands.k.extent(axis::heads)),
        group_(kv_heads_ == 0 ? 1 : operands.q.extent(axis::heads) / kv_heads_),
        heads_(operands.q.extent(axis::batch) * kv_heads_),
        panels_(B::panels(operands.q.extent(axis::sequence) * group_)) {}

  void run() {
    if (step_.tiles.empty() || heads_ == 0 || panels_ == 0 || extents_.keys == 0) return;
    ThreadPool::Call call(ThreadPool::shared(), threads_);
    Index const threads = std::min(call.most(), heads_ * panels_);
    Index const expected = std::min(call.expected(), threads);
    // Panel groups are small enough to balance the threads, then as large as possible to share a pass over the keys.
    Index const most = std::clamp<Index>(panel_group_bytes / panel_bytes(), 1, B::panels_per_group);
    panels_per_group_ = std::clamp<Index>(panels_ * heads_ / (4 * expected), 1, most);
    panel_groups_ = ceil_divide(panels_, panels_per_group_);
    packed_count_ = std::min(expected, heads_);

    Workspace const shared(WorkspaceStore::of_calls(), bytes_of([&](Arena& arena) { allocate_packed_heads(arena); }));
    Arena arena(shared.data());
    allocate_packed_heads(arena);
    for (Index p = 0; p < packed_count_; ++p) packed_[p].hold(p, panel_groups_);
    next_.store(0);
    run_with_scratch(
        call, threads, [&](Arena& own) { return allocate_scratch(own); },
        [&](Team const& team, int slot, Scratch& scratch) {
          scratch.progresses = slot == 0;
          work(team, scratch);
        });
  }

 private:
  /// Queries and results of a panel group stay within this many bytes.
  static constexpr Index panel_group_bytes = Index{1} << 20;

  /// Working memory of one thread.
  struct Scratch {
    bool progresses = false;  ///< this is the calling thread, which calls Step::progress
    ForwardPanel<T>* panels = nullptr;
    UnitBlocks<A> blocks{};
    E* weights = nullptr;  ///< for pairs only; other weights overwrite the scores
    PrefetchQueue ahead{};
  };

  Index panel_bytes() const {
    return (extents_.depth() + extents_.values_padded()) * B::panel * static_cast<Index>(sizeof(A));
  }

  Scratch allocate_scratch(Arena& arena) const {
    constexpr Index block = Index{B::key_block} * B::panel;
    Scratch scratch;
    scratch.panels = arena.construct<ForwardPanel<T>>(panels_per_group_);
    for (Index p = 0; p < panels_per_group_; ++p) {
      ForwardPanel<T> const panel(arena, extents_);
      if (arena.has_memory()) scratch.panels[p] = panel;
    }
    scratch.blocks.scores = arena.take<A>(block);
    if (is_pair<E>) scratch.weights = arena.take<E>(block);
    if (step_.bias.data()) scratch.blocks.bias = arena.take<A>(block);
    if (step_.dropout.active()) scratch.blocks.kept = arena.take<A>(block);
    return scratch;
  }

  void allocate_packed_heads(Arena& arena) {
    packed_ = arena.construct<PackedHead<E>>(packed_count_);
    for (Index p = 0; p < packed_count_; ++p) {
      if (arena.has_memory())
        std::construct_at(packed_ + p, arena, extents_);
      else
        PackedHead<E>(arena, extents_);
    }
  }

  void work(Team const& team, Scratch& scratch) {
    [[maybe_unused]] FlushDenormals const guard;
    [[maybe_unused]] AmxTilesFor<E> const amx;
    for (Index item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < heads_ * panel_groups_;) {
      Index const head = item / panel_groups_;
      PackedHead<E>& packed = packed_[head % packed_count_];
      team.wait_until([&] { return packed.holds(head); });
      // Last queries first: with a causal mask they have the most work, and starting them late would unbalance threads.
      fold_panel_group(team, scratch, packed, head, panel_groups_ - 1 - item % panel_groups_);
      if (packed.leave() && head + packed_count_ < heads_) packed.hold(head + packed_count_, panel_groups_);
    }
  }

  void fold_panel_group(Team const& team, Scratch& scratch, PackedHead<E>& packed, Index head, Index panel_group) {
    GroupRows const rows{head / kv_heads_, head % kv_heads_, group_, operands_.q.extent(axis::sequence)};
    HeadRows<T const> const keys(operands_.k, rows.batch, rows.kv_head), values(operands_.v, rows.batch, rows.kv_head);
    Index const first = panel_group * panels_per_group_, count = std::min(panels_per_group_, panels_ - first);
    for (Index p = 0; p < count; ++p) scratch.panels[p].begin(QueryPanel<A>(rows, first + p));
    Index const first_query = rows.query(first * B::panel);
    Index const last_query = rows.query(std::min((first + count) * B::panel, rows.count()) - 1);

    for (Tile const& part : step_.tiles) {
      if (part.query_begin > last_query || part.query_begin + part.query_count <= first_query) continue;
      RowRange seen;
      for (Index p = 0; p < count; ++p) {
        scratch.panels[p].look_at(step_, documents_, part);
        seen = hull(seen, scratch.panels[p].keys().any);
      }
      if (seen.empty()) continue;
      for (Index block = seen.begin / B::key_block; block * B::key_block < seen.end; ++block)
        fold_block(team, scratch, packed, keys, values, count, block, ceil_divide(seen.end, Index{B::key_block}));
    }
    for (Index p = 0; p < count; ++p) scratch.panels[p].store(state_);
  }

  void fold_block(Team const& team, Scratch& scratch, PackedHead<E>& packed, HeadRows<T const> const& keys,
                  HeadRows<T const> const& values, Index count, Index block, Index blocks_end) {
    Index const begin = block * B::key_block;
    if (scratch.progresses) step_.progress();
    for (Index p = 0; p < count; ++p) {
      ForwardPanel<T>& panel = scratch.panels[p];
      RowRange const any = panel.keys().any;
      BlockRows const rows{begin, 0, std::max(any.begin - begin, Index{0}),
                           std::min<Index>(any.end - begin, B::key_block)};
      if (rows.begin >= rows.end) continue;
      packed.need(block, blocks_end, keys, values, team);
      panel.load(step_, operands_.q, state_);
      PrefetchQueue& ahead = scratch.ahead;
      ahead.clear();
      if (p + 1 < count) scratch.panels[p + 1].expect_load(operands_.q, ahead);
      if (block + 1 < blocks_end)
        packed.expect(block + 1, p, count, keys, values, ahead);
      else
        panel.expect_store(state_, ahead);
      panel.fold(step_, packed, block, rows, values, scratch.blocks, scratch.weights, ahead);
    }
  }

  HostStep<T> const& step_;
  StepOperands<T, HostMemory> const& operands_;
  RunningState<A, HostMemory> const& state_;
  StepDocuments const& documents_;
  int threads_;
  PackedExtents<E> extents_;
  Index kv_heads_, group_, heads_, panels_;
  Index panels_per_group_ = 1, panel_groups_ = 0, packed_count_ = 0;
  PackedHead<E>* packed_ = nullptr;
  std::atomic<Index> next_{0};
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
