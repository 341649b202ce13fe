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

#include "annulus/backend/open_close.hpp"
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
  std::uint64_t seed = 3;  ///< of the order, and of which sums are opened and closed by steps
};

/// Computes the queries of each rank against the keys of each rank, in one step each. T: type of the operands. Sums are
/// opened by their first step or cleared before, and closed by their last step or converted afterwards. Elements of new
/// sums and of results are NaN before, and what a step points to is overwritten when the call has returned.
template <class T, class Implementation, class Predicate = annulus::EveryPair>
class StepSolver {
  using Backend = typename Implementation::Backend;
  using Space = typename Backend::memory_space;
  using A = annulus::AccumulatorOf<Backend, T>;
  using L = annulus::Accumulator<T>;
  using Sums = annulus::Sums;
  using Gradients = annulus::StepGradients<A, Space>;
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
        dice_(choice.seed),
        in_place_(dice_() % 2 == 0),
        backend_(implementation.make(11)) {}

  /// Results of each rank, for assemble().
  std::vector<RingResult> solve() {
    std::deque<QueryShard> queries;
    std::deque<KeyShard> keys;
    for (int rank = 0; rank < problem_.ranks; ++rank) {
      queries.emplace_back(*this, problem_.segments(annulus::Side::query, rank));
      keys.emplace_back(*this, problem_.segments(annulus::Side::key, rank));
    }
    for (auto& query : queries) find_output(query, keys);
    for (auto& key : keys) {
      if (key.choice.opens) continue;
      backend_.clear(key.dk.view());
      backend_.clear(key.dv.view());
    }
    std::deque<Array<A, 2>> sink_gradients;
    for (auto& query : queries) {
      find_gradients(query, keys, {&query == &queries.front(), &query == &queries.back()});
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
  /// Whether the first step opens sums, and whether the last one closes them.
  struct SumChoice {
    bool opens = false, closes = false;

    static SumChoice random(std::mt19937_64& dice) {
      auto const number = dice() % 4;
      return {number % 2 == 1, number / 2 == 1};
    }
  };

  /// Whether a step is the first and the last one that adds to sums.
  struct StepPlace {
    bool is_first, is_last;

    Sums opened(Sums sums, SumChoice const& choice) const { return is_first && choice.opens ? sums : Sums::none; }
    Sums closed(Sums sums, SumChoice const& choice) const { return is_last && choice.closes ? sums : Sums::none; }
  };

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
    QueryShard(StepSolver& s, Segments of_rank)
        : forward(SumChoice::random(s.dice_)),
          backward(SumChoice::random(s.dice_)),
          opens_pairs(s.dice_() % 2 == 0),
          segments(std::move(of_rank)),
          rows(annulus::rows_of(segments)),
          q(shard<T, 4>(s.d_.q, {s.d_.batch, s.d_.query_length, s.d_.query_heads, s.d_.head_dim}, 1, segments,
                        s.choice_.operands)),
          dout(shard<T, 4>(s.problem_.dout, {s.d_.batch, s.d_.query_length, s.d_.query_heads, s.d_.value_dim}, 1,
                           segments, s.choice_.operands)),
          output({s.d_.batch, rows, s.d_.query_heads, s.d_.value_dim}, s.choice_.operands),
          accumulator({s.d_.batch, rows, s.d_.query_heads, s.d_.value_dim}, Layout::payload),
          dq({s.d_.batch, rows, s.d_.query_heads, s.d_.head_dim}, Layout::padded),
          dq_result({s.d_.batch, rows, s.d_.query_heads, s.d_.head_dim}, s.choice_.operands),
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
        if (annulus::ClosingBackend<Backend> && !shared &&
            (!s.in_place_ || std::same_as<T, A>)&&s.choice_.order != StepChoice::backwards)
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

    SumChoice forward, backward;
    bool opens_pairs;
    Segments segments;
    Index rows;
    Array<T, 4> q, dout, output;
    Array<A, 4> accumulator, dq;
    Array<T, 4> dq_result;
    Array<A, 3> maximum, sum, delta;
    Array<L, 3> lse, lse_remainder;
    std::optional<Array<T, 4>> bias;
    std::optional<Array<A, 4>> dbias;
    std::optional<Array<T, 4>> written_dbias;
    std::optional<Array<bool, 4>> mask;
    std::optional<Array<std::int32_t, 2>> ids;
  };

  struct KeyShard {
    // A step that gets some of the rows opens and closes the sums of these alone.
    KeyShard(StepSolver& s, Segments of_rank)
        : choice(s.choice_.needed_rows_only ? SumChoice() : SumChoice::random(s.dice_)),
          segments(std::move(of_rank)),
          rows(annulus::rows_of(segments)),
          k(shard<T, 4>(s.d_.k, {s.d_.batch, s.d_.key_length, s.d_.kv_heads, s.d_.head_dim}, 1, segments,
                        s.choice_.operands)),
          v(shard<T, 4>(s.d_.v, {s.d_.batch, s.d_.key_length, s.d_.kv_heads, s.d_.value_dim}, 1, segments,
                        s.choice_.operands)),
          dk({s.d_.batch, rows, s.d_.kv_heads, s.d_.head_dim}, Layout::payload),
          dv({s.d_.batch, rows, s.d_.kv_heads, s.d_.value_dim}, Layout::padded),
          dk_result({s.d_.batch, rows, s.d_.kv_heads, s.d_.head_dim}, s.choice_.operands),
          dv_result({s.d_.batch, rows, s.d_.kv_heads, s.d_.value_dim}, s.choice_.operands) {
      if (s.d_.key_documents)
        ids.emplace(shard<std::int32_t, 2>(*s.d_.key_documents, std::array<Index, 2>{s.d_.batch, s.d_.key_length}, 1,
                                           segments, s.choice_.operands));
    }

    SumChoice choice;
    Segments segments;
    Index rows;
    Array<T, 4> k, v;
    Array<A, 4> dk, dv;
    Array<T, 4> dk_result, dv_result;
    std::optional<Array<std::int32_t, 2>> ids;
  };

  /// Storage that the spans of a step point to, overwritten at its end.
  struct StepRows {
    std::vector<annulus::Tile> tiles{};
    std::vector<Index> query_positions{}, key_positions{};
    annulus::RowRange keys{};

    StepRows() = default;
    StepRows(StepRows&&) = default;
    ~StepRows() {
      std::fill(tiles.begin(), tiles.end(), annulus::Tile{});
      std::fill(query_positions.begin(), query_positions.end(), Index{1} << 40);
      std::fill(key_positions.begin(), key_positions.end(), Index{1} << 40);
    }
  };

  std::vector<std::size_t> order(std::size_t count) {
    std::vector<std::size_t> owners(count);
    std::iota(owners.begin(), owners.end(), std::size_t{0});
    if (choice_.order == StepChoice::backwards) std::reverse(owners.begin(), owners.end());
    if (choice_.order == StepChoice::shuffled) std::shuffle(owners.begin(), owners.end(), dice_);
    return owners;
  }

  StepRows cut(QueryShard const& query, KeyShard const& key) {
    StepRows rows;
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

  /// The memory of the output: of the accumulator, if it has the same type and the solver works in place.
  auto output_of(QueryShard& query) const {
    if constexpr (std::same_as<T, A>)
      if (in_place_) return query.accumulator.view();
    return query.output.view();
  }

  /// Computes output, lse and delta of the queries.
  void find_output(QueryShard& query, std::deque<KeyShard>& keys) {
    if (!query.forward.opens) backend_.reset(query.state());
    annulus::ForwardResults<T, L, Space> const results{output_of(query), query.lse.view(), query.lse_remainder.view(),
                                                       sinks()};
    std::vector<std::size_t> const owners = order(keys.size());
    for (std::size_t i = 0; i < owners.size(); ++i) {
      KeyShard& key = keys[owners[i]];
      StepPlace const place{i == 0, i + 1 == owners.size()};
      StepRows const rows = cut(query, key);
      auto const step = this->step(rows, query, key)
                            .opening_and_closing(place.opened(Sums::queries, query.forward),
                                                 place.closed(Sums::queries, query.forward));
      annulus::detail::fold(backend_, step, operands(query, key, rows), query.state(), results);
    }
    if (!query.forward.closes)
      backend_.normalise(query.state(), sinks(), results.output, results.lse, results.lse_remainder);
    backend_.row_delta(query.dout.constant(), annulus::TensorView<T const, 4, Space>(results.output),
                       query.delta.view());
  }

  /// Adds the gradients of the queries and all keys. `of_keys`: whether the queries are the first and the last ones.
  void find_gradients(QueryShard& query, std::deque<KeyShard>& keys, StepPlace const& of_keys) {
    if (!query.backward.opens) backend_.clear(query.dq.view());
    if (query.dbias && !query.opens_pairs) backend_.clear(query.dbias->view());
    // No step writes the keys that it does not get.
    if (query.written_dbias && choice_.needed_rows_only) backend_.clear(query.written_dbias->view());
    std::vector<std::size_t> const owners = order(keys.size());
    for (std::size_t i = 0; i < owners.size(); ++i)
      add_gradients(query, {i == 0, i + 1 == owners.size()}, keys[owners[i]], of_keys);
  }

  annulus::StepOperands<T, Space> operands(QueryShard& query, KeyShard& key, StepRows const& rows) const {
    return {query.q.constant(), part(key.k.constant(), rows), part(key.v.constant(), rows)};
  }

  void add_gradients(QueryShard& query, StepPlace const& of_queries, KeyShard& key, StepPlace const& of_keys) {
    StepRows const rows = cut(query, key);
    Gradients gradients{query.dq.view(), part(key.dk.view(), rows), part(key.dv.view(), rows), {}};
    if (query.dbias)
      gradients.dbias = annulus::broadcast(query.dbias->view(), {d_.batch, d_.query_heads, query.rows, d_.key_length});
    auto step = this->step(rows, query, key);
    step.opens = of_queries.opened(Sums::queries, query.backward) | of_keys.opened(Sums::keys, key.choice) |
                 of_queries.opened(Sums::pairs, {query.dbias && query.opens_pairs, false});
    step.closes = of_queries.closed(Sums::queries, query.backward) | of_keys.closed(Sums::keys, key.choice);
    if (query.written_dbias) {
      step.opens = step.opens | Sums::pairs;
      step.closes = step.closes | Sums::pairs;
    }
    // Every second step that neither opens nor closes the sums of its keys opens others, which are added to them.
    bool const may_be_apart = choice_.needed_rows_only || (!of_keys.is_first && !of_keys.is_last);
    if (!may_be_apart || ++backward_steps_ % 2 == 1) return add_gradients_to(gradients, step, query, key, rows);
    Gradients apart = gradients;
    Array<A, 4> dk(gradients.dk.extents(), Layout::payload), dv(gradients.dv.extents(), Layout::padded);
    apart.dk = dk.view();
    apart.dv = dv.view();
    step.opens = step.opens | Sums::keys;
    add_gradients_to(apart, step, query, key, rows);
    backend_.add(gradients.dk, dk.constant());
    backend_.add(gradients.dv, dv.constant());
    backend_.synchronize();
    CHECK((dk.gaps_are_intact() && dv.gaps_are_intact()));
  }

  /// Calls the backend, with results in the memory of the sums or apart from them.
  void add_gradients_to(Gradients const& gradients, annulus::Step<T, Predicate, Space> const& step, QueryShard& query,
                        KeyShard& key, StepRows const& rows) {
    annulus::BackwardOperands<T, L, A, Space> const backward{query.dout.constant(), query.lse.constant(),
                                                             query.delta.constant(), query.lse_remainder.constant()};
    auto const add = [&](auto const& results) {
      annulus::detail::add_gradients(backend_, step, operands(query, key, rows), backward, gradients, results);
    };
    annulus::TensorView<T, 4, Space> dbias;
    if (query.written_dbias) dbias = query.written_dbias->view();
    if (!in_place_)
      return add(annulus::GradientResults<T, Space>{query.dq_result.view(), key.dk_result.view(), key.dv_result.view(),
                                                    dbias});
    annulus::GradientResults<A, Space> results{gradients.dq, gradients.dk, gradients.dv, {}};
    if constexpr (std::same_as<T, A>) results.dbias = dbias;
    add(results);
  }

  annulus::TensorView<L const, 2, Space> sinks() {
    if (!d_.sinks) return {};
    if (!sinks_)
      sinks_.emplace(std::array<Index, 2>{d_.query_heads, d_.sinks->count}, Layout::gapped, d_.sinks->values);
    return sinks_->constant();
  }

  /// The gradient in `result`, if its sums are closed there; otherwise the sums.
  std::vector<double> values_of(SumChoice const& choice, Array<A, 4> const& sums, Array<T, 4> const& result) const {
    CHECK((sums.gaps_are_intact() && result.gaps_are_intact()));
    return choice.closes && !in_place_ ? result.values() : sums.values();
  }

  std::vector<RingResult> results(std::deque<QueryShard> const& queries, std::deque<KeyShard> const& keys,
                                  std::deque<Array<A, 2>> const& sink_gradients) const {
    std::vector<RingResult> all;
    for (std::size_t rank = 0; rank < queries.size(); ++rank) {
      QueryShard const& query = queries[rank];
      KeyShard const& key = keys[rank];
      bool const is_over_sums = in_place_ && std::same_as<T, A>;
      all.push_back({.output = is_over_sums ? query.accumulator.values() : query.output.values(),
                     .lse = query.lse.values(),
                     .dq = values_of(query.backward, query.dq, query.dq_result),
                     .dk = values_of(key.choice, key.dk, key.dk_result),
                     .dv = values_of(key.choice, key.dv, key.dv_result),
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
  std::optional<Array<L, 2>> sinks_;
  std::array<int, 5> coverages_{};
  std::mt19937_64 dice_;
  bool in_place_;  ///< results are in the memory of the sums, where the types agree
  int backward_steps_ = 0;
  Backend backend_;  // last, so that it is destroyed before the memory that its work reads
};

}  // namespace annulus_test
