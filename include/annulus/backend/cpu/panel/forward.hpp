#pragma once
// Forward pass of one step. Threads claim work items from a counter: each is a group of query panels of one kv head,
// within a section.

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "annulus/backend/cpu/panel/forward_panel.hpp"
#include "annulus/backend/cpu/threads/work_items.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// One call of Backend::fold: adds a step's keys and values to the running state of all its queries.
template <class T>
class ForwardFold {
  using A = Accumulator<T>;
  using E = BlockElement<T>;
  using B = Blocking<A>;

 public:
  /// All that `call` refers to must outlive the object.
  explicit ForwardFold(FoldArguments<T> const& call) : call_(call), extents_(call.operands) {}

  /// True if the results of `call` can be written.
  static bool can_write_results(FoldArguments<T> const& call) {
    return !is_empty(call) && call.results->output.stride(axis::dim) == 1;
  }

  void run() {
    if (is_empty(call_)) return;
    ThreadPool::Call call(ThreadPool::shared(), call_.threads);
    Index panels = 0, most_keys = 0;
    for (DocumentSection const& section : call_.sections.all()) {
      panels += extents_.kv_heads * panels_of(section);
      most_keys = std::max(most_keys, section.keys.size());
    }
    Index const threads = std::min(call.most(), panels), expected = std::min(call.expected(), threads);
    // Panel groups are small enough to balance the threads, then as large as possible to share a pass over the keys.
    Index const most = std::clamp<Index>(panel_group_bytes / panel_bytes(), 1, B::panels_per_group);
    panels_per_group_ = std::clamp<Index>(panels / (4 * expected), 1, most);
    // One thread packs all sections to the same memory, which stays in cache. Several would wait for the slowest of them
    // with one storage each: they have as many as take the memory of whole heads.
    Index const in_whole_heads = std::min(expected, extents_.heads()) * extents_.keys / most_keys;
    packed_count_ = std::min(expected == 1 ? 1 : std::max(expected, in_whole_heads),
                             extents_.kv_heads * call_.sections.first(extents_.batches));

    auto const allocate = [&](Arena& arena) { allocate_shared(arena, most_keys); };
    Workspace const shared(WorkspaceStores::shared().of_calls, bytes_of(allocate));
    Arena arena(shared.data());
    allocate(arena);
    visibility_cache_->clear();
    for (Index p = 0; p < packed_count_; ++p) hold(p, 0, p);
    share_items<E>(
        call, threads, extents_.heads() * groups_->most(), [&](Arena& own) { return allocate_scratch(own); },
        [&](Team const& team, Scratch& scratch, Index item) {
          Index const head = item / groups_->most();
          if (auto const found = groups_->find(extents_.rows(head).batch, item % groups_->most()))
            fold_panel_group(team, scratch, head, *found);
        });
  }

 private:
  /// Queries and results of a panel group stay within this many bytes.
  static constexpr Index panel_group_bytes = Index{1} << 20;

  static bool is_empty(FoldArguments<T> const& call) {
    return call.step.tiles.empty() || StepExtents<E>(call.operands).empty();
  }

  /// The scores of a panel are computed while the one before is weighed.
  static constexpr bool overlaps = PackedGroup<E>::tiled;

  /// Working memory of one thread.
  struct Scratch {
    bool progresses = false;  ///< this is the calling thread, which calls Step::progress
    ForwardPanel<T>* panels = nullptr;
    PanelScratch<A> blocks{};
    E* weights = nullptr;      ///< for pairs and quads only; other weights overwrite the scores
    A* next_scores = nullptr;  ///< of the panel whose products are overlapped
    PrefetchQueue ahead{};
  };

  Index panels_of(DocumentSection const& section) const { return extents_.panels(section.queries); }
  Index groups_of(DocumentSection const& section) const {
    return annulus::detail::ceil_divide(panels_of(section), panels_per_group_);
  }

  /// Sequence number of a section of a head among those of all heads.
  Index number_of(Index head, Index section) const {
    GroupedQueries const rows = extents_.rows(head);
    Index const first = call_.sections.first(rows.batch);
    return extents_.kv_heads * first + rows.kv_head * call_.sections.count(rows.batch) + section - first;
  }
  /// Assigns storage to the section `ahead` sections after the first one of `head`, if there is one. `number`: its
  /// sequence number.
  void hold(Index number, Index head, Index ahead) {
    for (; head < extents_.heads(); ++head) {
      Index const batch = extents_.rows(head).batch, count = call_.sections.count(batch);
      if (ahead < count) {
        DocumentSection const& section = call_.sections[call_.sections.first(batch) + ahead];
        return packed_[number % packed_count_].hold(number, head, section.keys, groups_of(section));
      }
      ahead -= count;
    }
  }

  Index panel_bytes() const {
    Index const queries = extents_.head.packed() * static_cast<Index>(sizeof(E));
    return B::panel * (queries + extents_.value.grouped() * static_cast<Index>(sizeof(A)));
  }

  /// Memory that all threads use. `most_keys`: of a section.
  void allocate_shared(Arena& arena, Index most_keys) {
    packed_ = arena.construct<PackedKeys<T>>(packed_count_, call_.operands, extents_, most_keys);
    visibility_cache_.emplace(arena, call_.step, extents_);
    groups_.emplace(arena, call_.sections, extents_.batches, [&](DocumentSection const& of) { return groups_of(of); });
  }

  Scratch allocate_scratch(Arena& arena) const {
    Scratch scratch;
    scratch.panels = arena.construct<ForwardPanel<T>>(panels_per_group_, call_, extents_, *visibility_cache_);
    scratch.blocks = PanelScratch<A>::of(arena, call_.step, Pass::forward);
    if (is_joined<E>) scratch.weights = arena.take<E>(Index{B::key_block} * B::panel);
    if (overlaps) scratch.next_scores = arena.take<A>(Index{B::key_block} * B::panel);
    return scratch;
  }

  void fold_panel_group(Team const& team, Scratch& scratch, Index head, WorkItems::Item const& item) {
    Index const number = number_of(head, item.section);
    PackedKeys<T>& packed = packed_[number % packed_count_];
    team.wait_until([&] { return packed.holds(number); });
    DocumentSection const& section = call_.sections[item.section];
    GroupedQueries const rows = extents_.rows(head, section.queries);
    // Last queries first: with a causal mask they have the most work, and starting them late would unbalance threads.
    Index const first = (item.count - 1 - item.index) * panels_per_group_;
    Index const count = std::min(panels_per_group_, panels_of(section) - first);
    for (Index p = 0; p < count; ++p) scratch.panels[p].begin(QueryPanel<A>(rows, first + p), packed);
    Index const first_query = rows.query(first * B::panel);
    Index const last_query = rows.query(std::min((first + count) * B::panel, rows.count()) - 1);

    for (Tile const& tile : call_.step.tiles) {
      if (tile.query_begin > last_query || tile.query_begin + tile.query_count <= first_query) continue;
      RowRange seen;
      for (Index p = 0; p < count; ++p) {
        scratch.panels[p].look_at(tile);
        seen = annulus::detail::hull(seen, scratch.panels[p].keys().any);
      }
      if (seen.empty()) continue;
      Index const end = B::key_blocks(seen.end - packed.begin(0));
      Index const next = key_of_next_item(tile, item, rows, first * B::panel, packed.begin(end - 1));
      for (Index block = block_of(seen.begin, packed); block < end;)
        block = fold_block(team, scratch, packed, count, block, end, next);
    }
    for (ForwardPanel<T>& panel : std::span(scratch.panels, static_cast<std::size_t>(count))) panel.store();
    if (packed.leave())
      hold(number + packed_count_, head, item.section - call_.sections.first(rows.batch) + packed_count_);
  }

  static Index block_of(Index key, PackedKeys<T> const& packed) { return (key - packed.begin(0)) / B::key_block; }

  /// First key row of the first block of the next work item of the head, unless another thread claims it: of the panel
  /// group of the section that ends before row `end`, or of the next section; `otherwise` if there is none.
  Index key_of_next_item(Tile const& tile, WorkItems::Item const& item, GroupedQueries const& rows, Index end,
                         Index otherwise) const {
    if (end == 0) {
      // Where several threads share the work, another one has most likely claimed the next section.
      bool const has_next = packed_count_ == 1 && item.section + 1 < call_.sections.first(rows.batch + 1);
      return has_next ? call_.sections[item.section + 1].keys.begin : otherwise;
    }
    Index const query = rows.query(std::max(end - panels_per_group_ * B::panel, Index{0})) - tile.query_begin;
    if (query < 0 || query >= tile.query_count) return otherwise;
    RowRange const keys = call_.documents.bounds(call_.step, tile, rows.batch, query).rows;
    Index const begin = call_.sections[item.section].keys.begin;
    return keys.empty() ? otherwise : keys.begin - (keys.begin - begin) % B::key_block;
  }

  /// The panel that folds a block next.
  struct NextPanel {
    Index p = 0;  ///< its number in the group
    BlockKeys rows{};
    bool scored = false;  ///< its scores are computed
  };

  /// The first panel of a group that may see a key block; `count` if none may.
  static Index first_to_see(Scratch const& scratch, Index count, Index block) {
    Index p = 0;
    while (p < count && !scratch.panels[p].may_see(block)) ++p;
    return p;
  }

  /// Folds a key block into all panels that see it, and prefetches the next one that any panel may see, or the one that
  /// begins at key row `next` after the last. Returns the next one, or blocks_end.
  Index fold_block(Team const& team, Scratch& scratch, PackedKeys<T>& packed, Index count, Index block,
                   Index blocks_end, Index next) {
    if (scratch.progresses) call_.step.progress();
    Index after = block + 1;
    while (after < blocks_end && first_to_see(scratch, count, after) == count) ++after;
    Index const first = first_to_see(scratch, count, block);
    auto const next_panel_from = [&](Index p) {
      for (; p < count; ++p) {
        ForwardPanel<T>& panel = scratch.panels[p];
        BlockKeys const rows = panel.rows(block);
        if (rows.begin >= rows.end || !panel.sees(rows, scratch.blocks)) continue;
        packed.need(block, blocks_end, team);
        panel.load();
        return NextPanel{p, rows};
      }
      return NextPanel{count};
    };
    for (NextPanel now = next_panel_from(0), following; now.p < count; now = following) {
      ForwardPanel<T>& panel = scratch.panels[now.p];
      PrefetchQueue& ahead = scratch.ahead;
      ahead.clear();
      scratch.panels[(now.p + 1) % count].expect_bias(block + (now.p + 1) / count, ahead);
      // The panel that is loaded after the next prefetching; with overlaps, the one after this is loaded before.
      if (Index const p = now.p + 1 + Index{overlaps}; p < count) scratch.panels[p].expect_load(ahead);
      // From the first panel that sees the block on, each prefetches its share of what comes after it, also of the rows
      // of other panels.
      Index const share = now.p - first, shares = count - first;
      if (after == blocks_end)
        for (Index p = count * share / shares; p < count * (share + 1) / shares; ++p)
          scratch.panels[p].expect_store(ahead);
      packed.expect(after < blocks_end ? packed.begin(after) : next, share, shares, ahead);
      if (!now.scored) panel.score(block, now.rows, scratch.blocks, ahead);
      OverlappedProducts<E> products;
      if constexpr (overlaps) {
        following = next_panel_from(now.p + 1);
        if (following.p < count)
          products = scratch.panels[following.p].products(block, following.rows, scratch.next_scores, ahead);
        following.scored = !products.empty();
      }
      panel.fold(block, now.rows, scratch.blocks, scratch.weights, products, ahead);
      if constexpr (!overlaps) following = next_panel_from(now.p + 1);
      if (!following.scored) continue;
      scratch.panels[following.p].take(products);
      std::swap(scratch.blocks.scores, scratch.next_scores);
    }
    return after;
  }

  FoldArguments<T> const call_;
  StepExtents<E> const extents_;
  Index panels_per_group_ = 1, packed_count_ = 0;
  PackedKeys<T>* packed_ = nullptr;
  std::optional<WorkItems> groups_;  ///< groups of panels
  std::optional<VisibilityCache<T>> visibility_cache_;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
