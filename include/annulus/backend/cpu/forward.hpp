#pragma once
// Forward pass of one step: online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135)
// over packed blocks of keys. Threads claim work items from a counter: each is a group of query panels of one kv head.

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>

#include "annulus/backend/cpu/logits.hpp"
#include "annulus/backend/cpu/packed_head.hpp"
#include "annulus/backend/cpu/weigh.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Queries of a panel, and the running state that a step's keys add to. Call order: begin, then for each tile look_at
/// and for each block of its keys load and fold, then store.
template <class T>
class ForwardPanel {
  using A = Accumulator<T>;
  using E = BlockElement<T>;
  using B = Blocking<A>;
  using V = Vector<A>;
  using G = PackedGroup<E>;

 public:
  /// Takes memory for queries and results from the arena. Arguments must outlive the object.
  ForwardPanel(Arena& arena, FoldCall<T> const& call, StepExtents<E> const& extents, VisibilityCache<T> const& cache)
      : call_(call),
        extents_(extents),
        visibility_cache_(cache),
        units_(LogitUnits<A>::of(call.step)),
        queries_(arena.take<E>(extents.head.packed() * B::panel)),
        output_(arena.take<A>(extents.value.grouped() * B::panel)) {}

  /// Starts on another panel; load() reads it when it is first needed.
  void begin(QueryPanel<A> const& panel) {
    panel_ = panel;
    bias_ = {call_.step.bias, panel};
    loaded_ = false;
  }

  /// Finds the keys of a tile that the lanes see, see keys().
  void look_at(Tile const& tile) {
    keys_.find(call_.step, call_.documents, tile, panel_);
    for (int lane = 0; lane < panel_.count; ++lane)
      seen_[lane] = (loaded_ && seen_[lane]) || keys_.begin[lane] < keys_.end[lane];
  }
  PanelKeys<A> const& keys() const { return keys_; }

  /// Lists the rows that load() and store() will read, for prefetching.
  void expect_load(PrefetchQueue& ahead) const {
    if (!loaded_) panel_.expect(call_.operands.q, ahead);
  }
  void expect_store(PrefetchQueue& ahead) const {
    if (call_.results)
      panel_.expect(call_.results->output, ahead);
    else
      panel_.expect(call_.state.accumulator, ahead);
  }

  /// Lists the rows of the bias that fold() will read for a key block.
  void expect_bias(Index block, PrefetchQueue& ahead) const {
    BlockRows const rows = BlockRows::of(block, keys_.any);
    bias_.expect(ahead, call_.step.key_positions, {rows.key(rows.begin), rows.key(rows.end)});
  }

  /// Packs the queries, unless the panel is loaded; fold() will set the sums.
  void load() {
    if (loaded_) return;
    loaded_ = true;
    has_sums_ = false;
    TensorView<T const, 4> const& q = call_.operands.q;
    T const* rows[B::panel] = {};
    for (int lane = 0; lane < B::panel; ++lane) {
      maximum_[lane] = empty_row<A>;
      sum_[lane] = A(0);
      if (lane >= panel_.count) continue;
      rows[lane] = panel_.row(q, lane);
      if (!call_.results) maximum_[lane] = panel_.element(call_.state.maximum, lane);
    }
    pack_panel(rows, q.stride(axis::dim), extents_.head.size, units_.query_scale, queries_);
  }

  /// Merges the panel's sums into the state. Each step is summed separately, as the rounding error of a sum grows with
  /// its length.
  void store() {
    if (!loaded_) return;
    V uncut[B::panel_vectors];
    remove_cut(maximum_, sum_, uncut);
    A* rows[B::panel] = {};
    A kept[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) {
      // A row that sees no key of this step keeps its bits.
      if (!has_keys(lane)) continue;
      A &state_maximum = panel_.element(call_.state.maximum, lane), &state_sum = panel_.element(call_.state.sum, lane);
      SoftmaxRow<A> row{state_maximum, state_sum};
      kept[lane] = row.extend(row_of(lane));
      state_maximum = row.maximum;
      state_sum = row.sum;
      rows[lane] = panel_.row(call_.state.accumulator, lane);
    }
    unpack_panel(output_, extents_.value.size, uncut, kept, rows);
  }

  /// Writes the results of the panel's rows, which see the keys of this step alone.
  void finish(StepResults<T, A, HostMemory> const& results) {
    V uncut[B::panel_vectors];
    if (loaded_) remove_cut(maximum_, sum_, uncut);
    T* rows[B::panel] = {};
    A scale[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) {
      bool const sees_keys = loaded_ && has_keys(lane);
      SoftmaxRow<A> const row = sees_keys ? row_of(lane) : SoftmaxRow<A>{};
      HostOperations::write_lse(row, panel_.rows->batch, panel_.head(lane), panel_.query(lane), results.lse,
                                results.lse_remainder);
      T* const to = panel_.row(results.output, lane);
      if (!sees_keys) {
        std::fill_n(to, extents_.value.size, T(0));
        continue;
      }
      scale[lane] = row.normaliser();
      rows[lane] = to;
    }
    if (loaded_) unpack_results(output_, extents_.value.size, uncut, scale, rows);
  }

  /// True if a lane sees one of `rows`, which are within the bounds of the lanes. Call it before fold().
  bool sees(BlockRows const& rows, UnitBlocks<A> const& blocks) {
    visibility_ = visibility_cache_.find(call_.step, panel_, keys_, rows, *blocks.visible);
    return visibility_ != Visibility::none;
  }

  /// True if a lane may see keys of a block, as far as that is known without looking at them.
  bool may_see(Index block) const {
    BlockRows const rows = BlockRows::of(block, keys_.any);
    return rows.begin < rows.end && !visibility_cache_.hides(panel_, keys_, block);
  }

  /// Adds keys [rows.begin, rows.end) of a block, those that any lane may see. `weights`: scratch of a block's size.
  void fold(PackedHead<T> const& head, Index block, BlockRows rows, UnitBlocks<A> const& blocks, E* weights,
            PrefetchQueue& ahead) {
    rows.first = rows.begin / G::rows * G::rows;
    V largest[B::panel_vectors];
    score(head, block, rows, blocks, largest, ahead);
    for (int v = 0; v < B::panel_vectors; ++v)
      largest[v] = larger(largest[v] * V::of(units_.weight_scale), V::load(maximum_ + v * B::lanes));

    raise(largest, maximum_, sum_, output_, has_sums_ ? extents_.value.size : 0);
    A* const scores = blocks.scores + rows.row(rows.begin) * B::panel;
    Index const count = rows.end - rows.begin;
    constexpr int depth = Operand<E>::depth;
    Index const first = rows.begin / depth / G::depth * G::depth, before = rows.begin / depth - first;
    Index const elements = annulus::detail::ceil_divide(rows.end, depth) - first, padded = G::depth_padded(elements);
    E* const elements_of_weights = is_joined<E> ? weights : reinterpret_cast<E*>(scores);
    E* const place = elements_of_weights + before * B::panel;
    if constexpr (G::depth > 1) {
      std::fill_n(elements_of_weights, before * B::panel, E{});
      std::fill_n(elements_of_weights + elements * B::panel, (padded - elements) * B::panel, E{});
    }
    DropoutFactors<A> const dropout{blocks.kept, rows.begin, static_cast<A>(call_.step.rules.dropout.keep_scale())};
    if (blocks.kept) find_kept(call_.step, panel_, rows, *blocks.kept);
    if constexpr (is_joined<E>)
      weigh_to_joined_rows(scores, rows.begin % depth, count, units_.weight_scale, maximum_, sum_, dropout, place);
    else
      weigh(scores, count, units_.weight_scale, maximum_, sum_, dropout);
    Index const first_half_end = rows.first_half_end<E>(keys_);
    Index const first_half = first_half_end == rows.end ? padded : std::max(first_half_end / depth - first, Index{0});
    add_product_of_columns(head.values(block, first), B::key_block / depth * G::rows, elements_of_weights, padded,
                           first_half, output_, extents_.value.grouped(), ahead, has_sums_);
    has_sums_ = true;
    add_nonfinite_rows(head, block, rows, scores, dropout);
  }

 private:
  /// True if a lane has seen keys.
  bool has_keys(int lane) const { return seen_[lane] && !(maximum_[lane] == empty_row<A> && sum_[lane] == A(0)); }
  /// The sums of the lane. A row whose logits are all NaN has a sum, but no maximum.
  SoftmaxRow<A> row_of(int lane) const {
    return {maximum_[lane] == empty_row<A> ? sum_[lane] : maximum_[lane], sum_[lane]};
  }

  /// Computes the scores of the block: plain products for keys that all lanes see, masked logits for the others.
  void score(PackedHead<T> const& head, Index block, BlockRows const& rows, UnitBlocks<A> const& blocks, V* largest,
             PrefetchQueue& ahead) {
    for (int v = 0; v < B::panel_vectors; ++v) largest[v] = V::of(empty_row<A>);
    auto const multiply_and_mask = [&](Index begin, Index end) {
      if (begin >= end) return;
      BlockRows const part{rows.block_begin, begin / G::rows * G::rows, begin, end};
      E const* const keys = head.keys(block, part.first);
      Index const count = part.end - part.first, first_half = part.first_half_end<E>(keys_) - part.first;
      A* const scores = blocks.scores + rows.row(part.first) * B::panel;
      if constexpr (!G::tiled)
        if (units_.finished) {
          auto const multiply = [&](auto const& see) {
            multiply_rows<true>(keys, count, first_half, queries_, extents_.head.packed(), scores, ahead, largest, see);
          };
          if (visibility_ == Visibility::some) return multiply(SeenByBits<A>{blocks.visible, part.first});
          BlockBounds<A> const bounds(keys_, part.block_begin);
          return multiply(SeenByBounds<A>{&bounds, part.first});
        }
      multiply_rows(keys, count, first_half, queries_, extents_.head.packed(), scores, ahead);
      finish_logits(call_.step, bias_, keys_, visibility_, {part.block_begin, rows.first, part.begin, part.end}, blocks,
                    units_, largest);
    };
    // Whole packed groups of rows; the last group of the keys is padded with copies.
    Index const last = std::min<Index>(B::key_block, extents_.keys - rows.block_begin);
    RowRange const seen = keys_.all_in({rows.key(rows.begin), rows.key(rows.end)});
    Index const full_begin = G::rows_padded(seen.begin - rows.block_begin), seen_end = seen.end - rows.block_begin;
    Index const full_end = seen_end == last ? last : seen_end / G::rows * G::rows;
    if (units_.finished && visibility_ == Visibility::all && full_begin < full_end) {
      multiply_and_mask(rows.begin, full_begin);
      multiply_vectors<true, 0>(head.keys(block, full_begin), full_end - full_begin, queries_, extents_.head.packed(),
                                blocks.scores + rows.row(full_begin) * B::panel, largest, ahead);
      multiply_and_mask(full_end, rows.end);
    } else {
      multiply_and_mask(rows.begin, rows.end);
    }
  }

  /// Adds value rows that hold NaN or infinity, which are packed as zeros, to the queries that see them alone.
  void add_nonfinite_rows(PackedHead<T> const& head, Index block, BlockRows const& rows, A const* scores,
                          DropoutFactors<A> const& dropout) {
    for_each_row_in(head.not_finite(block), rows.begin, rows.end, [&](Index j) {
      HeadRows<T const> const& values = head.value_rows();
      T const* const row = values.row(rows.key(j));
      for (int lane = 0; lane < panel_.count; ++lane) {
        A const score = scores[(j - rows.begin) * B::panel + lane];
        A const weight = is_joined<E>
                             ? dropout.apply(rescale(score * units_.weight_scale, maximum_[lane]), j - rows.begin, lane)
                             : score;
        if (weight == A(0)) continue;
        for (Index d = 0; d < extents_.value.size; ++d)
          output_[d * B::panel + lane] += weight * static_cast<A>(row[d * values.dim_stride]);
      }
    });
  }

  FoldCall<T> const& call_;
  StepExtents<E> const& extents_;
  VisibilityCache<T> const& visibility_cache_;
  LogitUnits<A> units_;
  QueryPanel<A> panel_{};
  BiasRows<T const> bias_;
  PanelKeys<A> keys_;
  Visibility visibility_ = Visibility::all;  ///< of the block that is folded next
  E* queries_;
  A* output_;
  alignas(64) A maximum_[B::panel], sum_[B::panel];
  bool seen_[B::panel] = {};
  bool loaded_ = false, has_sums_ = false;  ///< the queries are packed; a block has been folded since
};

/// One call of Backend::fold: adds a step's keys and values to the running state of all its queries.
template <class T>
class ForwardFold {
  using A = Accumulator<T>;
  using E = BlockElement<T>;
  using B = Blocking<A>;

 public:
  /// All that `call` refers to must outlive the object.
  explicit ForwardFold(FoldCall<T> const& call) : call_(call), extents_(call.operands) {}

  /// True if the results of `call` can be written.
  static bool writes_results(FoldCall<T> const& call) {
    return !is_empty(call) && call.results->output.stride(axis::dim) == 1;
  }

  void run() {
    if (is_empty(call_)) return;
    ThreadPool::Call call(ThreadPool::shared(), call_.threads);
    Index const heads = extents_.heads(), panels = extents_.panels();
    Index const threads = std::min(call.most(), heads * panels), expected = std::min(call.expected(), threads);
    // Panel groups are small enough to balance the threads, then as large as possible to share a pass over the keys.
    Index const most = std::clamp<Index>(panel_group_bytes / panel_bytes(), 1, B::panels_per_group);
    panels_per_group_ = std::clamp<Index>(panels * heads / (4 * expected), 1, most);
    panel_groups_ = annulus::detail::ceil_divide(panels, panels_per_group_);
    packed_count_ = std::min(expected, heads);

    auto const allocate = [&](Arena& arena) {
      packed_ = arena.construct<PackedHead<T>>(packed_count_, call_.operands, extents_);
      visibility_cache_.emplace(arena, call_.step, extents_);
    };
    Workspace const shared(WorkspaceStores::shared().of_calls, bytes_of(allocate));
    Arena arena(shared.data());
    allocate(arena);
    visibility_cache_->clear();
    for (Index p = 0; p < packed_count_; ++p) packed_[p].hold(p, panel_groups_);
    share_items<E>(
        call, threads, heads * panel_groups_, [&](Arena& own) { return allocate_scratch(own); },
        [&](Team const& team, Scratch& scratch, Index item) {
          // Last queries first: with a causal mask they have the most work, and starting them late would unbalance
          // threads.
          fold_panel_group(team, scratch, item / panel_groups_, panel_groups_ - 1 - item % panel_groups_);
        });
  }

 private:
  /// Queries and results of a panel group stay within this many bytes.
  static constexpr Index panel_group_bytes = Index{1} << 20;

  static bool is_empty(FoldCall<T> const& call) {
    return call.step.tiles.empty() || StepExtents<E>(call.operands).empty();
  }

  /// Working memory of one thread.
  struct Scratch {
    bool progresses = false;  ///< this is the calling thread, which calls Step::progress
    ForwardPanel<T>* panels = nullptr;
    UnitBlocks<A> blocks{};
    E* weights = nullptr;  ///< for pairs and quads only; other weights overwrite the scores
    PrefetchQueue ahead{};
  };

  Index panel_bytes() const {
    Index const queries = extents_.head.packed() * static_cast<Index>(sizeof(E));
    return B::panel * (queries + extents_.value.grouped() * static_cast<Index>(sizeof(A)));
  }

  Scratch allocate_scratch(Arena& arena) const {
    Scratch scratch;
    scratch.panels = arena.construct<ForwardPanel<T>>(panels_per_group_, call_, extents_, *visibility_cache_);
    scratch.blocks = UnitBlocks<A>::of(arena, call_.step, Pass::forward);
    if (is_joined<E>) scratch.weights = arena.take<E>(Index{B::key_block} * B::panel);
    return scratch;
  }

  void fold_panel_group(Team const& team, Scratch& scratch, Index head, Index panel_group) {
    PackedHead<T>& packed = packed_[head % packed_count_];
    team.wait_until([&] { return packed.holds(head); });
    GroupRows const rows = extents_.rows(head);
    Index const first = panel_group * panels_per_group_, count = std::min(panels_per_group_, extents_.panels() - first);
    for (Index p = 0; p < count; ++p) scratch.panels[p].begin(QueryPanel<A>(rows, first + p));
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
      Index const next = first_block_before(tile, rows, first * B::panel, B::key_blocks(seen.end) - 1);
      for (Index block = seen.begin / B::key_block; block * B::key_block < seen.end;)
        block = fold_block(team, scratch, packed, count, block, B::key_blocks(seen.end), next);
    }
    for (ForwardPanel<T>& panel : std::span(scratch.panels, static_cast<std::size_t>(count)))
      call_.results ? panel.finish(*call_.results) : panel.store();
    if (packed.leave() && head + packed_count_ < extents_.heads()) packed.hold(head + packed_count_, panel_groups_);
  }

  /// First key block of the panel group that ends before row `end`, which is the next work item unless another thread
  /// claims it; `otherwise` if it has none.
  Index first_block_before(Tile const& tile, GroupRows const& rows, Index end, Index otherwise) const {
    Index const query = rows.query(std::max(end - panels_per_group_ * B::panel, Index{0})) - tile.query_begin;
    if (end == 0 || query < 0 || query >= tile.query_count) return otherwise;
    RowRange const keys = call_.documents.bounds(call_.step, tile, rows.batch, query).rows;
    return keys.empty() ? otherwise : keys.begin / B::key_block;
  }

  /// Folds a key block into all panels that see it, and prefetches the next one that any panel may see, or block `next`
  /// after the last. Returns the next one, or blocks_end.
  Index fold_block(Team const& team, Scratch& scratch, PackedHead<T>& packed, Index count, Index block,
                   Index blocks_end, Index next) {
    if (scratch.progresses) call_.step.progress();
    auto const may_be_seen = [&](Index of) {
      return std::any_of(scratch.panels, scratch.panels + count, [&](auto const& panel) { return panel.may_see(of); });
    };
    Index after = block + 1;
    while (after < blocks_end && !may_be_seen(after)) ++after;
    for (Index p = 0; p < count; ++p) {
      ForwardPanel<T>& panel = scratch.panels[p];
      BlockRows const rows = BlockRows::of(block, panel.keys().any);
      if (rows.begin >= rows.end || !panel.sees(rows, scratch.blocks)) continue;
      packed.need(block, blocks_end, team);
      panel.load();
      PrefetchQueue& ahead = scratch.ahead;
      ahead.clear();
      scratch.panels[(p + 1) % count].expect_bias(block + (p + 1) / count, ahead);
      if (p + 1 < count) scratch.panels[p + 1].expect_load(ahead);
      if (after == blocks_end) panel.expect_store(ahead);
      packed.expect(after < blocks_end ? after : next, p, count, ahead);
      panel.fold(packed, block, rows, scratch.blocks, scratch.weights, ahead);
    }
    return after;
  }

  FoldCall<T> const call_;
  StepExtents<E> const extents_;
  Index panels_per_group_ = 1, panel_groups_ = 0, packed_count_ = 0;
  PackedHead<T>* packed_ = nullptr;
  std::optional<VisibilityCache<T>> visibility_cache_;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
