#pragma once
// The pass of new queries over a cache: adds the pages that this rank holds to the states of queries.

#include <array>
#include <concepts>
#include <span>
#include <vector>

#include "annulus/attention/cache/cached_call.hpp"
#include "annulus/backend/open_close.hpp"
#include "annulus/ring/executor.hpp"
#include "annulus/ring/step_places.hpp"
#include "annulus/schedule/visible_tiles.hpp"

namespace annulus::detail {

/// Storage of the steps of a pass, reused from call to call.
struct PageSteps {
  std::vector<Index> query_positions;
  std::vector<Tile> tiles, of_run;
  CacheRuns runs;
  TileFinder finder;

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
    auto const state = slots_[work.query_sums].template state<A>();
    backend_.reset(state);
    for (std::size_t b = 0; b < given_.call.sequences.size(); ++b) fold_item(b, segments, rows, state, progress);
  }

  void perform(Join const& join, Action const&) {
    backend_.merge(slots_[join.into].template state<A>(), slots_[join.from].template state<A>());
  }

  void perform(Finish const& finish, Action const&) {
    TensorView<L const, 2, Space> sinks;
    if (given_.operands.sinks) sinks = *given_.operands.sinks;
    backend_.normalise(slots_[finish.from].template state<A>(), sinks, given_.results.output, given_.results.lse,
                       given_.results.lse_remainder);
  }

 private:
  /// Not read from a view: the ids of a rank without queries have no data.
  bool has_documents() const { return given_.call.cache.shape().document_ids; }

  /// Adds this rank's pages of the sequence of a batch item.
  void fold_item(std::size_t b, std::span<Segment const> segments, QueryRows<T, Space> const& rows,
                 RunningState<A, Space> const& state, Progress progress) {
    auto const item = static_cast<Index>(b);
    Index const sequence = given_.call.sequences[b], length = given_.call.cache.length(sequence);
    AttentionRules rules = given_.rules;
    rules.query_offset = first_position(given_.operands.query_offsets, b, length, given_.global_queries);
    Step<T, Predicate, Space> step{.tiles = {},
                                   .rules = rules,
                                   .query_positions = {},
                                   .key_positions = {},
                                   .first_batch = item,
                                   .predicate = &given_.predicate,
                                   .bias = pairs_of_item(given_.operands.bias, item),
                                   .boolean_mask = pairs_of_item(given_.operands.mask, item),
                                   .progress = progress,
                                   .recomputed = false};
    if (has_documents()) step.query_documents = rows.ids.slice(axis::batch, item, 1);
    find_positions(steps_.query_positions, segments, all_rows(rows_of(segments)), *rules.query_offset);
    step.query_positions = steps_.query_positions;
    auto const q = rows.q.slice(axis::batch, item, 1);
    RunningState<A, Space> const of_item{state.accumulator.slice(0, item, 1), state.maximum.slice(0, item, 1),
                                         state.sum.slice(0, item, 1)};
    CacheGaps const gaps = gaps_of(step, segments);
    auto const fold_part = [&](auto const& keys, auto positions) {
      find_tiles(segments, rules, step.boolean_mask.data());
      if (steps_.tiles.empty()) return;
      step.tiles = steps_.tiles;
      step.key_positions = positions;
      step.key_documents = keys.ids;
      fold(backend_, step, StepOperands<T, Space>{q, keys.k, keys.v}, of_item);
    };
    CachePages<T, B> const pages(given_.call.cache, backend_);
    pages.for_each_part(sequence, range_of(step.query_documents), gaps, steps_.runs, fold_part);
  }

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
    bool const elementwise = masked || !std::same_as<Predicate, EveryPair>;
    steps_.tiles.clear();
    for (CacheRuns::Run const& run : steps_.runs.runs()) {
      steps_.finder.find(segments, steps_.runs.segments(run), rules.mask, *rules.query_offset, elementwise,
                         &steps_.of_run, rules.block_mask);
      for (Tile tile : steps_.of_run) {
        tile.key_begin += run.first_row;
        steps_.tiles.push_back(tile);
      }
    }
  }

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
};

}  // namespace annulus::detail
