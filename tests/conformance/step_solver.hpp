#pragma once
// Solver of ring problems that calls a backend step by step, without a ring: all shards are in one memory.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/backend/backend.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "annulus/tensor/operands.hpp"
#include "conformance/placed_array.hpp"
#include "support/catch.hpp"

namespace annulus_test {

/// Division of a problem into steps.
struct StepChoice {
  enum Order { forwards, backwards, shuffled };
  Order order = forwards;         ///< in which the keys of the owners are folded
  bool needed_rows_only = false;  ///< passes only the key rows from the first to the last visible one
  Layout operands = Layout::dense;
};

/// Computes the queries of each rank against the keys of each rank, in one step each. T: type of the operands.
template <class T, class Implementation, class Predicate = annulus::EveryPair>
class StepSolver {
  using Backend = typename Implementation::Backend;
  using Space = typename Backend::memory_space;
  using A = annulus::AccumulatorOf<Backend, T>;
  using L = annulus::Accumulator<T>;
  using Gradients = annulus::StepGradientsOf<Backend, T>;
  using WrittenElement = std::remove_reference_t<decltype(*std::declval<Gradients>().written_dbias.data())>;
  template <class U, std::size_t N>
  using Array = PlacedArray<typename Implementation::Placement, U, N>;
  using Segments = std::vector<annulus::Segment>;

 public:
  StepSolver(Implementation const& implementation, RingProblem const& problem, StepChoice const& choice,
             Predicate predicate = {})
      : problem_(problem),
        d_(problem.dense),
        choice_(choice),
        predicate_(predicate),
        backend_(implementation.make(11)) {}

  /// Results of each rank, for assemble().
  std::vector<RingResult> solve() {
    std::deque<QueryShard> queries;
    std::deque<KeyShard> keys;
    for (int rank = 0; rank < problem_.ranks; ++rank) {
      queries.emplace_back(*this, problem_.segments(annulus::Side::query, rank));
      keys.emplace_back(*this, problem_.segments(annulus::Side::key, rank));
    }
    for (auto& query : queries) {
      backend_.reset(query.state());
      for (std::size_t owner : order(keys.size())) fold(query, keys[owner]);
      backend_.normalise(query.state(), sinks(), query.output.view(), query.lse.view(), query.lse_remainder.view());
      backend_.row_delta(query.dout.constant(), query.output.constant(), query.delta.view());
      backend_.clear(query.dq.view());
      if (query.dbias) backend_.clear(query.dbias->view());
      // No step writes the keys that it does not get.
      if (query.written_dbias && choice_.needed_rows_only) backend_.clear(query.written_dbias->view());
    }
    for (auto& key : keys) {
      backend_.clear(key.dk.view());
      backend_.clear(key.dv.view());
    }
    std::deque<Array<A, 2>> sink_gradients;
    for (auto& query : queries) {
      for (std::size_t owner : order(keys.size())) add_gradients(query, keys[owner]);
      if (!d_.sinks) continue;
      sink_gradients.emplace_back(std::array<Index, 2>{d_.query_heads, d_.sinks->count}, Layout::dense);
      backend_.sink_gradients(query.lse.constant(), query.lse_remainder.constant(), query.delta.constant(), sinks(),
                              sink_gradients.back().view());
    }
    backend_.synchronize();
    return results(queries, keys, sink_gradients);
  }

  /// Numbers of tiles of the steps, by coverage.
  std::array<int, 5> const& tiles_of_coverage() const { return coverages_; }

 private:
  template <class U, std::size_t N, class V>
  static Array<U, N> shard(std::vector<V> const& global, std::array<Index, N> const& extents, std::size_t sequence,
                           Segments const& segments, Layout layout) {
    auto local = extents;
    local[sequence] = annulus::rows_of(segments);
    std::vector<double> values(
        static_cast<std::size_t>(std::accumulate(local.begin(), local.end(), Index{1}, std::multiplies<Index>())));
    annulus::scatter_into(annulus::TensorView<V const, N>(global.data(), extents),
                          std::span<annulus::Segment const>(segments),
                          annulus::TensorView<double, N>(values.data(), local), sequence);
    return Array<U, N>(local, layout, values);
  }

  struct QueryShard {
    QueryShard(StepSolver const& s, Segments of_rank)
        : segments(std::move(of_rank)),
          rows(annulus::rows_of(segments)),
          q(shard<T, 4>(s.d_.q, {s.d_.batch, s.d_.query_length, s.d_.query_heads, s.d_.head_dim}, 1, segments,
                        s.choice_.operands)),
          dout(shard<T, 4>(s.problem_.dout, {s.d_.batch, s.d_.query_length, s.d_.query_heads, s.d_.value_dim}, 1,
                           segments, s.choice_.operands)),
          output({s.d_.batch, rows, s.d_.query_heads, s.d_.value_dim}, s.choice_.operands),
          accumulator({s.d_.batch, rows, s.d_.query_heads, s.d_.value_dim}, Layout::payload),
          dq({s.d_.batch, rows, s.d_.query_heads, s.d_.head_dim}, Layout::padded),
          maximum({s.d_.batch, s.d_.query_heads, rows}, Layout::payload, 2),
          sum({s.d_.batch, s.d_.query_heads, rows}, Layout::payload, 2),
          delta({s.d_.batch, s.d_.query_heads, rows}, Layout::payload, 2),
          lse({s.d_.batch, s.d_.query_heads, rows}, Layout::dense),
          lse_remainder({s.d_.batch, s.d_.query_heads, rows}, Layout::payload, 2) {
      auto const pairs = [&](auto const& given) {
        return std::array<Index, 4>{given.batch, given.heads, s.d_.query_length, s.d_.key_length};
      };
      if (s.d_.bias) {
        bias.emplace(shard<T, 4>(s.d_.bias->values, pairs(*s.d_.bias), 2, segments, s.choice_.operands));
        std::array<Index, 4> const extents{s.d_.bias->batch, s.d_.bias->heads, rows, s.d_.key_length};
        bool const shared = s.d_.bias->batch < s.d_.batch || s.d_.bias->heads < s.d_.query_heads;
        if (annulus::writes_bias_gradients<Backend> && !shared && s.choice_.order != StepChoice::backwards)
          written_dbias.emplace(extents, s.choice_.operands);
        else
          dbias.emplace(extents, Layout::dense);
      }
      if (s.d_.mask)
        mask.emplace(shard<bool, 4>(s.d_.mask->values, pairs(*s.d_.mask), 2, segments, s.choice_.operands));
      if (s.d_.query_documents)
        ids.emplace(shard<std::int32_t, 2>(*s.d_.query_documents, std::array<Index, 2>{s.d_.batch, s.d_.query_length},
                                           1, segments, s.choice_.operands));
    }

    annulus::RunningState<A, Space> state() { return {accumulator.view(), maximum.view(), sum.view()}; }

    Segments segments;
    Index rows;
    Array<T, 4> q, dout, output;
    Array<A, 4> accumulator, dq;
    Array<A, 3> maximum, sum, delta;
    Array<L, 3> lse, lse_remainder;
    std::optional<Array<T, 4>> bias;
    std::optional<Array<A, 4>> dbias;
    std::optional<Array<WrittenElement, 4>> written_dbias;
    std::optional<Array<bool, 4>> mask;
    std::optional<Array<std::int32_t, 2>> ids;
  };

  struct KeyShard {
    KeyShard(StepSolver const& s, Segments of_rank)
        : segments(std::move(of_rank)),
          rows(annulus::rows_of(segments)),
          k(shard<T, 4>(s.d_.k, {s.d_.batch, s.d_.key_length, s.d_.kv_heads, s.d_.head_dim}, 1, segments,
                        s.choice_.operands)),
          v(shard<T, 4>(s.d_.v, {s.d_.batch, s.d_.key_length, s.d_.kv_heads, s.d_.value_dim}, 1, segments,
                        s.choice_.operands)),
          dk({s.d_.batch, rows, s.d_.kv_heads, s.d_.head_dim}, Layout::payload),
          dv({s.d_.batch, rows, s.d_.kv_heads, s.d_.value_dim}, Layout::padded) {
      if (s.d_.key_documents)
        ids.emplace(shard<std::int32_t, 2>(*s.d_.key_documents, std::array<Index, 2>{s.d_.batch, s.d_.key_length}, 1,
                                           segments, s.choice_.operands));
    }

    Segments segments;
    Index rows;
    Array<T, 4> k, v;
    Array<A, 4> dk, dv;
    std::optional<Array<std::int32_t, 2>> ids;
  };

  /// Storage that the spans of a step point to, kept until the end.
  struct StepRows {
    std::vector<annulus::Tile> tiles;
    std::vector<Index> query_positions, key_positions;
    annulus::RowRange keys;
  };

  std::vector<std::size_t> order(std::size_t count) {
    std::vector<std::size_t> owners(count);
    std::iota(owners.begin(), owners.end(), std::size_t{0});
    if (choice_.order == StepChoice::backwards) std::reverse(owners.begin(), owners.end());
    if (choice_.order == StepChoice::shuffled) std::shuffle(owners.begin(), owners.end(), dice_);
    return owners;
  }

  StepRows& cut(QueryShard const& query, KeyShard const& key) {
    StepRows& rows = steps_.emplace_back();
    bool const elementwise = d_.mask || !std::is_same_v<Predicate, annulus::EveryPair>;
    auto const need = annulus::detail::visible_tiles(query.segments, key.segments, problem_.options.mask,
                                                     d_.query_offset, elementwise, &rows.tiles);
    rows.query_positions = annulus::positions_of(query.segments);
    for (Index& position : rows.query_positions) position += d_.query_offset;
    rows.key_positions = annulus::positions_of(key.segments);
    rows.keys = choice_.needed_rows_only ? need.keys : annulus::RowRange{0, key.rows};
    rows.key_positions = {rows.key_positions.begin() + rows.keys.begin, rows.key_positions.begin() + rows.keys.end};
    for (auto& tile : rows.tiles) {
      tile.key_begin -= rows.keys.begin;
      ++coverages_[static_cast<std::size_t>(tile.coverage)];
    }
    return rows;
  }

  annulus::Step<T, Predicate, Space> step(StepRows const& rows, QueryShard& query, KeyShard& key) {
    annulus::Step<T, Predicate, Space> step{
        .tiles = rows.tiles,
        .rules = {.mask = problem_.options.mask,
                  .softmax_scale = d_.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(d_.head_dim))),
                  .logit_softcap = d_.logit_softcap,
                  .dropout = problem_.options.dropout},
        .query_positions = rows.query_positions,
        .key_positions = rows.key_positions,
        .predicate = &predicate_};
    std::array<Index, 4> const pairs{d_.batch, d_.query_heads, query.rows, d_.key_length};
    if (query.bias) step.bias = annulus::broadcast(query.bias->constant(), pairs);
    if (query.mask) step.boolean_mask = annulus::broadcast(query.mask->constant(), pairs);
    if (query.ids) {
      step.query_documents = query.ids->constant();
      step.key_documents = key.ids->constant().slice(1, rows.keys.begin, rows.keys.size());
    }
    return step;
  }

  template <class View>
  static View part(View view, StepRows const& rows) {
    return view.slice(annulus::axis::sequence, rows.keys.begin, rows.keys.size());
  }

  void fold(QueryShard& query, KeyShard& key) {
    StepRows const& rows = cut(query, key);
    backend_.fold(
        step(rows, query, key),
        annulus::StepOperands<T, Space>{query.q.constant(), part(key.k.constant(), rows), part(key.v.constant(), rows)},
        query.state());
  }

  void add_gradients(QueryShard& query, KeyShard& key) {
    StepRows const& rows = cut(query, key);
    annulus::TensorView<A, 4, Space> dbias;
    if (query.dbias)
      dbias = annulus::broadcast(query.dbias->view(), {d_.batch, d_.query_heads, query.rows, d_.key_length});
    Gradients gradients{query.dq.view(), part(key.dk.view(), rows), part(key.dv.view(), rows), dbias};
    if (query.written_dbias) gradients.written_dbias = query.written_dbias->view();
    // Every second step overwrites new gradients of keys, if the backend can. They hold NaN before.
    std::array const sums{gradients.dk, gradients.dv};
    Array<A, 4> dk(sums[0].extents(), Layout::payload), dv(sums[1].extents(), Layout::padded);
    gradients.overwrites_keys = annulus::overwrites_key_gradients<Backend> && ++backward_steps_ % 2 == 0;
    if (gradients.overwrites_keys) {
      gradients.dk = dk.view();
      gradients.dv = dv.view();
    }
    backend_.add_gradients(
        step(rows, query, key),
        annulus::StepOperands<T, Space>{query.q.constant(), part(key.k.constant(), rows), part(key.v.constant(), rows)},
        annulus::BackwardOperands<T, L, A, Space>{query.dout.constant(), query.lse.constant(), query.delta.constant(),
                                                  query.lse_remainder.constant()},
        gradients);
    if (!gradients.overwrites_keys) return;
    backend_.add(sums[0], dk.constant());
    backend_.add(sums[1], dv.constant());
    backend_.synchronize();
    CHECK((dk.gaps_are_intact() && dv.gaps_are_intact()));
  }

  annulus::TensorView<L const, 2, Space> sinks() {
    if (!d_.sinks) return {};
    if (!sinks_)
      sinks_.emplace(std::array<Index, 2>{d_.query_heads, d_.sinks->count}, Layout::gapped, d_.sinks->values);
    return sinks_->constant();
  }

  std::vector<RingResult> results(std::deque<QueryShard> const& queries, std::deque<KeyShard> const& keys,
                                  std::deque<Array<A, 2>> const& sink_gradients) const {
    std::vector<RingResult> all;
    for (std::size_t rank = 0; rank < queries.size(); ++rank) {
      QueryShard const& query = queries[rank];
      all.push_back({.output = query.output.values(),
                     .lse = query.lse.values(),
                     .dq = query.dq.values(),
                     .dk = keys[rank].dk.values(),
                     .dv = keys[rank].dv.values(),
                     .dbias = {},
                     .dsinks = {},
                     .d_joint_keys = {},
                     .d_joint_values = {}});
      if (query.dbias) all.back().dbias = query.dbias->values();
      if (query.written_dbias) {
        all.back().dbias = query.written_dbias->values();
        CHECK(query.written_dbias->gaps_are_intact());
      }
    }
    std::vector<double> dsinks;
    for (auto const& share : sink_gradients) {
      auto const values = share.values();
      dsinks.resize(values.size());
      for (std::size_t s = 0; s < values.size(); ++s) dsinks[s] += values[s];
    }
    for (RingResult& rank : all) rank.dsinks = dsinks;
    return all;
  }

  RingProblem const& problem_;
  OracleProblem const& d_;
  StepChoice choice_;
  Predicate predicate_;
  std::deque<StepRows> steps_;
  std::optional<Array<L, 2>> sinks_;
  std::array<int, 5> coverages_{};
  std::mt19937_64 dice_{3};
  int backward_steps_ = 0;
  Backend backend_;  // last, so that it is destroyed before the memory that its work reads
};

}  // namespace annulus_test
