#pragma once
// CachedAttention: prefill and decode against a KvCache that is spread over the ranks of a ring. Keys never move.

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/attention/cache/cache_leaves.hpp"
#include "annulus/attention/cache/cache_writer.hpp"
#include "annulus/attention/cache/cached_call.hpp"
#include "annulus/attention/cache/cached_options.hpp"
#include "annulus/attention/cache/cached_pass.hpp"
#include "annulus/attention/cache/kv_cache.hpp"
#include "annulus/attention/collective_call.hpp"
#include "annulus/attention/records.hpp"
#include "annulus/core/function_ref.hpp"
#include "annulus/schedule/cache_actions.hpp"
#include "annulus/tensor/eigen.hpp"

namespace annulus {

/// Attention of new queries over cached sequences. Batch item b belongs to sequence sequences[b].
///
/// Every rank of the ring makes one, with equal options, and calls it alike. Any shapes may follow each other; buffers
/// are kept, so that a call with the shapes of an earlier one allocates only what it returns (the *_into calls:
/// nothing). `predicate(batch, head, query, key)`, on positions in the sequence, restricts the mask further. To it and
/// to dropout a sequence is the batch item of its place in the call: keep the places from call to call where that
/// matters.
///
/// Shapes, in axis order bshd (other orders: bhsd(x), bhds(x)):
///   q [batch, queries, query_heads, head_dim]   query_heads is a multiple of the cache's kv_heads
///   k [batch, rows, kv_heads, head_dim], v [batch, rows, kv_heads, value_dim]
///   document ids of queries and of rows [batch, queries] and [batch, rows], as operands of calls on a cache that has
///   them
///
/// Errors: ShapeError and UnsupportedError on all ranks, before anything is sent or the cache has changed;
/// CommunicationError if ranks were called differently, also if their caches differ, or a peer is lost.
template <Communicator C, Backend B, class Predicate = EveryPair>
requires std::same_as<typename C::memory_space, typename B::memory_space>
class CachedAttention {
 public:
  using Space = typename B::memory_space;  ///< of all operands and results

  /// Does not throw; options are validated, and compared across ranks, on the first call.
  CachedAttention(C& ring, B& backend, CachedOptions options = {}, Predicate predicate = {})
      : ring_(&ring),
        backend_(&backend),
        options_(std::move(options)),
        predicate_(std::move(predicate)),
        calls_(ring, backend, "CachedAttention") {}

  CachedOptions const& options() const { return options_; }  ///< as given

  /// Appends rows that every rank has to sequences, which must differ. Collective. Sends nothing but the comparison of
  /// the calls.
  template <Scalar T, class K, class V>
  void append(KvCache<T, B>& cache, std::span<Index const> sequences, K const& k, V const& v,
              AppendOperands<Space> const& operands = {}) {
    static_assert(detail::RequireOperands<Space, K, V>::value);
    run_append<T>({"append", false, operands.call, cache, sequences}, new_rows<T>(k, v, operands));
  }

  /// The same for rows of which every rank has its shard, by options().sharding: position i of the sharding becomes
  /// position length + i of the sequence. Each row is sent once at most, to the rank whose page takes it. Collective.
  template <Scalar T, class K, class V>
  void append_shards(KvCache<T, B>& cache, std::span<Index const> sequences, K const& k, V const& v,
                     AppendOperands<Space> const& operands = {}) {
    static_assert(detail::RequireOperands<Space, K, V>::value);
    run_append<T>({"append_shards", true, operands.call, cache, sequences}, new_rows<T>(k, v, operands));
  }

  /// Attention of queries that every rank has, such as the newest row of each sequence. Every rank attends to the keys
  /// that it holds, at the same time, and the partial results are merged by merge_plan(). All ranks return the same
  /// bits. Collective.
  template <Scalar T, class Q>
  auto decode(KvCache<T, B>& cache, std::span<Index const> sequences, Q const& q,
              CachedOperands<T, Space> const& operands = {}) {
    return make_and_run<T>({"decode", false, operands.call, cache, sequences}, q, operands, no_rows<T>(operands));
  }
  /// Appends k and v first, like append(), in the same collective call.
  template <Scalar T, class Q, class K, class V>
  auto decode(KvCache<T, B>& cache, std::span<Index const> sequences, Q const& q, K const& k, V const& v,
              CachedOperands<T, Space> const& operands = {}) {
    static_assert(detail::RequireOperands<Space, Q, K, V>::value);
    return make_and_run<T>({"decode", false, operands.call, cache, sequences}, q, operands,
                           new_rows<T>(k, v, operands));
  }
  /// Same as decode, but writes to the caller's memory: output [batch, queries, query_heads, value_dim] in any axis
  /// order, lse and, if given, lse_remainder [batch, query_heads, queries].
  template <Scalar T, class Q, class Output, class Lse, class Remainder = std::nullopt_t const&>
  void decode_into(KvCache<T, B>& cache, std::span<Index const> sequences, Q const& q, Output& output, Lse& lse,
                   CachedOperands<T, Space> const& operands = {}, Remainder&& lse_remainder = std::nullopt) {
    run_into<T>({"decode", false, operands.call, cache, sequences}, q, output, lse, lse_remainder, operands,
                no_rows<T>(operands));
  }
  /// Appends k and v first, like append(), in the same collective call.
  template <Scalar T, class Q, class K, class V, class Output, class Lse, class Remainder = std::nullopt_t const&>
  requires(!std::same_as<std::remove_const_t<Output>, CachedOperands<T, Space>>)  // those are of the call without rows
      void decode_into(KvCache<T, B>& cache, std::span<Index const> sequences, Q const& q, K const& k, V const& v,
                       Output& output, Lse& lse, CachedOperands<T, Space> const& operands = {},
                       Remainder&& lse_remainder = std::nullopt) {
    static_assert(detail::RequireOperands<Space, Q, K, V>::value);
    run_into<T>({"decode", false, operands.call, cache, sequences}, q, output, lse, lse_remainder, operands,
                new_rows<T>(k, v, operands));
  }

  /// Attention of queries of which every rank has its shard, by options().sharding: position i of the sharding is at
  /// position query_offset + i of the sequence. The queries visit all ranks, and results return to their owners.
  /// Collective.
  template <Scalar T, class Q>
  auto prefill(KvCache<T, B>& cache, std::span<Index const> sequences, Q const& q,
               CachedOperands<T, Space> const& operands = {}) {
    return make_and_run<T>({"prefill", true, operands.call, cache, sequences}, q, operands, no_rows<T>(operands));
  }
  /// Same as prefill, but writes to the caller's memory; see decode_into.
  template <Scalar T, class Q, class Output, class Lse, class Remainder = std::nullopt_t const&>
  void prefill_into(KvCache<T, B>& cache, std::span<Index const> sequences, Q const& q, Output& output, Lse& lse,
                    CachedOperands<T, Space> const& operands = {}, Remainder&& lse_remainder = std::nullopt) {
    run_into<T>({"prefill", true, operands.call, cache, sequences}, q, output, lse, lse_remainder, operands,
                no_rows<T>(operands));
  }

  /// Exchanges of the last call of decode; that of one rank before the first call.
  MergePlan const& merge_plan() const { return merge_plan_; }
  /// Bytes of the buffers that are kept.
  Index buffer_bytes() const { return slots_.bytes() + new_rows_.bytes() + steps_.bytes(); }

 private:
  template <class T>
  using NewRows = detail::NewRows<T, Space>;
  template <class T>
  using CacheCall = detail::CacheCall<T, B>;

  /// Of a call that appends no rows, which their document ids must not be given to.
  template <class T>
  static NewRows<T> no_rows(CachedOperands<T, Space> const& operands) {
    return {.ids = operands.key_segments.merged(operands.key_documents)};
  }
  template <class T, class K, class V, class Given>
  static NewRows<T> new_rows(K const& k, V const& v, Given const& operands) {
    return {true, view_of(k), view_of(v), operands.key_segments.merged(operands.key_documents)};
  }

  template <class T>
  using Results = ForwardResults<T, Accumulator<T>, Space>;

  template <class T, class Q>
  auto make_and_run(CacheCall<T> const& cached, Q const& q, CachedOperands<T, Space> const& operands,
                    NewRows<T> const& rows) {
    static_assert(detail::RequireOperands<Space, Q>::value);
    static_assert(std::same_as<ScalarOf<Q>, T>, "annulus: queries have the element type of the cache");
    std::optional<CachedForward<MadeLike<Q, T, 4>>> result;
    auto const make = [&](AttentionShape const& s, Index queries) {
      result.emplace(CachedForward<MadeLike<Q, T, 4>>{
          detail::make_in_order_of<T>(q, std::array{s.batch, queries, s.query_heads, s.value_dim}),
          make_like<Accumulator<T>, 3>(q, std::array{s.batch, s.query_heads, queries}),
          make_like<Accumulator<T>, 3>(q, std::array{s.batch, s.query_heads, queries})});
      return Results<T>{view_of(with_axes(result->output, axis_order_of(q))), view_of(result->lse),
                        view_of(result->lse_remainder)};
    };
    run_forward<T>(cached, view_of(q), operands, rows, make);
    return std::move(*result);
  }

  template <class T, class Q, class Output, class Lse, class Remainder>
  void run_into(CacheCall<T> const& cached, Q const& q, Output& output, Lse& lse, Remainder& lse_remainder,
                CachedOperands<T, Space> const& operands, NewRows<T> const& rows) {
    static_assert(detail::RequireOperands<Space, Q, Output>::value && RequireTensor<Lse>::value);
    static_assert(std::same_as<ScalarOf<Q>, T>, "annulus: queries have the element type of the cache");
    using Statistics = TensorView<Accumulator<T>, 3, Space>;
    Results<T> const results{view_of(output), view_of(lse), detail::view_if_given<Statistics>(lse_remainder)};
    auto const given = [&](AttentionShape const& s, Index queries) {
      detail::require_result("output", results.output, {s.batch, queries, s.query_heads, s.value_dim},
                             "[batch, queries, query_heads, value_dim]");
      detail::require_result("lse", results.lse, {s.batch, s.query_heads, queries}, "[batch, query_heads, queries]");
      if (results.lse_remainder.data())
        detail::require_result("lse_remainder", results.lse_remainder, {s.batch, s.query_heads, queries},
                               "[batch, query_heads, queries]");
      return results;
    };
    run_forward<T>(cached, view_of(q), operands, rows, given);
  }

  static constexpr bool restricts = !std::same_as<Predicate, EveryPair>;

  template <class A>
  static Index bytes_of_state(AttentionShape const& s, Index queries) {
    return s.batch * queries * s.query_heads * (s.value_dim + 2) * static_cast<Index>(sizeof(A));
  }
  template <class T>
  static PlanRequest request_of(AttentionShape const& shape, KvCache<T, B> const& cache, bool checked,
                                AttentionRules const& rules = {}) {
    return {.shape = shape,
            .query_lengths = {},
            .key_lengths = {},
            .rules = rules,
            .element_bytes = static_cast<int>(sizeof(T)),
            .accumulator_bytes = static_cast<int>(sizeof(AccumulatorOf<B, T>)),
            .document_ids = cache.shape().document_ids,
            .checked = checked};
  }

  template <class T>
  detail::CollectiveCall call_of(CacheCall<T> const& cached) const {
    return {.pass = Pass::forward, .label = cached.call, .checked = is_checked(), .name = cached.name};
  }

  bool is_checked() const { return detail::is_checked<Space>(options_.checked); }
  /// The actions of prefill or decode of `queries` rows.
  template <class T>
  void make_list(CacheCall<T> const& cached, AttentionShape const& shape, AttentionRules const& rules, Index queries,
                 detail::CacheNodes const& nodes) {
    using A = AccumulatorOf<B, T>;
    PlanRequest const request = request_of(shape, cached.cache, is_checked(), rules);
    if (cached.sharded) return detail::prefill_actions(actions_, request, queries_.lengths(), ring_->rank(), nodes);
    merge_plan_ = {ring_->size(), nodes.sent * bytes_of_state<A>(shape, queries),
                   rules.reproducible ? MergeMethod::gather : options_.merge, options_.link};
    detail::decode_actions(actions_, request, queries, merge_plan_, ring_->rank(), nodes);
  }
  /// Finds the leaves of a reproducible call.
  template <class T>
  detail::CacheNodes find_leaves(CacheCall<T> const& cached, AttentionRules const& rules,
                                 CachedOperands<T, Space> const& operands, Index global_queries) {
    items_.clear();
    for (std::size_t b = 0; b < cached.sequences.size(); ++b) {
      Index const sequence = cached.sequences[b], length = cached.cache.length(sequence);
      items_.push_back({length, detail::first_position(operands.query_offsets, b, length, global_queries),
                        cached.cache.table().pages(sequence)});
    }
    std::array const all{Segment{0, global_queries, 0, 1}};
    auto const segments = [&](Rank owner) {
      return cached.sharded ? queries_.segments(owner) : std::span<Segment const>(all);
    };
    leaves_.find(rules, restricts || operands.mask, cached.cache.shape().page_rows, items_,
                 cached.sharded ? ring_->size() : 1, segments);
    return leaves_.count(ring_->rank(), ring_->size());
  }
  template <class T>
  void run_list(typename detail::CachedPass<C, B, T, Predicate>::Arguments const& arguments,
                detail::CollectiveCall const& call) {
    slots_.reserve(*backend_, *ring_, actions_);
    detail::CachedPass<C, B, T, Predicate> pass(arguments, *backend_, slots_, steps_);
    detail::execute(actions_, pass, slots_, *ring_, *backend_, call.recorder, call.number);
  }
  template <class T>
  void append_shards(CacheCall<T> const& cached, detail::CacheWriter<C, B, T>& writer,
                     detail::CollectiveCall const& call) {
    writer.begin_shards(keys_);
    auto const moving = [&](Rank source, Rank target) { return writer.moving(source, target); };
    CacheShape const& s = cached.cache.shape();
    AttentionShape const row{1, s.kv_heads, s.kv_heads, s.head_dim, s.value_dim};
    detail::append_actions(append_, request_of(row, cached.cache, call.checked), ring_->size(), ring_->rank(), moving);
    new_rows_.reserve(*backend_, *ring_, append_);
    detail::execute(append_, writer, new_rows_, *ring_, *backend_, call.recorder, call.number);
  }

  template <class T>
  void run_append(CacheCall<T> const& cached, NewRows<T> rows) {
    auto const fill = [&](detail::CallRecord& record) {
      detail::validate_cache<AccumulatorOf<B, T>>(cached, options_, *ring_, is_checked());
      detail::validate_rows(cached, rows, converted_[2]);
      detail::record_cached_call<AccumulatorOf<B, T>, T>(record, cached, options_, is_checked());
      detail::record_rows(record, cached, rows, is_checked());
    };
    auto const find_keys = [&] {
      keys_.find(options_.sharding, Side::key, calls_.records());
      cached.cache.table().require_room(cached.sequences, keys_.total());
    };
    calls_.execute(call_of(cached), [&](detail::CollectiveCall& call) {
      calls_.compare(call, fill);
      detail::CacheWriter<C, B, T> writer(*ring_, *backend_, cached, rows, new_rows_);
      if (cached.sharded) {
        detail::on_all_ranks(call, find_keys);
        append_shards(cached, writer, call);
      } else {
        writer.write_all();
        detail::finish_queue(*ring_, detail::queue_of(*backend_));
      }
    });
  }

  template <class T>
  void run_forward(CacheCall<T> const& cached, TensorView<T const, 4, Space> q, CachedOperands<T, Space> operands,
                   NewRows<T> rows, detail::FunctionRef<Results<T>(AttentionShape const&, Index)> results) {
    using A = AccumulatorOf<B, T>;
    operands.query_documents = operands.query_segments.merged(operands.query_documents);
    Results<T> to;
    AttentionRules rules = rules_of(options_);
    AttentionShape shape;
    Index const queries = q.extent(axis::sequence);
    Index global_queries = queries;
    auto const fill = [&](detail::CallRecord& record) {
      detail::validate_cache<A>(cached, options_, *ring_, is_checked());
      shape = detail::validate_queries(cached, q, operands, std::span(converted_).template first<2>());
      detail::validate_rows(cached, rows, converted_[2]);
      detail::require_columns("bias", cached, operands.bias, rows.rows());
      detail::require_columns("mask", cached, operands.mask, rows.rows());
      rules.softmax_scale = rules.scale(shape.head_dim);
      PageTable const& table = cached.cache.table();
      detail::require_support(
          *backend_, detail::problem_of<T>(Pass::forward, shape, table.ranks(), queries,
                                           table.pages_per_rank() * table.page_rows(), rules, operands, restricts));
      detail::record_cached_call<A, T>(record, cached, options_, is_checked());
      detail::record_queries(record, cached, q, operands, restricts, is_checked());
      detail::record_rows(record, cached, rows, is_checked());
      if (!cached.sharded) detail::require_rates(options_.link);
      to = results(shape, queries);
    };
    auto const find_queries = [&] {
      if (cached.sharded) {
        queries_.find(options_.sharding, Side::query, calls_.records());
        global_queries = queries_.total();
      }
      detail::require_positions(cached, rules, operands.query_offsets, global_queries, rows.given ? rows.rows() : 0);
    };
    calls_.execute(call_of(cached), [&](detail::CollectiveCall& call) {
      calls_.compare(call, fill);
      detail::on_all_ranks(call, find_queries);
      if (rows.given) detail::CacheWriter<C, B, T>(*ring_, *backend_, cached, rows, new_rows_).write_all();
      detail::QueryRows<T, Space> own{q};
      if (operands.query_documents) own.ids = *operands.query_documents;
      detail::CacheNodes nodes;
      if (rules.reproducible) nodes = find_leaves(cached, rules, operands, global_queries);
      make_list(cached, shape, rules, queries, nodes);
      run_list<T>(
          {cached, shape, rules, predicate_, own, operands, global_queries, cached.sharded ? &queries_ : nullptr, to,
           rules.reproducible ? &leaves_ : nullptr, ring_->rank(), ring_->size()},
          call);
    });
  }

  C* ring_;
  B* backend_;
  CachedOptions options_;
  Predicate predicate_;
  detail::CollectiveCalls<C, B> calls_;
  MergePlan merge_plan_;
  ActionList actions_, append_;  ///< of the last call, for their storage
  detail::Slots<C, B> slots_, new_rows_;
  detail::PageSteps steps_;
  detail::CacheLeaves leaves_;
  std::vector<detail::CacheLeaves::Item> items_;  ///< of the last reproducible call, for their storage
  detail::ShardedRows queries_, keys_;
  /// A mask, and document ids of queries and of new rows, that are given as other integers.
  std::array<std::vector<std::byte>, 3> converted_;
};

template <class C, class B>
CachedAttention(C&, B&, CachedOptions = {}) -> CachedAttention<C, B>;  ///< without a predicate
template <class C, class B, class Predicate>
CachedAttention(C&, B&, CachedOptions, Predicate) -> CachedAttention<C, B, Predicate>;  ///< with one

}  // namespace annulus
