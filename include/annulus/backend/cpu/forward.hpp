#pragma once
// Forward pass of one step: online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135)
// over packed blocks of keys. Threads claim work items from a counter: each is a group of query panels of one kv head.

#include <algorithm>
#include <atomic>

#include "annulus/backend/cpu/logits.hpp"
#include "annulus/backend/cpu/packed_head.hpp"
#include "annulus/backend/cpu/weigh.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Queries of a panel, and the running state that a step's keys add to. Call order: begin, then for each tile look_at
/// and for each block of its keys load and fold, then store.
template <class T>
class ForwardPanel {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;
  using V = Vector<A>;
  using G = PackedGroup<E>;

 public:
  /// Takes memory for queries and results from the arena.
  ForwardPanel(Arena& arena, PackedExtents<E> const& extents)
      : extents_(extents),
        queries_(arena.take<E>(extents.head_depth() * B::panel)),
        output_(arena.take<A>(extents.value_dim_grouped() * B::panel)) {}

  /// Starts on another panel; load() reads it when it is first needed.
  void begin(QueryPanel<A> const& panel) {
    panel_ = panel;
    loaded_ = false;
  }

  /// Finds the keys of a tile that the lanes see, see keys().
  void look_at(HostStep<T> const& step, StepDocuments const& documents, Tile const& tile) {
    keys_.find(step, documents, tile, panel_);
    for (int lane = 0; lane < panel_.count; ++lane)
      seen_[lane] = (loaded_ && seen_[lane]) || keys_.begin[lane] < keys_.end[lane];
  }
  PanelKeys<A> const& keys() const { return keys_; }

  /// Lists the rows that load() and store() will read, for prefetching.
  void expect_load(TensorView<T const, 4> const& q, PrefetchQueue& ahead) const {
    if (!loaded_) expect_rows(panel_, q, extents_.head_dim, ahead);
  }
  void expect_store(RunningState<A, HostMemory> const& state, PrefetchQueue& ahead) const {
    expect_rows(panel_, state.accumulator, extents_.value_dim, ahead);
  }

  /// Packs the queries and clears the sums, unless the panel is loaded.
  void load(HostStep<T> const& step, TensorView<T const, 4> const& q, RunningState<A, HostMemory> const& state) {
    if (loaded_) return;
    loaded_ = true;
    units_ = LogitUnits<A>::of(step);
    T const* rows[B::panel] = {};
    A scale[B::panel];
    std::fill_n(scale, B::panel, units_.query_scale);
    for (int lane = 0; lane < B::panel; ++lane) {
      maximum_[lane] = empty_row<A>;
      sum_[lane] = A(0);
      if (lane >= panel_.count) continue;
      auto const [b, i, h] = place(lane);
      rows[lane] = q.data() + q.offset(b, i, h, 0);
      maximum_[lane] = state.maximum(b, h, i);
    }
    pack_panel(rows, q.stride(axis::dim), extents_.head_dim, scale, queries_);
    std::fill_n(output_, extents_.value_dim_grouped() * B::panel, A(0));
  }

  /// Merges the panel's sums into the state. Each step is summed separately, as the rounding error of a sum grows with
  /// its length.
  void store(RunningState<A, HostMemory> const& state) const {
    if (!loaded_) return;
    A* rows[B::panel] = {};
    A kept[B::panel] = {};
    for (int lane = 0; lane < panel_.count; ++lane) {
      // A row that sees no key of this step keeps its bits. A row whose logits are all NaN has a sum, but no maximum.
      if (!seen_[lane] || (maximum_[lane] == empty_row<A> && sum_[lane] == A(0))) continue;
      auto const [b, i, h] = place(lane);
      A const maximum = maximum_[lane] == empty_row<A> ? sum_[lane] : maximum_[lane];
      SoftmaxRow<A> row{state.maximum(b, h, i), state.sum(b, h, i)};
      kept[lane] = row.extend({maximum, sum_[lane]});
      state.maximum(b, h, i) = row.maximum;
      state.sum(b, h, i) = row.sum;
      rows[lane] = state.accumulator.data() + state.accumulator.offset(b, i, h, 0);
    }
    unpack_panel(output_, extents_.value_dim, kept, rows);
  }

  /// Adds keys [rows.begin, rows.end) of a block, those that any lane may see. `weights`: scratch of a block's size.
  void fold(HostStep<T> const& step, PackedHead<E> const& head, Index block, BlockRows rows,
            HeadRows<T const> const& values, UnitBlocks<A> const& blocks, E* weights, PrefetchQueue& ahead) {
    rows.first = rows.begin / G::rows * G::rows;
    V largest[B::panel_vectors];
    score(step, head, block, rows, blocks, largest, ahead);
    for (int v = 0; v < B::panel_vectors; ++v)
      largest[v] = larger(largest[v] * V::of(units_.weight_scale), V::load(maximum_ + v * B::lanes));

    raise(largest, maximum_, sum_, output_, extents_.value_dim);
    A* const scores = blocks.scores + rows.row(rows.begin) * B::panel;
    Index const count = rows.end - rows.begin;
    constexpr int depth = Operand<E>::depth;
    Index const first = rows.begin / depth / G::depth * G::depth, before = rows.begin / depth - first;
    Index const elements = ceil_divide(rows.end, depth) - first, padded = G::depth_padded(elements);
    E* const elements_of_weights = is_pair<E> ? weights : reinterpret_cast<E*>(scores);
    E* const place = elements_of_weights + before * B::panel;
    if constexpr (G::depth > 1) {
      std::fill_n(elements_of_weights, before * B::panel, E{});
      std::fill_n(elements_of_weights + elements * B::panel, (padded - elements) * B::panel, E{});
    }
    bool const has_dropout = step.rules.dropout.active();
    if (!is_pair<E> || has_dropout) weigh(scores, count, units_.weight_scale, maximum_, sum_);
    if (has_dropout) {
      gather_kept(step, panel_, keys_, rows, blocks.kept);
      A const* const kept = blocks.kept + rows.row(rows.begin) * B::panel;
      // The factor of an invisible pair is not set; its weight is 0.
      for (Index e = 0; e < count * B::panel; ++e) scores[e] = scores[e] == A(0) ? A(0) : scores[e] * kept[e];
    }
    if constexpr (is_pair<E>) {
      if (has_dropout)
        pair_rows_of_panel(scores, rows.begin % depth, count, place);
      else
        weigh_to_pairs(scores, rows.begin % depth, count, units_.weight_scale, maximum_, sum_, place);
    }
    add_product_of_columns(head.values(block, first), B::key_block / depth * G::rows, elements_of_weights, padded,
                           output_, extents_.value_dim_grouped(), ahead);
    add_nonfinite_rows(step, head, block, rows, values, scores);
  }

 private:
  struct Place {
    Index batch, query, head;
  };
  Place place(int lane) const { return {panel_.rows->batch, panel_.query(lane), panel_.head(lane)}; }

  /// Computes the scores of the block: plain products for keys that all lanes see, masked logits for the others.
  void score(HostStep<T> const& step, PackedHead<E> const& head, Index block, BlockRows const& rows,
             UnitBlocks<A> const& blocks, V* largest, PrefetchQueue& ahead) {
    for (int v = 0; v < B::panel_vectors; ++v) largest[v] = V::of(empty_row<A>);
    auto const multiply = [&]<bool Maximum>(BlockRows const& part) {
      multiply_rows<Maximum>(head.keys(block, part.first), part.end - part.first, queries_, extents_.head_depth(),
                             blocks.scores + rows.row(part.first) * B::panel, largest, ahead);
    };
    auto const multiply_and_mask = [&](Index begin, Index end) {
      if (begin >= end) return;
      BlockRows const part{rows.block_begin, begin / G::rows * G::rows, begin, end};
      multiply.template operator()<false>(part);
      finish_logits(step, panel_, keys_, part, blocks.from_row(rows.row(part.first)), units_, largest);
    };
    // Whole packed groups of rows; the last group of the keys is padded with copies.
    Index const last = std::min<Index>(B::key_block, extents_.keys - rows.block_begin);
    RowRange const seen = keys_.all_in({rows.key(rows.begin), rows.key(rows.end)});
    Index const full_begin = G::rows_padded(seen.begin - rows.block_begin), seen_end = seen.end - rows.block_begin;
    Index const full_end = seen_end == last ? last : seen_end / G::rows * G::rows;
    if (units_.finished && !keys_.each && full_begin < full_end) {
      multiply_and_mask(rows.begin, full_begin);
      multiply.template operator()<true>({rows.block_begin, full_begin, full_begin, full_end});
      multiply_and_mask(full_end, rows.end);
    } else {
      multiply_and_mask(rows.begin, rows.end);
    }
  }

  /// Adds value rows that hold NaN or infinity, which are packed as zeros, to the queries that see them alone.
  void add_nonfinite_rows(HostStep<T> const& step, PackedHead<E> const& head, Index block, BlockRows const& rows,
                   HeadRows<T const> const& values, A const* scores) {
    if (head.not_finite(block).empty()) return;
    head.not_finite(block).for_each_in(rows.begin, rows.end, [&](Index j) {
      T const* const row = values.row(rows.key(j));
      for (int lane = 0; lane < panel_.count; ++lane) {
        A const score = scores[(j - rows.begin) * B::panel + lane];
        bool const weighed = !is_pair<E> || step.rules.dropout.active();
        A const weight = weighed ? score : rescale(score * units_.weight_scale, maximum_[lane]);
        if (weight == A(0)) continue;
        for (Index d = 0; d < extents_.value_dim; ++d)
          output_[d * B::panel + lane] += weight * static_cast<A>(row[d * values.dim_stride]);
      }
    });
  }

  PackedExtents<E> extents_;
  QueryPanel<A> panel_{};
  PanelKeys<A> keys_;
  E* queries_ = nullptr;
  A* output_ = nullptr;
  alignas(64) A maximum_[B::panel], sum_[B::panel];
  LogitUnits<A> units_{};
  bool seen_[B::panel] = {};
  bool loaded_ = false;
};

/// One call of Backend::fold: adds a step's keys and values to the running state of all its queries.
template <class T>
class ForwardFold {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;

 public:
  /// All that `call` refers to must outlive the object.
  explicit ForwardFold(FoldCall<T> const& call)
      : call_(call),
        heads_(call.operands),
        extents_(call.operands),
        panels_(B::panels(heads_.queries * heads_.group)) {}

  void run() {
    if (call_.step.tiles.empty() || heads_.count == 0 || panels_ == 0 || extents_.keys == 0) return;
    ThreadPool::Call call(ThreadPool::shared(), call_.threads);
    Index const threads = std::min(call.most(), heads_.count * panels_);
    Index const expected = std::min(call.expected(), threads);
    // Panel groups are small enough to balance the threads, then as large as possible to share a pass over the keys.
    Index const most = std::clamp<Index>(panel_group_bytes / panel_bytes(), 1, B::panels_per_group);
    panels_per_group_ = std::clamp<Index>(panels_ * heads_.count / (4 * expected), 1, most);
    panel_groups_ = ceil_divide(panels_, panels_per_group_);
    packed_count_ = std::min(expected, heads_.count);

    auto const allocate = [&](Arena& arena) { return arena.construct<PackedHead<E>>(packed_count_, extents_); };
    Workspace const shared(WorkspaceStore::of_calls(), bytes_of(allocate));
    Arena arena(shared.data());
    packed_ = allocate(arena);
    for (Index p = 0; p < packed_count_; ++p) packed_[p].hold(p, panel_groups_);
    next_.store(0);
    run_with_scratch(
        call, threads, [&](Arena& own) { return allocate_scratch(own); },
        [&](Team const& team, Scratch& scratch) { work(team, scratch); });
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
    return (extents_.head_depth() + extents_.value_dim_grouped()) * B::panel * static_cast<Index>(sizeof(A));
  }

  Scratch allocate_scratch(Arena& arena) const {
    constexpr Index block = Index{B::key_block} * B::panel;
    Scratch scratch;
    scratch.panels = arena.construct<ForwardPanel<T>>(panels_per_group_, extents_);
    scratch.blocks.scores = arena.take<A>(block);
    if (is_pair<E>) scratch.weights = arena.take<E>(block);
    if (call_.step.bias.data()) scratch.blocks.bias = arena.take<A>(block);
    if (call_.step.rules.dropout.active()) scratch.blocks.kept = arena.take<A>(block);
    return scratch;
  }

  void work(Team const& team, Scratch& scratch) {
    [[maybe_unused]] FlushDenormals const guard;
    [[maybe_unused]] AmxTilesFor<E> const amx;
    for (Index item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < heads_.count * panel_groups_;) {
      Index const head = item / panel_groups_;
      PackedHead<E>& packed = packed_[head % packed_count_];
      team.wait_until([&] { return packed.holds(head); });
      // Last queries first: with a causal mask they have the most work, and starting them late would unbalance threads.
      fold_panel_group(team, scratch, packed, head, panel_groups_ - 1 - item % panel_groups_);
      if (packed.leave() && head + packed_count_ < heads_.count) packed.hold(head + packed_count_, panel_groups_);
    }
  }

  void fold_panel_group(Team const& team, Scratch& scratch, PackedHead<E>& packed, Index head, Index panel_group) {
    GroupRows const rows = heads_.rows(head);
    HeadRows<T const> const keys(call_.operands.k, rows.batch, rows.kv_head), values(call_.operands.v, rows.batch, rows.kv_head);
    Index const first = panel_group * panels_per_group_, count = std::min(panels_per_group_, panels_ - first);
    for (Index p = 0; p < count; ++p) scratch.panels[p].begin(QueryPanel<A>(rows, first + p));
    Index const first_query = rows.query(first * B::panel);
    Index const last_query = rows.query(std::min((first + count) * B::panel, rows.count()) - 1);

    for (Tile const& part : call_.step.tiles) {
      if (part.query_begin > last_query || part.query_begin + part.query_count <= first_query) continue;
      RowRange seen;
      for (Index p = 0; p < count; ++p) {
        scratch.panels[p].look_at(call_.step, call_.documents, part);
        seen = hull(seen, scratch.panels[p].keys().any);
      }
      if (seen.empty()) continue;
      for (Index block = seen.begin / B::key_block; block * B::key_block < seen.end; ++block)
        fold_block(team, scratch, packed, keys, values, count, block, ceil_divide(seen.end, Index{B::key_block}));
    }
    for (Index p = 0; p < count; ++p) scratch.panels[p].store(call_.state);
  }

  void fold_block(Team const& team, Scratch& scratch, PackedHead<E>& packed, HeadRows<T const> const& keys,
                  HeadRows<T const> const& values, Index count, Index block, Index blocks_end) {
    Index const begin = block * B::key_block;
    if (scratch.progresses) call_.step.progress();
    for (Index p = 0; p < count; ++p) {
      ForwardPanel<T>& panel = scratch.panels[p];
      RowRange const any = panel.keys().any;
      BlockRows const rows{begin, 0, std::max(any.begin - begin, Index{0}),
                           std::min<Index>(any.end - begin, B::key_block)};
      if (rows.begin >= rows.end) continue;
      packed.need(block, blocks_end, keys, values, team);
      panel.load(call_.step, call_.operands.q, call_.state);
      PrefetchQueue& ahead = scratch.ahead;
      ahead.clear();
      if (p + 1 < count) scratch.panels[p + 1].expect_load(call_.operands.q, ahead);
      if (block + 1 < blocks_end)
        packed.expect(block + 1, p, count, keys, values, ahead);
      else
        panel.expect_store(call_.state, ahead);
      panel.fold(call_.step, packed, block, rows, values, scratch.blocks, scratch.weights, ahead);
    }
  }

  FoldCall<T> const call_;
  KvHeads const heads_;
  PackedExtents<E> const extents_;
  Index const panels_;
  Index panels_per_group_ = 1, panel_groups_ = 0, packed_count_ = 0;
  PackedHead<E>* packed_ = nullptr;
  std::atomic<Index> next_{0};
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
