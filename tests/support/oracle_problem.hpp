#pragma once
// Complete attention problem on one process: operands in double, in natural global order, and visibility rules.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace annulus_test {

/// One value for each pair of query and key: [batch, heads, query_length, key_length].
/// batch and heads are the problem's, or 1 to broadcast the values.
template <class Value>
struct OraclePairs {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::vector<Value> values;
};

/// Sink logits, extra terms of the softmax denominator: [query_heads, count].
struct OracleSinks {
  std::int64_t count = 1;
  std::vector<double> values;
};

/// All arrays are row-major. Options have no effect at their defaults.
struct OracleProblem {
  std::int64_t batch = 1;
  std::int64_t query_heads = 1;
  std::int64_t kv_heads = 1;  ///< divides query_heads; query head h reads kv head h / (query_heads / kv_heads)
  std::int64_t query_length = 1;
  std::int64_t key_length = 1;
  std::int64_t head_dim = 1;
  std::int64_t value_dim = 1;

  bool causal = false;
  std::optional<std::int64_t> window_left;   ///< unset or negative: unbounded
  std::optional<std::int64_t> window_right;  ///< unset or negative: unbounded
  std::int64_t sink_tokens = 0;              ///< keys below this position stay visible outside the window
  std::int64_t chunk = 0;                    ///< 0: no chunks
  std::int64_t query_offset = 0;             ///< position of query row 0; may be negative
  std::optional<double> softmax_scale;       ///< unset: 1 / sqrt(head_dim)
  double logit_softcap = 0;                  ///< 0: none
  double dropout_probability = 0;
  std::uint64_t dropout_seed = 0;

  std::vector<double> q;  ///< [batch, query_length, query_heads, head_dim]
  std::vector<double> k;  ///< [batch, key_length, kv_heads, head_dim]
  std::vector<double> v;  ///< [batch, key_length, kv_heads, value_dim]
  std::optional<OraclePairs<double>> bias;
  std::optional<OraclePairs<char>> mask;            ///< not 0: visible
  std::optional<std::vector<int>> query_documents;  ///< [batch, query_length]; 0 and negative: padding
  std::optional<std::vector<int>> key_documents;    ///< [batch, key_length]; given with query_documents
  std::optional<OracleSinks> sinks;

  /// visible(batch, query head, query position including query_offset, key position)
  std::function<bool(std::int64_t, std::int64_t, std::int64_t, std::int64_t)> predicate;
};

namespace oracle_detail {

inline void expect_size(char const* name, std::size_t seen, std::int64_t expected) {
  if (seen != static_cast<std::size_t>(expected))
    throw std::invalid_argument(std::string("oracle: ") + name + " has " + std::to_string(seen) + " values, expected " +
                                std::to_string(expected));
}

template <class Value>
void expect_pairs(char const* name, OracleProblem const& problem, OraclePairs<Value> const& pairs) {
  if ((pairs.batch != 1 && pairs.batch != problem.batch) || (pairs.heads != 1 && pairs.heads != problem.query_heads))
    throw std::invalid_argument(std::string("oracle: ") + name + " has batch or heads that do not broadcast");
  expect_size(name, pairs.values.size(), pairs.batch * pairs.heads * problem.query_length * problem.key_length);
}

/// Offset of (batch, head, row, key) in a pair operand, broadcast axes taken into account.
template <class Value>
std::size_t pair_offset(OracleProblem const& problem, OraclePairs<Value> const& pairs, std::int64_t batch,
                        std::int64_t head, std::int64_t row, std::int64_t key) {
  std::int64_t const pair_batch = pairs.batch == 1 ? 0 : batch;
  std::int64_t const pair_head = pairs.heads == 1 ? 0 : head;
  return static_cast<std::size_t>(
      ((pair_batch * pairs.heads + pair_head) * problem.query_length + row) * problem.key_length + key);
}

inline std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  std::int64_t const truncated = a / b;
  return a % b < 0 ? truncated - 1 : truncated;
}

}  // namespace oracle_detail

/// Throws std::invalid_argument if operands do not match the extents: a test that builds a wrong problem must not pass.
inline void expect_consistent(OracleProblem const& p) {
  using oracle_detail::expect_size;
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads != 0 || p.head_dim < 1 || p.value_dim < 1 || p.batch < 0 ||
      p.query_length < 0 || p.key_length < 0 || p.chunk < 0)
    throw std::invalid_argument("oracle: an extent is out of range, or kv_heads does not divide query_heads");
  expect_size("q", p.q.size(), p.batch * p.query_length * p.query_heads * p.head_dim);
  expect_size("k", p.k.size(), p.batch * p.key_length * p.kv_heads * p.head_dim);
  expect_size("v", p.v.size(), p.batch * p.key_length * p.kv_heads * p.value_dim);
  if (p.bias) oracle_detail::expect_pairs("bias", p, *p.bias);
  if (p.mask) oracle_detail::expect_pairs("mask", p, *p.mask);
  if (p.query_documents.has_value() != p.key_documents.has_value())
    throw std::invalid_argument("oracle: query_documents and key_documents come together");
  if (p.query_documents) expect_size("query_documents", p.query_documents->size(), p.batch * p.query_length);
  if (p.key_documents) expect_size("key_documents", p.key_documents->size(), p.batch * p.key_length);
  if (p.sinks) expect_size("sinks", p.sinks->values.size(), p.query_heads * p.sinks->count);
}

/// True if query `row` (counted from 0, without query_offset) of this batch item and query head sees `key`.
inline bool oracle_visible(OracleProblem const& p, std::int64_t batch, std::int64_t head, std::int64_t row,
                           std::int64_t key) {
  std::int64_t const position = row + p.query_offset;
  if (p.causal && key > position) return false;
  bool const left_holds = !p.window_left || *p.window_left < 0 || position - key <= *p.window_left;
  bool const right_holds = !p.window_right || *p.window_right < 0 || key - position <= *p.window_right;
  if (!(left_holds && right_holds) && key >= p.sink_tokens) return false;
  if (p.chunk > 0 && oracle_detail::floor_quotient(position, p.chunk) != oracle_detail::floor_quotient(key, p.chunk))
    return false;
  if (p.query_documents) {
    int const query_document = (*p.query_documents)[static_cast<std::size_t>(batch * p.query_length + row)];
    int const key_document = (*p.key_documents)[static_cast<std::size_t>(batch * p.key_length + key)];
    if (query_document <= 0 || query_document != key_document) return false;
  }
  if (p.mask && p.mask->values[oracle_detail::pair_offset(p, *p.mask, batch, head, row, key)] == 0) return false;
  return !p.predicate || p.predicate(batch, head, position, key);
}

}  // namespace annulus_test
