#pragma once
// Records that ranks compare: the fields of passes, calls on a cache and other collective operations. Each field must
// be equal on all ranks; the first that differs is named in the error. Arguments have been validated.

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "annulus/attention/agreement.hpp"
#include "annulus/attention/options.hpp"
#include "annulus/backend/backend.hpp"
#include "annulus/core/scalar.hpp"
#include "annulus/tensor/operands.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// Collective operations other than passes and calls on a cache.
enum class CollectiveOperation { scatter, gather, all_reduce, make_cache };

constexpr std::string_view name_of(CollectiveOperation operation) {
  return std::array<std::string_view, 4>{"scatter", "gather", "all_reduce",
                                         "KvCache"}[static_cast<std::size_t>(operation)];
}

template <class T>
Index digest_of_span(std::span<T const> values) {
  return static_cast<Index>(digest_of(std::as_bytes(values)));
}

/// A digest of the elements, in row-major order, of tensors that must be equal on all ranks, if the call is checked.
template <class... T, std::size_t... N, class Space>
void record_values(CallRecord& record, std::string_view name, bool checked,
                   TensorView<T const, N, Space> const&... views) {
  if constexpr (std::same_as<Space, HostMemory>) {
    if (!checked) return;
    std::uint64_t digest = 0;
    auto const add = [&](auto const& element, auto const&) {
      digest = digest_of(std::as_bytes(std::span(&element, 1)), digest);
    };
    (for_each_element(views, views, add), ...);
    record.add_named(name, static_cast<Index>(digest), "values with digest ", digest);
  }
}

inline void record_rules(CallRecord& record, AttentionRules const& rules) {
  rules.visit([&](std::string_view name, auto value) { record.add(name, value); });
}

/// Adds the sharding, compared by its fingerprint and shown by its name.
inline void record_sharding(CallRecord& record, Sharding const& sharding) {
  auto const fingerprint = sharding.fingerprint();
  sharding.describe(fingerprint, [&](auto const&... parts) {
    record.add_named("sharding", static_cast<Index>(fingerprint), parts...);
  });
}

/// What the record of a pass is made from, besides the options, which do not change, and values that are compared.
struct RecordedCall {
  Problem problem{};
  std::array<Index, 4> bias{}, mask{};     ///< extents; 0: not given
  bool sinks = false, joint_keys = false;  ///< given

  RecordedCall() = default;
  template <class T, class Space>
  RecordedCall(Problem const& asked, Operands<T, Space> const& operands)
      : problem(asked), sinks(operands.sinks), joint_keys(operands.joint_keys) {
    if (operands.bias) bias = operands.bias->extents();
    if (operands.mask) mask = operands.mask->extents();
  }

  bool operator==(RecordedCall const&) const = default;
};

/// Adds those of a pass: the fields that must be equal on all ranks, and this rank's lengths.
template <class T, class Space>
void record_call(CallRecord& record, Problem const& problem, Options const& options, Operands<T, Space> const& operands,
                 int accumulator_bytes, bool checked) {
  AttentionShape const& shape = problem.shape;
  record.local_queries = problem.local_queries;
  record.local_keys = problem.local_keys;
  record.add("data type", problem.data_type);
  record.add("accumulator bytes", accumulator_bytes);
  record.add("batch", shape.batch);
  record.add("query_heads", shape.query_heads);
  record.add("kv_heads", shape.kv_heads);
  record.add("head_dim", shape.head_dim);
  record.add("value_dim", shape.value_dim);
  record_rules(record, problem.rules);
  record_sharding(record, options.sharding);
  record.add("rotation", options.rotation);
  record.add("schedule", options.schedule);
  record.add("ranks_per_group", static_cast<Index>(options.ranks_per_group));
  if (options.rates) {
    Rates const& r = *options.rates;
    std::array const values{r.flops,        r.step_overhead,  r.overlap,     static_cast<double>(r.group),
                            r.near.latency, r.near.bandwidth, r.far.latency, r.far.bandwidth};
    auto const digest = digest_of_span(std::span<double const>(values));
    record.add_named("rates", digest, "values with digest ", digest);
  }
  record.add("wire", options.wire);
  record.add("predicate given", problem.predicate);
  record.add("bias given", problem.bias);
  record.add("bias batch extent", operands.bias ? operands.bias->extent(0) : 0);
  record.add("bias head extent", operands.bias ? operands.bias->extent(1) : 0);
  record.add("bias key extent", operands.bias ? operands.bias->extent(3) : 0);
  record.add("bias_gradient", problem.bias_gradient);
  record.add("mask operand given", problem.boolean_mask);
  if (options.schedule != Schedule::ring) {
    // Ranks that exchange rows of a mask must know its extents.
    record.add("mask operand batch extent", operands.mask ? operands.mask->extent(0) : 0);
    record.add("mask operand head extent", operands.mask ? operands.mask->extent(1) : 0);
  }
  record.add("mask operand key extent", operands.mask ? operands.mask->extent(3) : 0);
  record.add("document ids given", problem.document_ids);
  record.add("sink logits given", static_cast<bool>(operands.sinks));
  record.add("sink logits per head", problem.sinks);
  record.add("joint keys given", static_cast<bool>(operands.joint_keys));
  record.add("joint keys", problem.joint_keys);
  record.add("checked", checked);
  record.add("require_finite", options.require_finite);
  if (operands.sinks) record_values(record, "sink logits", checked, *operands.sinks);
  if (operands.joint_keys)
    record_values(record, "joint key values", checked, *operands.joint_keys, *operands.joint_values);
}

/// Adds those of every call on a cache, a CacheCall with CachedOptions. A: type of the sums.
template <class A, class T, class Call, class CachedOptions>
void record_cached_call(CallRecord& record, Call const& call, CachedOptions const& options, bool checked) {
  auto const& table = call.cache.table();
  std::span<char const> const name = call.name;
  record.add_named("operation on a cache", digest_of_span(name), call.name);
  record.add("data type", data_type<T>);
  record.add("accumulator bytes", static_cast<Index>(sizeof(A)));
  record.add("number of the cache", call.number());
  auto const history = static_cast<Index>(table.history());
  record.add_named("history of the cache", history, table.changes(), " changes, digest ", table.history());
  record.add("batch", call.batch());
  Index const sequences = digest_of_span(call.sequences);
  record.add_named("sequences", sequences, "digest ", sequences);
  record_rules(record, rules_of(options));
  record_sharding(record, options.sharding);
  record.add("merge", options.merge);
  record.add("link.latency", options.link.latency);
  record.add("link.bandwidth", options.link.bandwidth);
  record.add("checked", checked);
}

/// Adds the extents of a bias or boolean mask on a cache, if it is given.
template <class Optional>
void record_pairs(CallRecord& record, std::string_view name, Optional const& pairs) {
  std::array<Index, 4> const extents = pairs ? pairs->extents() : std::array<Index, 4>{};
  record.add_named(name, digest_of_span(std::span<Index const>(extents)), pairs ? "extents [" : "none, [", extents[0],
                   ", ", extents[1], ", ", extents[2], ", ", extents[3], "]");
}

/// Adds those of a call with queries: CachedOperands, and whether a predicate is given.
template <class T, class Space, class Call, class CachedOperands>
void record_queries(CallRecord& record, Call const& call, TensorView<T const, 4, Space> const& q,
                    CachedOperands const& operands, bool predicate, bool checked) {
  record.local_queries = q.extent(axis::sequence);
  record.add("queries", call.sharded ? 0 : record.local_queries);
  record.add("query_heads", q.extent(axis::heads));
  Index const offsets = digest_of_span(operands.query_offsets);
  record.add_named("query_offsets", offsets, operands.query_offsets.size(), " values, digest ", offsets);
  record.add("sink logits given", static_cast<bool>(operands.sinks));
  record.add("sink logits per head", operands.sinks ? operands.sinks->extent(1) : 0);
  record_pairs(record, "bias", operands.bias);
  record_pairs(record, "mask", operands.mask);
  if (operands.query_documents && !call.sharded)
    record_values(record, "query_documents", checked, *operands.query_documents);
  if (!call.sharded) record_values(record, "q", checked, q);
  if (operands.bias) record_values(record, "values of the bias", checked, *operands.bias);
  if (operands.mask) record_values(record, "values of the mask", checked, *operands.mask);
  if (operands.sinks) record_values(record, "sink logits", checked, *operands.sinks);
  record.add("predicate given", predicate);
}

/// Adds the NewRows to append, if any are given.
template <class Call, class NewRows>
void record_rows(CallRecord& record, Call const& call, NewRows const& rows, bool checked) {
  record.add("rows to append given", rows.given);
  if (!rows.given) return;
  record.local_keys = rows.rows();
  record.add("rows to append", call.sharded ? 0 : rows.rows());
  if (call.sharded) return;
  if (rows.ids) record_values(record, "key_documents", checked, *rows.ids);
  record_values(record, "k", checked, rows.k);
  record_values(record, "v", checked, rows.v);
}

/// The record of a new cache of elements of type T, which rank 0 has numbered.
template <class T, class CacheShape>
CallRecord record_of_new_cache(CacheShape const& shape, Index number) {
  CallRecord record;
  record.add("collective operation", CollectiveOperation::make_cache);
  record.add("element type", data_type<T>);
  record.add("kv_heads", shape.kv_heads);
  record.add("head_dim", shape.head_dim);
  record.add("value_dim", shape.value_dim);
  record.add("pages", shape.pages);
  record.add("page_rows", shape.page_rows);
  record.add("document_ids", shape.document_ids);
  record.add("reproducible_leaf", shape.reproducible_leaf);
  record.cache_number = number;
  return record;
}

/// Adds what differs between element types: size and kind of number.
template <class T>
void record_element(CallRecord& record) {
  if constexpr (Scalar<T>) {
    record.add("element type", data_type<T>);
  } else {
    constexpr Index kind = std::same_as<T, bool> ? 1 : !std::integral<T> ? 2 : std::signed_integral<T> ? 3 : 4;
    constexpr std::array<std::string_view, 5> names{"", "bool", "other", "signed integer", "unsigned integer"};
    record.add_named("element type", 100 + kind, names[static_cast<std::size_t>(kind)]);
  }
  record.add("bytes of an element", static_cast<Index>(sizeof(T)));
}

/// The record of an operation on tensors of N axes of T. `call`: the caller's number of it; `equal_extents`: 0 where
/// ranks differ.
template <class T, std::size_t N>
CallRecord record_of_tensors(CollectiveOperation operation, std::optional<Index> call,
                             std::array<Index, N> const& equal_extents) {
  static_assert(N >= 1 && N <= 8, "annulus: a tensor with one to eight axes");
  constexpr std::array<std::string_view, 8> extents{"extent of axis 0", "extent of axis 1", "extent of axis 2",
                                                    "extent of axis 3", "extent of axis 4", "extent of axis 5",
                                                    "extent of axis 6", "extent of axis 7"};
  CallRecord record;
  record.add("collective operation", operation);
  record.add("operation numbered", call.has_value());
  record.add("number of the operation", call.value_or(0));
  record.add("number of axes", static_cast<Index>(N));
  record_element<T>(record);
  for (std::size_t a = 0; a < N; ++a) record.add(extents[a], equal_extents[a]);
  return record;
}

/// Adds where the positions of a tensor lie, and who owns them.
inline void record_positions(CallRecord& record, std::size_t axis, Side side, Sharding const& sharding) {
  record.add("axis of the positions", static_cast<Index>(axis));
  record.add_named("side", static_cast<Index>(side), side == Side::query ? "query" : "key");
  record_sharding(record, sharding);
}

}  // namespace annulus::detail
