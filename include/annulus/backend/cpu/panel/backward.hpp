#pragma once
// Backward pass of one step. Nothing of quadratic size is stored (Dao et al., arXiv 2205.14135). A work item is a
// piece: a run of key blocks of one kv head, kept in L2 cache with its gradients while it visits all panels of queries
// of its section.
//
// dq of a panel is a sum over pieces. For the same bits with any number of threads it is summed in the order of the
// keys: a piece visits a panel after all earlier pieces have finished it. Panels are visited from last to first, so
// that with a causal mask no piece waits for rows that only earlier pieces see.

#include <algorithm>
#include <atomic>
#include <optional>

#include "annulus/backend/cpu/panel/backward_unit.hpp"
#include "annulus/backend/cpu/threads/work_items.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// One call of Backend::add_gradients: adds a step's share to dq, dk, dv and, if given, dbias.
template <class T>
class BackwardSum {
  using A = Accumulator<T>;
  using E = BlockElement<T>;
  using B = Blocking<A>;

 public:
  /// All that `call` refers to must outlive the object.
  explicit BackwardSum(GradientArguments<T> const& call) : call_(call), extents_(call.operands) {}

  void run() {
    if (call_.step.tiles.empty() || extents_.empty()) return;
    ThreadPool::Call call(ThreadPool::shared(), shares_bias_gradient() ? 1 : call_.threads);
    Index const heads = extents_.heads();
    Index blocks = 0;
    for (DocumentSection const& section : call_.sections.all())
      blocks += extents_.kv_heads * B::key_blocks(section.keys.size());
    Index const threads = std::min(call.most(), blocks), expected = std::min(call.expected(), threads);
    // Pieces are small enough to balance the threads, and large enough to amortise packing the queries for each piece.
    Index const most = std::clamp<Index>(piece_bytes / block_bytes(), 1, 8);
    blocks_per_piece_ = std::clamp<Index>(blocks / (4 * expected), 1, most);

    auto const allocate = [&](Arena& arena) { allocate_shared(arena); };
    Workspace const shared(WorkspaceStores::shared().of_calls, bytes_of(allocate));
    Arena arena(shared.data());
    allocate(arena);
    std::fill_n(finished_, heads * pieces_->most(), panels_->most());
    visibility_cache_->clear();
    find_reach();
    share_items<E>(
        call, threads, heads * pieces_->most(), [&](Arena& own) { return allocate_scratch(own); },
        [&](Team const& team, Scratch& scratch, Index item) {
          Index const head = item % heads;
          if (auto const piece = pieces_->find(extents_.rows(head).batch, item / heads))
            add_piece(team, scratch, head, *piece);
        });
  }

 private:
  /// Packed keys and gradients of a piece stay within this many bytes.
  static constexpr Index piece_bytes = 5 * (Index{1} << 18);
  /// Visible keys are found once and cached for this many of the tiles that overlap a panel and a piece.
  static constexpr int cached_tiles = 4;

  static constexpr Index panels_at_once = BackwardUnit<T>::panels_at_once;

  /// A panel that a piece visits.
  struct Visit {
    BackwardPanel<T>* panel = nullptr;
    Index place = 0;  ///< of the panel among those of the section
    bool loaded = false;
    bool is_first = false, is_last = false;  ///< the piece writes dq without reading it, and as a result
    int tiles = 0;                        ///< that overlap panel and piece; those beyond cached_tiles are not in `seen`
    PanelKeys<A> seen[cached_tiles + 1];  ///< of these tiles
  };

  /// A piece of the keys of a head while it visits the panels of its section.
  struct Piece {
    Index head;
    WorkItems::Item item;
    GroupedQueries rows;  ///< queries of the section
    RowRange keys;
    HeadView<T const> k, v;
    bool loaded = false;   ///< its keys are packed, as a panel sees some of them
    Index first_busy = 0;  ///< first of the earlier pieces of the section that may be unfinished
  };

  struct Scratch {
    bool progresses = false;  ///< this is the calling thread, which calls Step::progress
    KeyBlock<T>* keys = nullptr;
    BackwardUnit<T>* unit = nullptr;
    Visit visits[panels_at_once];
    PrefetchQueue ahead{};
  };

  Index block_bytes() const {
    Index const gradients = extents_.head.size + extents_.value.size;
    Index const packed = 2 * extents_.head.packed() + extents_.value.packed();
    return B::key_block * (gradients * static_cast<Index>(sizeof(A)) + packed * static_cast<Index>(sizeof(E)));
  }

  /// True if heads or batch items share elements of the gradient of the bias: pieces of different heads would then
  /// write to the same ones.
  bool shares_bias_gradient() const {
    auto const is_shared = [](auto const& view) {
      return view.data() &&
             ((view.extent(0) > 1 && view.stride(0) == 0) || (view.extent(1) > 1 && view.stride(1) == 0));
    };
    return is_shared(call_.gradients.dbias) || is_shared(call_.written.dbias);
  }

  bool writes_queries() const { return call_.written.dq.data() != nullptr; }

  /// Memory that all threads use.
  void allocate_shared(Arena& arena) {
    pieces_.emplace(arena, call_.sections, extents_.batches, [&](DocumentSection const& section) {
      return annulus::detail::ceil_divide(B::key_blocks(section.keys.size()), blocks_per_piece_);
    });
    panels_.emplace(arena, call_.sections, extents_.batches,
                    [&](DocumentSection const& section) { return extents_.panels(section.queries); });
    finished_ = arena.take<Index>(extents_.heads() * pieces_->most());
    reach_ = arena.take<RowRange>(extents_.batches * panels_->most());
    visibility_cache_.emplace(arena, call_.step, extents_);
  }

  Scratch allocate_scratch(Arena& arena) const {
    Scratch scratch;
    scratch.keys = arena.construct<KeyBlock<T>>(blocks_per_piece_, extents_);
    // One by one: while an arena measures, it gives null, from which no pointer may be computed.
    for (Visit& visit : scratch.visits) visit.panel = arena.construct<BackwardPanel<T>>(1, extents_);
    scratch.unit = arena.construct<BackwardUnit<T>>(1, call_, extents_, *visibility_cache_);
    return scratch;
  }

  static void clear_rows(QueryPanel<A> const& panel, TensorView<T, 4> const& of) {
    for (int lane = 0; lane < panel.count; ++lane) std::fill_n(panel.row(of, lane), of.extent(axis::dim), T(0));
  }

  /// Finds the hull of the keys that each panel sees, the same for all heads. It suffices for most pieces of a windowed
  /// or packed sequence to skip a panel.
  void find_reach() {
    PanelKeys<A> seen;
    for (Index batch = 0; batch < extents_.batches; ++batch)
      for (Index p = 0; auto const place = panels_->find(batch, p); ++p) {
        auto const panel_of = [&](GroupedQueries const& rows) { return QueryPanel<A>(rows, place->index); };
        RowRange const queries = call_.sections[place->section].queries;
        GroupedQueries const rows = extents_.rows(batch * extents_.kv_heads, queries);
        QueryPanel<A> const panel = panel_of(rows);
        RowRange& reach = reach_of(batch, p) = {};
        for_each_tile(panel, [&](Tile const& tile) {
          seen.find(call_.step, call_.documents, tile, panel);
          reach = annulus::detail::hull(reach, seen.any);
        });
        for (Index h = 0; h < extents_.kv_heads && writes_queries() && reach.empty(); ++h) {
          GroupedQueries const of_head = extents_.rows(batch * extents_.kv_heads + h, queries);
          clear_rows(panel_of(of_head), call_.written.dq);
        }
      }
  }

  /// Hull of the keys that a panel, counted from the first one of the batch item, sees.
  RowRange& reach_of(Index batch, Index panel) const { return reach_[batch * panels_->most() + panel]; }

  /// The panel of the section that a piece, counted from the first one of the head, has finished last, counting down;
  /// initially larger than any.
  std::atomic_ref<Index> finished(Index head, Index piece) const {
    return std::atomic_ref<Index>(finished_[head * pieces_->most() + piece]);
  }

  /// Adds the share of a piece: visits the panels of its section, a few at a time.
  void add_piece(Team const& team, Scratch& scratch, Index head, WorkItems::Item const& item) {
    DocumentSection const& section = call_.sections[item.section];
    GroupedQueries const rows = extents_.rows(head, section.queries);
    Index const piece_keys = blocks_per_piece_ * B::key_block, begin = section.keys.begin + item.index * piece_keys;
    Piece piece{head,
                item,
                rows,
                {begin, std::min(begin + piece_keys, section.keys.end)},
                HeadView<T const>(call_.operands.k, rows.batch, rows.kv_head),
                HeadView<T const>(call_.operands.v, rows.batch, rows.kv_head)};
    for (Index end = extents_.panels(section.queries), first; end > 0; end = first) {
      first = (end - 1) / panels_at_once * panels_at_once;
      RowRange seen_by_any;
      Index const count = begin_visits(scratch, piece, {first, end}, seen_by_any);
      if (count > 0 && !piece.loaded) load_keys(scratch, piece);
      RowRange const visited = add_visits(team, scratch, piece, count, seen_by_any);
      for (Index i = 0; i < count; ++i) {
        scratch.visits[i].panel->store_gradient(call_, extents_, scratch.visits[i].is_last);
        clear_dbias(piece, scratch.visits[i].place, {piece.keys.begin, visited.begin});
        clear_dbias(piece, scratch.visits[i].place, {visited.end, piece.keys.end});
      }
      finished(head, item.before + item.index).store(first, std::memory_order_release);
    }
    if (call_.written.dk.data())
      store(scratch, piece, call_.written.dk, call_.written.dv, true);
    else if (piece.loaded || call_.overwrites_keys)
      store(scratch, piece, call_.gradients.dk, call_.gradients.dv, call_.overwrites_keys);
  }

  /// Finds which of the panels [first, end), from the last to the first, see keys of the piece, and begins their visits;
  /// returns their number. `seen_by_any`: hull of the keys that they see.
  Index begin_visits(Scratch& scratch, Piece const& piece, RowRange panels, RowRange& seen_by_any) const {
    Index count = 0;
    for (Index p = panels.end; p-- > panels.begin;) {
      Visit& visit = scratch.visits[count];
      RowRange const reach = reach_of(piece.rows.batch, panels_->before(piece.item.section) + p);
      bool const reaches = !annulus::detail::intersection(reach, piece.keys).empty();
      RowRange const seen = reaches ? find_keys(visit, QueryPanel<A>(piece.rows, p), piece.keys) : RowRange{};
      if (seen.empty()) {
        clear_dbias(piece, p, piece.keys);
        continue;
      }
      seen_by_any = annulus::detail::hull(seen_by_any, seen);
      visit.place = p;
      visit.loaded = false;
      visit.is_first = writes_queries() && piece.keys.begin <= reach.begin;
      visit.is_last = writes_queries() && reach.end <= piece.keys.end;
      ++count;
    }
    return count;
  }

  void load_keys(Scratch& scratch, Piece& piece) const {
    for (Index begin = piece.keys.begin, i = 0; begin < piece.keys.end; begin += B::key_block, ++i)
      scratch.keys[i].load(piece.k, piece.v, begin, std::min<Index>(B::key_block, piece.keys.end - begin), extents_);
    piece.loaded = true;
  }

  /// Loads the panel of a visit, once all earlier pieces of the section have finished it.
  void load(Team const& team, Scratch& scratch, Piece& piece, Visit& visit) const {
    for (Index other = piece.first_busy; other < piece.item.index; ++other) {
      std::atomic_ref<Index> const last = finished(piece.head, piece.item.before + other);
      team.wait_until([&] { return last.load(std::memory_order_acquire) <= visit.place; });
      if (other == piece.first_busy && last.load(std::memory_order_acquire) == 0) ++piece.first_busy;
    }
    visit.panel->load(QueryPanel<A>(piece.rows, visit.place), call_, extents_, visit.is_first);
    visit.loaded = true;
    scratch.ahead.clear();
    if (visit.place > 0) expect(scratch.ahead, QueryPanel<A>(piece.rows, visit.place - 1), piece.item.count == 1);
    if (scratch.progresses) call_.step.progress();
  }

  /// Adds the key blocks that the panels of `count` visits see, block by block; returns the keys of these blocks.
  RowRange add_visits(Team const& team, Scratch& scratch, Piece& piece, Index count, RowRange seen_by_any) const {
    auto const block_of = [&](Index key) { return (key - piece.keys.begin) / B::key_block; };
    RowRange visited{piece.keys.begin, piece.keys.begin};
    if (count > 0) visited.begin += block_of(seen_by_any.begin) * B::key_block;
    for (visited.end = visited.begin; visited.end < seen_by_any.end; visited.end += B::key_block) {
      KeyBlock<T>& key_block = scratch.keys[block_of(visited.end)];
      for (Index i = 0; i < count; ++i) {
        if (!scratch.visits[i].loaded) load(team, scratch, piece, scratch.visits[i]);
        add_block(scratch, scratch.visits[i], piece.k, key_block, visited.end);
      }
      scratch.unit->finish(key_block);
    }
    return visited;
  }

  /// Zeroes the gradient of the bias of a panel with the keys `unseen`, where it is written.
  void clear_dbias(Piece const& piece, Index panel, RowRange unseen) const {
    if (call_.written.dbias.data() && !unseen.empty())
      BiasRows<T>(call_.written.dbias, QueryPanel<A>(piece.rows, panel)).clear(call_.step.key_positions, unseen);
  }

  /// Lists the rows that loading the panel will read, for prefetching. `only_piece`: its section has no other piece.
  void expect(PrefetchQueue& ahead, QueryPanel<A> const& panel, bool only_piece) const {
    panel.expect(call_.operands.q, ahead);
    panel.expect(call_.backward.dout, ahead);
    if (writes_queries() && only_piece)
      panel.expect(call_.written.dq, ahead);
    else
      panel.expect(call_.gradients.dq, ahead);
  }

  template <class Function>
  void for_each_tile(QueryPanel<A> const& panel, Function&& function) const {
    Index const first = panel.query(0), last = panel.query(panel.count - 1);
    for (Tile const& tile : call_.step.tiles)
      if (tile.query_begin <= last && first < tile.query_begin + tile.query_count) function(tile);
  }

  /// Hull of the keys in `keys`, those of a piece, that the panel sees. Caches the visible keys for add_block().
  RowRange find_keys(Visit& visit, QueryPanel<A> const& panel, RowRange keys) const {
    RowRange hull_of_tiles;
    visit.tiles = 0;
    for_each_tile(panel, [&](Tile const& tile) {
      PanelKeys<A>& seen = visit.seen[std::min(visit.tiles, cached_tiles)];
      seen.find(call_.step, call_.documents, tile, panel);
      RowRange const here = annulus::detail::intersection(seen.any, keys);
      if (here.empty()) return;
      hull_of_tiles = annulus::detail::hull(hull_of_tiles, here);
      ++visit.tiles;
    });
    return hull_of_tiles;
  }

  /// Adds the share of one key block and a loaded panel. The order of sums, by block and within it by tile, does not
  /// depend on how blocks are split into pieces.
  void add_block(Scratch& scratch, Visit& visit, HeadView<T const> const& k, KeyBlock<T>& key_block,
                 Index block_begin) const {
    visit.panel->lacks_dbias = true;
    auto const add_tile = [&](PanelKeys<A> const& seen) {
      BlockKeys const rows = BlockKeys::of(block_begin, seen.any);
      if (rows.begin < rows.end) scratch.unit->meet(*visit.panel, seen, key_block, rows, k, scratch.ahead);
    };
    if (visit.tiles <= cached_tiles) {
      for (int t = 0; t < visit.tiles; ++t) add_tile(visit.seen[t]);
    } else {
      for_each_tile(visit.panel->panel, [&](Tile const& tile) {
        visit.seen[cached_tiles].find(call_.step, call_.documents, tile, visit.panel->panel);
        add_tile(visit.seen[cached_tiles]);
      });
    }
    if (visit.panel->lacks_dbias)
      visit.panel->written_dbias.clear(call_.step.key_positions,
                                       {block_begin, std::min<Index>(block_begin + B::key_block, extents_.keys)});
  }

  /// Adds the gradients of a piece to dk and dv, or writes them.
  template <class G>
  void store(Scratch& scratch, Piece const& piece, TensorView<G, 4> const& dk, TensorView<G, 4> const& dv,
             bool overwrites) const {
    RowRange const keys = piece.keys;
    auto const store_block = [&](TensorView<G, 4> const& gradient, Index begin, A const* strips) {
      HeadView<G> const to(gradient, piece.rows.batch, piece.rows.kv_head);
      Index const count = std::min<Index>(B::key_block, keys.end - begin), dim = gradient.extent(axis::dim);
      if (piece.loaded)
        add_strips<E>(strips, Index{B::key_block}, count, dim, to.row(begin), to.row_stride, overwrites);
      else
        for (Index j = begin; overwrites && j < begin + count; ++j) std::fill_n(to.row(j), dim, G(0));
    };
    for (Index begin = keys.begin, i = 0; begin < keys.end; begin += B::key_block, ++i) {
      store_block(dk, begin, scratch.keys[i].dk);
      store_block(dv, begin, scratch.keys[i].dv);
    }
  }

  GradientArguments<T> const call_;
  StepExtents<E> const extents_;
  Index blocks_per_piece_ = 1;
  std::optional<WorkItems> pieces_, panels_;
  Index* finished_ = nullptr;  ///< [head][piece]
  std::optional<VisibilityCache<T>> visibility_cache_;
  RowRange* reach_ = nullptr;  ///< [batch item][panel]: hull of the keys that the panel sees
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
