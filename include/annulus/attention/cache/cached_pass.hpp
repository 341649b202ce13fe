#pragma once
// The pass of new queries over a cache: adds the pages that this rank holds to the states of queries.

#include <array>
#include <concepts>
#include <span>
#include <vector>

#include "annulus/attention/cache/cache_leaves.hpp"
#include "annulus/attention/cache/cached_call.hpp"
#include "annulus/backend/open_close.hpp"
#include "annulus/ring/executor.hpp"
#include "annulus/ring/step_places.hpp"
#include "annulus/schedule/visible_tiles.hpp"

namespace annulus::detail {

/// The partial results of the queries of one batch item over leaves, and the places in a slot that have them.
struct LeafSumsOfItem {
  LeafForest forest;
  PlacePool places;
};

/// Storage of the steps of a pass, reused from call to call.
struct PageSteps {
  std::vector<Index> query_positions, key_positions;
  std::vector<Tile> tiles, of_run;
  CacheRuns runs;
  TileFinder finder;
  std::vector<LeafSumsOfItem> own, visiting;  ///< of a reproducible call: of this rank's queries, of those of others

  Index bytes() const {
    return static_cast<Index>(query_positions.capacity() * sizeof(Index) +
                              (tiles.capacity() + of_run.capacity()) * sizeof(Tile));
  }
};

/// Query rows of all batch items, and their document ids if the cache has them.
template <class T, class Space>
struct QueryRows {
  TensorView<T const, 4, Space> q;
  TensorView<std::int32_t const, 2, Space> ids{};
};

template <Communicator C, Backend B, class T, class Predicate>
class CachedPass {
 public:
  using Space = typename B::memory_space;
  using A = AccumulatorOf<B, T>;
  using L = Accumulator<T>;

  struct Arguments {
    CacheCall<T, B> const& call;
    AttentionShape shape;
    AttentionRules rules;  ///< with softmax_scale set
    Predicate const& predicate;
    QueryRows<T, Space> own;
    CachedOperands<T, Space> const& operands;
    Index global_queries;        ///< of all ranks that pass shards, or those that every rank has
    ShardedRows const* sharded;  ///< of the queries; null if every rank has them
    ForwardResults<T, L, Space> results;
    CacheLeaves* leaves;  ///< null if the call is not reproducible
    Rank rank;
    int ranks;
  };

  CachedPass(Arguments const& arguments, B& backend, Slots<C, B> const& slots, PageSteps& steps)
      : given_(arguments), backend_(backend), slots_(slots), steps_(steps) {}

  void perform(Pack const& pack, Action const&) {
    SlotView<Space> const into = slots_[pack.into];
    backend_.copy(given_.own.q, into.template view<T>(Part::q));
    if (has_documents()) backend_.copy(given_.own.ids, into.template document_ids<std::int32_t>());
  }

  void perform(Work const& work, Action const&, Progress progress) {
    std::array const all{Segment{0, given_.global_queries, 0, 1}};
    std::span<Segment const> segments = all;
    if (given_.sharded) segments = given_.sharded->segments(work.queries.owner);
    QueryRows<T, Space> rows = given_.own;
    if (work.queries.from.slot >= 0) {
      SlotView<Space> const from = slots_[work.queries.from];
      rows.q = from.template view<T>(Part::q);
      if (has_documents()) rows.ids = from.template document_ids<std::int32_t>();
    }
    for (std::size_t b = 0; b < given_.call.sequences.size(); ++b) {
      PreparedStep prepared = prepare(b, segments, rows, progress);
      if (given_.leaves)
        fold_leaves(work, b, segments, prepared);
      else
        fold_pages(b, segments, prepared, state_of(work.query_sums, b));
    }
  }

  /// Partial results that leave.
  void perform(Copy const& copy, Action const&) {
    auto const& sums = sums_in(copy.from.slot);
    for (std::size_t b = 0; b < sums.size(); ++b) {
      int node = 0;
      for (auto const& partial : sums[b].forest.partials())
        copy_state(state_of(copy.from, b, partial.place), state_of(copy.into, b, node++));
      for (; node < slots_.slot(copy.into.slot).nodes; ++node) backend_.reset(state_of(copy.into, b, node));
    }
  }

  void perform(Join const& join, Action const&) {
    if (!given_.leaves)
      return backend_.merge(slots_[join.into].template state<A>(), slots_[join.from].template state<A>());
    Rank const holder = rank_at(given_.rank + ++joined_, given_.ranks);
    auto& sums = sums_in(join.into.slot);
    for (std::size_t b = 0; b < sums.size(); ++b)
      given_.leaves->receive(
          owner_of(given_.rank), b, holder, sums[b].forest, sums[b].places,
          [&](Index node, Index place) { copy_state(state_of(join.from, b, node), state_of(join.into, b, place)); },
          merge_in(join.into, b));
  }

  void perform(Finish const& finish, Action const&) {
    if (given_.leaves) take_roots(finish.from);
    TensorView<L const, 2, Space> sinks;
    if (given_.operands.sinks) sinks = *given_.operands.sinks;
    backend_.normalise(slots_[finish.from].template state<A>(), sinks, given_.results.output, given_.results.lse,
                       given_.results.lse_remainder);
  }

 private:
  /// Not read from a view: the ids of a rank without queries have no data.
  bool has_documents() const { return given_.call.cache.shape().document_ids; }

  /// The queries of a batch item, and a step that lacks tiles and keys.
  struct PreparedStep {
    Step<T, Predicate, Space> step;
    TensorView<T const, 4, Space> q;
  };
  PreparedStep prepare(std::size_t b, std::span<Segment const> segments, QueryRows<T, Space> const& rows,
                       Progress progress) {
    auto const item = static_cast<Index>(b);
    AttentionRules rules = given_.rules;
    rules.query_offset = offset_of(b);
    Step<T, Predicate, Space> step{.tiles = {},
                                   .rules = rules,
                                   .query_positions = {},
                                   .key_positions = {},
                                   .first_batch = item,
                                   .predicate = &given_.predicate,
                                   .bias = pairs_of_item(given_.operands.bias, item),
                                   .boolean_mask = pairs_of_item(given_.operands.mask, item),
                                   .progress = progress,
                                   .recomputed = rules.reproducible};  // or few queries may take another order
    if (has_documents()) step.query_documents = rows.ids.slice(axis::batch, item, 1);
    find_positions(steps_.query_positions, segments, all_rows(rows_of(segments)), *rules.query_offset);
    step.query_positions = steps_.query_positions;
    return {step, rows.q.slice(axis::batch, item, 1)};
  }
  Index offset_of(std::size_t b) const {
    Index const length = given_.call.cache.length(given_.call.sequences[b]);
    return first_position(given_.operands.query_offsets, b, length, given_.global_queries);
  }

  /// Adds this rank's pages of the sequence of a batch item.
  void fold_pages(std::size_t b, std::span<Segment const> segments, PreparedStep& prepared,
                  RunningState<A, Space> const& state) {
    Step<T, Predicate, Space>& step = prepared.step;
    backend_.reset(state);
    CacheGaps const gaps = gaps_of(step, segments);
    auto const fold_part = [&](auto const& keys, auto positions) {
      find_tiles(segments, step.rules, step.boolean_mask.data());
      fold_keys(prepared, keys, positions, state);
    };
    CachePages<T, B> const pages(given_.call.cache, backend_);
    pages.for_each_part(given_.call.sequences[b], range_of(step.query_documents), gaps, steps_.runs, fold_part);
  }

  /// Adds this rank's leaves of the sequence of a batch item, each to a partial result of its own.
  void fold_leaves(Work const& work, std::size_t b, std::span<Segment const> segments, PreparedStep& prepared) {
    LeafSumsOfItem& sums = sums_in(work.query_sums.slot)[b];
    sums.places.clear();
    auto const fold_leaf = [&](Index leaf, Index place) {
      auto const state = state_of(work.query_sums, b, place);
      backend_.reset(state);
      add_leaf(b, leaf, segments, prepared, state);
    };
    given_.leaves->fold(owner_of(work.queries.owner), b, given_.rank, sums.forest, sums.places, fold_leaf,
                        merge_in(work.query_sums, b));
  }
  void add_leaf(std::size_t b, Index leaf, std::span<Segment const> segments, PreparedStep& prepared,
                RunningState<A, Space> const& state) {
    RowRange const positions = given_.leaves->rows(b, leaf);
    CachePages<T, B> const pages(given_.call.cache, backend_);
    auto const keys =
        pages.rows_at(given_.call.sequences[b], positions, range_of(prepared.step.query_documents), gathered_rows());
    if (!keys) return;
    find_positions(steps_.key_positions, positions.begin, positions.size());
    Segment const rows{0, positions.size(), positions.begin, 1};
    steps_.finder.find(segments, {&rows, 1}, prepared.step.rules.mask, *prepared.step.rules.query_offset,
                       is_elementwise(prepared.step.boolean_mask.data()), &steps_.tiles, prepared.step.rules.block_mask,
                       FullTiles::apart);
    fold_keys(prepared, *keys, steps_.key_positions, state);
  }
  /// Memory for the rows of a leaf.
  CacheRows<T, Space> gathered_rows() const {
    constexpr int keys = static_cast<int>(GroupRows::keys);
    SlotView<Space> const rows = slots_.all(slots_.find(SlotKind::gathered, keys));
    CacheRows<T, Space> result{rows.template view<T>(Part::k), rows.template view<T>(Part::v)};
    if (has_documents()) result.ids = rows.template document_ids<std::int32_t>();
    return result;
  }

  /// Adds keys of which the tiles have been found.
  void fold_keys(PreparedStep& prepared, CacheRows<T const, Space> const& keys, std::span<Index const> positions,
                 RunningState<A, Space> const& state) {
    if (steps_.tiles.empty()) return;
    prepared.step.tiles = steps_.tiles;
    prepared.step.key_positions = positions;
    prepared.step.key_documents = keys.ids;
    fold(backend_, prepared.step, StepOperands<T, Space>{prepared.q, keys.k, keys.v}, state);
  }

  /// Rows of a batch item, and of one of their partial results.
  RunningState<A, Space> state_of(SlotRows const& rows, std::size_t b, Index node = 0) const {
    auto const state = slots_[{rows.slot, rows.rows, static_cast<int>(node)}].template state<A>();
    auto const item = static_cast<Index>(b);
    return {state.accumulator.slice(0, item, 1), state.maximum.slice(0, item, 1), state.sum.slice(0, item, 1)};
  }
  void copy_state(RunningState<A, Space> const& from, RunningState<A, Space> const& into) {
    backend_.copy(TensorView<A const, 4, Space>(from.accumulator), into.accumulator);
    backend_.copy(TensorView<A const, 3, Space>(from.maximum), into.maximum);
    backend_.copy(TensorView<A const, 3, Space>(from.sum), into.sum);
  }
  auto merge_in(SlotRows const& rows, std::size_t b) {
    return
        [this, rows, b](Index into, Index from) { backend_.merge(state_of(rows, b, into), state_of(rows, b, from)); };
  }
  /// Moves the results of all batch items to the first place of their slot.
  void take_roots(SlotRows const& rows) {
    auto const& sums = sums_in(rows.slot);
    for (std::size_t b = 0; b < sums.size(); ++b) {
      auto const& partials = sums[b].forest.partials();
      if (partials.empty())
        backend_.reset(state_of(rows, b));
      else if (partials.front().place != 0)
        copy_state(state_of(rows, b, partials.front().place), state_of(rows, b));
    }
  }
  /// Those of each batch item in a slot.
  std::vector<LeafSumsOfItem>& sums_in(int slot) const {
    auto& sums = slots_.slot(slot).kind == SlotKind::results ? steps_.own : steps_.visiting;
    sums.resize(given_.call.sequences.size());
    return sums;
  }
  /// By which the leaves name the queries of a rank.
  Rank owner_of(Rank rank) const { return given_.leaves->owners() == 1 ? 0 : rank; }

  /// The gaps between the rows of a step. One step that reads several runs takes less time than several steps, at the
  /// end of each of which threads wait for each other.
  CacheGaps gaps_of(Step<T, Predicate, Space> const& step, std::span<Segment const> segments) const {
    if constexpr (requires { backend_.reads_tiles_alone(step, Index{}, Index{}); }) {
      PageTable const& table = given_.call.cache.table();
      // With more segments tiles may not be exact.
      bool const exact = segments.size() * static_cast<std::size_t>(table.pages_per_rank()) < tile_limit;
      Index const keys = table.pages_per_rank() * table.page_rows();
      return exact && backend_.reads_tiles_alone(step, rows_of(segments), keys) ? CacheGaps::any : CacheGaps::none;
    } else {
      // Rows of other sequences would be taken for more rows of the documents, whose keys would be tested one by one.
      return has_documents() ? CacheGaps::none : CacheGaps::few;
    }
  }

  /// The tiles of the runs of a part. `masked`: there is a boolean mask.
  void find_tiles(std::span<Segment const> segments, AttentionRules const& rules, bool masked) {
    steps_.tiles.clear();
    for (CacheRuns::Run const& run : steps_.runs.runs()) {
      steps_.finder.find(segments, steps_.runs.segments(run), rules.mask, *rules.query_offset, is_elementwise(masked),
                         &steps_.of_run, rules.block_mask);
      for (Tile tile : steps_.of_run) {
        tile.key_begin += run.first_row;
        steps_.tiles.push_back(tile);
      }
    }
  }

  static bool is_elementwise(bool masked) { return masked || !std::same_as<Predicate, EveryPair>; }

  /// The bias or boolean mask of a batch item, for all heads; without data if it is not given.
  template <class X>
  TensorView<X const, 4, Space> pairs_of_item(OptionalView<X, 4, Space> const& pairs, Index item) const {
    if (!pairs) return {};
    auto const& e = pairs->extents();
    return broadcast(pairs->slice(axis::batch, e[0] == 1 ? 0 : item, 1), {1, given_.shape.query_heads, e[2], e[3]});
  }

  Arguments const& given_;
  B& backend_;
  Slots<C, B> const& slots_;
  PageSteps& steps_;
  int joined_ = 0;  ///< ranks whose partial results have arrived
};

}  // namespace annulus::detail
