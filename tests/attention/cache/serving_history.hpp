#pragma once
// Random histories of a reproducible cache, on one rank of a ring: every row that prefill or decode returns must have
// the bits of a training pass over its sequence on one rank.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/attention/cache/cached_attention.hpp>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace annulus_test {

using annulus::Index;

/// Extents and options of a history.
struct ServingCase {
  annulus::CacheShape shape{.kv_heads = 2, .head_dim = 6, .value_dim = 5, .pages = 24, .page_rows = 4};
  Index group = 2;  ///< query heads of a kv head
  annulus::CachedOptions options{};
  bool sinks = false;
  bool bias = false;  ///< decode alone
  bool special = false;
  int calls = 40;
  std::uint32_t seed = 1;
  Index longest = 90, longest_chunk = 40;  ///< rows of a sequence, and of a prefill
};

/// Sizes and elements of all cases.
struct ServingSizes {
  Index leaf = 16, head_dim = 6, value_dim = 5;
  int calls = 40;
  std::uint32_t seed = 0;
  bool any_pages = false;  ///< pages of 7 rows, wherever leaves end: for one rank
  bool special = false;    ///< elements may be 0, -0, huge, infinite or NaN
};

/// Cases of every kind of mask, sharding and page.
inline std::vector<ServingCase> serving_cases(ServingSizes const& sizes = {}) {
  using namespace annulus;
  Index const leaf = sizes.leaf;
  std::vector<ServingCase> cases;
  auto const add = [&](CachedOptions options, Index page_rows, bool sinks = false) {
    options.reproducible = true;
    options.reproducible_leaf = leaf;
    ServingCase one{
        .options = options, .sinks = sinks, .seed = 100 * sizes.seed + static_cast<std::uint32_t>(cases.size())};
    constexpr std::array<Index, 3> kv_heads{2, 3, 1}, groups{2, 1, 8};
    one.shape.kv_heads = kv_heads[cases.size() % 3];
    one.group = groups[cases.size() % 3];
    one.special = sizes.special;
    one.calls = sizes.calls;
    one.shape.head_dim = sizes.head_dim;
    one.shape.value_dim = sizes.value_dim;
    one.shape.page_rows = sizes.any_pages ? 7 : page_rows;
    one.longest = std::max(Index{48}, 90 * leaf / 16);
    one.longest_chunk = std::max(Index{20}, 40 * leaf / 16);
    one.shape.pages = 4 * one.longest / one.shape.page_rows + 10;
    one.shape.reproducible_leaf = sizes.any_pages ? 0 : leaf;
    cases.push_back(one);
  };
  add({.mask = causal()}, 4);
  add({.mask = causal(), .checked = true}, 16, true);
  add({}, 1);
  add({.mask = sliding_window(6, 1), .sharding = Striped{}}, 8, true);
  add({.mask = {.causal = true, .window = {.left = 25}, .sink_tokens = 3}, .sharding = Zigzag{}}, 2);
  add({.mask = {.causal = true, .chunk = 9}, .softmax_scale = -0.7, .logit_softcap = 1.5}, 32, true);
  add({.mask = causal(), .dropout = {.probability = 0.3, .seed = 11}, .sharding = Zigzag{}}, 4, true);
  add({.mask = causal()}, 8);
  cases.back().bias = true;
  std::vector<bool> blocks(400 * 300);
  for (std::size_t block = 0; block < blocks.size(); ++block) blocks[block] = block % 300 % 7 != block / 300 % 4;
  Index const unit = std::max(Index{1}, leaf / 16);
  add({.mask = causal(), .block_mask = {3 * unit, 4 * unit, 300, blocks}}, 4);
  add({.mask = causal(), .sharding = Zigzag{}}, 4, true);
  cases.back().shape.document_ids = true;
  add({.mask = {.window = {.left = 20}}, .checked = true}, 16);
  cases.back().shape.document_ids = true;
  return cases;
}

template <class T, annulus::Communicator Ring, annulus::Backend B>
class ServingHistory {
  using A = annulus::Accumulator<T>;
  using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;
  using Ids = Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor>;
  using Sinks = Eigen::Tensor<A, 1, Eigen::RowMajor>;
  using Attention = annulus::CachedAttention<Ring, B>;
  using Sequences = std::vector<Index>;

 public:
  ServingHistory(Ring& ring, B& backend, ServingCase const& one)
      : ring_(ring),
        backend_(backend),
        one_(one),
        cache_(ring, backend, one.shape),
        attention_(ring, backend, one.options),
        sinks_(one.group * one.shape.kv_heads),
        engine_(one.seed) {
    for (Index h = 0; h < sinks_.size(); ++h) sinks_(h) = static_cast<A>(0.5 * static_cast<double>(h) - 1);
  }

  /// Makes the calls. Returns what is wrong; empty if nothing is.
  std::string run() {
    for (int i = 0; i < one_.calls; ++i) {
      call();
      if (!complaint_.empty()) return "call " + std::to_string(i) + ": " + complaint_;
    }
    return "";
  }
  Index compared_rows() const { return compared_rows_; }

 private:
  Index random(Index end) { return static_cast<Index>(engine_() % static_cast<std::uint32_t>(end)); }

  void call() {
    Index const kind = rows_.empty() ? 0 : random(12);
    if (kind == 0) {
      rows_[cache_.create()];
    } else if (kind == 1) {
      Index const from = some_sequences()[0];
      rows_[cache_.fork(from)] = rows_[from];
    } else if (kind == 2) {
      Index const sequence = some_sequences()[0], length = random(std::ssize(rows_[sequence]) + 1);
      cache_.truncate(sequence, length);
      rows_[sequence].resize(static_cast<std::size_t>(length));
    } else if (kind == 3) {
      Index const sequence = some_sequences()[0];
      cache_.release(sequence);
      rows_.erase(sequence);
    } else if (kind < 7) {
      decode(some_sequences(), 1 + random(kind == 6 ? 5 : 1));
    } else {
      prefill(some_sequences(), random(one_.longest_chunk));
    }
  }

  Sequences some_sequences() {
    Sequences all;
    for (auto const& [number, rows] : rows_) all.push_back(number);
    std::shuffle(all.begin(), all.end(), engine_);
    all.resize(static_cast<std::size_t>(std::min<Index>(std::ssize(all), 1 + random(3))));
    return all;
  }

  /// Gives each sequence `count` new rows in the model; false if the cache has no room for them.
  bool extend(Sequences const& sequences, Index count) {
    for (Index const sequence : sequences)
      if (std::ssize(rows_[sequence]) + count > one_.longest) return false;
    try {
      cache_.table().require_room(sequences, count);
    } catch (annulus::ShapeError const&) {
      return false;
    }
    for (Index const sequence : sequences)
      for (Index i = 0; i < count; ++i) rows_[sequence].push_back(next_serial_++);
    return true;
  }

  /// Elements of q, k, v (`what` 0 to 2) are functions of the row's serial number.
  T element(Index what, Index serial, Index head, Index d) const {
    auto bits = static_cast<std::uint64_t>(((serial * 16 + head) * 256 + d) * 4 + what) * 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits ^= bits >> 31;
    if (one_.special) {
      using Limits = std::numeric_limits<float>;
      if (bits % 5 < 2) return static_cast<T>(bits % 5 == 0 ? 0.f : -0.f);
      if (what == 1 && bits % 997 == 3) return static_cast<T>(9000.f);
      if (what == 2 && bits % 1999 == 3)
        return static_cast<T>(bits % 2 == 0 ? Limits::infinity() : Limits::quiet_NaN());
      if (what == 3 && bits % 7 == 3) return static_cast<T>(-Limits::infinity());
    }
    return static_cast<T>(static_cast<double>(bits % 4096) / 1024 - 2);
  }
  /// 0 and negative ids are padding.
  static std::int32_t document(Index serial) { return static_cast<std::int32_t>(serial / 11 % 6) - 1; }
  Index heads(Index what) const { return what == 0 ? one_.group * one_.shape.kv_heads : one_.shape.kv_heads; }
  Index dim(Index what) const { return what == 2 ? one_.shape.value_dim : one_.shape.head_dim; }

  /// Rows of the sequences at these positions, one list for each sequence.
  Tensor rows_of(Index what, Sequences const& sequences, std::vector<std::vector<Index>> const& positions) {
    Tensor rows(std::ssize(sequences), std::ssize(positions[0]), heads(what), dim(what));
    for (Index b = 0; b < rows.dimension(0); ++b)
      for (Index i = 0; i < rows.dimension(1); ++i)
        for (Index h = 0; h < rows.dimension(2); ++h)
          for (Index d = 0; d < rows.dimension(3); ++d)
            rows(b, i, h, d) = element(what, serial(sequences, positions, b, i), h, d);
    return rows;
  }
  Ids ids_of(Sequences const& sequences, std::vector<std::vector<Index>> const& positions) {
    Ids ids(std::ssize(sequences), std::ssize(positions[0]));
    for (Index b = 0; b < ids.dimension(0); ++b)
      for (Index i = 0; i < ids.dimension(1); ++i) ids(b, i) = document(serial(sequences, positions, b, i));
    return ids;
  }
  Index serial(Sequences const& sequences, std::vector<std::vector<Index>> const& positions, Index b, Index i) {
    auto const item = static_cast<std::size_t>(b);
    Index const position = positions[item][static_cast<std::size_t>(i)];
    if (position < 0) return -position;  // a query before the sequence
    return rows_[sequences[item]][static_cast<std::size_t>(position)];
  }
  /// The last positions of each sequence, of the new ones those at `segments`.
  std::vector<std::vector<Index>> last_positions(Sequences const& sequences, Index count,
                                                 std::span<annulus::Segment const> segments) {
    std::vector<std::vector<Index>> positions(sequences.size());
    for (std::size_t b = 0; b < sequences.size(); ++b)
      for (auto const& segment : segments)
        for (Index i = 0; i < segment.length; ++i)
          positions[b].push_back(std::ssize(rows_[sequences[b]]) - count + segment.global_begin +
                                 i * segment.global_stride);
    return positions;
  }

  /// A bias by sequence, head and positions.
  Tensor bias_of(Sequences const& sequences, std::vector<std::vector<Index>> const& positions, Index keys) {
    Tensor bias(std::ssize(sequences), heads(0), std::ssize(positions[0]), keys);
    for (Index b = 0; b < bias.dimension(0); ++b)
      for (Index h = 0; h < bias.dimension(1); ++h)
        for (Index i = 0; i < bias.dimension(2); ++i)
          for (Index j = 0; j < keys; ++j)
            bias(b, h, i, j) = element(3, positions[static_cast<std::size_t>(b)][static_cast<std::size_t>(i)], h, j);
    return bias;
  }

  void decode(Sequences const& sequences, Index count) {
    bool const appends = random(4) != 0;
    if (appends && !extend(sequences, count)) return;
    std::array const all{annulus::Segment{0, count, 0, 1}};
    auto positions = last_positions(sequences, count, all);
    if (!has_rows(positions)) return;
    annulus::CachedOperands<T> operands;
    std::vector<Index> offsets;
    if (!appends && random(2) == 0) {
      offsets = place_anywhere(positions);
      operands.query_offsets = offsets;
    }
    Tensor const q = rows_of(0, sequences, positions), k = appends ? rows_of(1, sequences, positions) : Tensor(),
                 v = appends ? rows_of(2, sequences, positions) : Tensor();
    Ids const ids = one_.shape.document_ids ? ids_of(sequences, positions) : Ids();
    if (one_.shape.document_ids) operands.query_documents = ids;
    if (one_.shape.document_ids && appends) operands.key_documents = ids;
    if (one_.sinks) operands.sinks = sinks_;
    Tensor const bias = one_.bias ? bias_of(sequences, positions, one_.longest) : Tensor();
    if (one_.bias) operands.bias = bias;
    auto result = empty_result(q);
    if (random(2) == 0)
      result = appends ? attention_.template decode<T>(cache_, sequences, q, k, v, operands)
                       : attention_.template decode<T>(cache_, sequences, q, operands);
    else if (appends)
      attention_.template decode_into<T>(cache_, sequences, q, k, v, result.output, result.lse, operands,
                                         result.lse_remainder);
    else
      attention_.template decode_into<T>(cache_, sequences, q, result.output, result.lse, operands,
                                         result.lse_remainder);
    compare(sequences, positions, result);
  }
  annulus::CachedForward<Tensor> empty_result(Tensor const& q) const {
    Index const batch = q.dimension(0), rows = q.dimension(1), query_heads = q.dimension(2);
    return {
        Tensor(batch, rows, query_heads, one_.shape.value_dim), {batch, query_heads, rows}, {batch, query_heads, rows}};
  }

  static bool has_rows(std::vector<std::vector<Index>> const& positions) {
    return std::all_of(positions.begin(), positions.end(), [](auto const& of_item) { return of_item.front() >= 0; });
  }
  /// Moves the queries of each item, from where none sees a key on where that is so before the sequence. Returns the
  /// positions of the first ones.
  std::vector<Index> place_anywhere(std::vector<std::vector<Index>>& positions) {
    bool const before = one_.options.mask.causal && !one_.options.block_mask;
    std::vector<Index> offsets;
    for (auto& of_item : positions) {
      Index const first = before ? random(of_item.front() + 4) - 3 : random(of_item.front() + 1);
      for (std::size_t i = 0; i < of_item.size(); ++i) of_item[i] = first + static_cast<Index>(i);
      offsets.push_back(first);
    }
    return offsets;
  }

  void prefill(Sequences const& sequences, Index count) {
    if (!extend(sequences, count)) return;
    auto const lengths = one_.options.sharding.lengths(annulus::Side::query, ring_.size(), count);
    auto const segments = one_.options.sharding.segments(annulus::Side::query, ring_.rank(), lengths);
    auto const positions = last_positions(sequences, count, segments);
    Ids const ids = one_.shape.document_ids ? ids_of(sequences, positions) : Ids();
    annulus::AppendOperands<> appended;
    annulus::CachedOperands<T> operands;
    if (one_.shape.document_ids) appended.key_documents = operands.query_documents = ids;
    if (one_.sinks) operands.sinks = sinks_;
    attention_.template append_shards<T>(cache_, sequences, rows_of(1, sequences, positions),
                                         rows_of(2, sequences, positions), appended);
    Tensor const q = rows_of(0, sequences, positions);
    auto result = empty_result(q);
    if (random(2) == 0)
      result = attention_.template prefill<T>(cache_, sequences, q, operands);
    else
      attention_.template prefill_into<T>(cache_, sequences, q, result.output, result.lse, operands,
                                          result.lse_remainder);
    if (!one_.bias) compare(sequences, positions, result);  // prefill has none
  }

  /// Training over one sequence, as batch item `item`, on one rank.
  auto train(Index sequence, Index item) {
    Index const length = std::ssize(rows_[sequence]);
    std::vector<std::vector<Index>> all(static_cast<std::size_t>(item) + 1);
    for (auto& positions : all)
      for (Index i = 0; i < length; ++i) positions.push_back(i);
    Sequences const copies(all.size(), sequence);
    annulus::SelfRing alone;
    annulus::RingAttention attention(alone, backend_,
                                     {.mask = one_.options.mask,
                                      .block_mask = one_.options.block_mask,
                                      .softmax_scale = one_.options.softmax_scale,
                                      .logit_softcap = one_.options.logit_softcap,
                                      .dropout = one_.options.dropout,
                                      .query_offset = 0,
                                      .reproducible = true,
                                      .reproducible_leaf = one_.options.reproducible_leaf});
    Ids const ids = one_.shape.document_ids ? ids_of(copies, all) : Ids();
    annulus::Operands<T> operands;
    if (one_.shape.document_ids) operands.query_documents = operands.key_documents = ids;
    if (one_.sinks) operands.sinks = sinks_;
    Tensor const bias = one_.bias ? bias_of(copies, all, length) : Tensor();
    if (one_.bias) operands.bias = bias;
    return attention.forward(rows_of(0, copies, all), rows_of(1, copies, all), rows_of(2, copies, all), operands);
  }

  template <class Result>
  void compare(Sequences const& sequences, std::vector<std::vector<Index>> const& positions, Result const& result) {
    for (std::size_t b = 0; b < sequences.size() && complaint_.empty(); ++b) {
      if (positions[b].empty()) continue;
      auto const item = static_cast<Index>(b);
      auto const trained = train(sequences[b], item);
      for (std::size_t i = 0; i < positions[b].size(); ++i)
        for (Index h = 0; h < heads(0); ++h)
          compare_row(result, trained, item, h, static_cast<Index>(i), positions[b][i]);
      if (!complaint_.empty()) complaint_ += ", sequence of " + std::to_string(rows_[sequences[b]].size());
    }
  }
  template <class Result, class Trained>
  void compare_row(Result const& result, Trained const& trained, Index b, Index h, Index i, Index position) {
    ++compared_rows_;
    // NaN has many bits.
    auto const differs = [](auto const& x, auto const& y) {
      return std::memcmp(&x, &y, sizeof x) != 0 && !(x != x && y != y);
    };
    bool const sees_nothing = position < 0;
    Index const row = std::max(position, Index{0});
    A const lse_of_none = one_.sinks ? sinks_(h) : -std::numeric_limits<A>::infinity();
    A const lse = sees_nothing ? lse_of_none : trained.lse(b, h, row);
    A const remainder = sees_nothing ? A(0) : trained.lse_remainder(b, h, row);
    bool wrong = differs(result.lse(b, h, i), lse) || differs(result.lse_remainder(b, h, i), remainder);
    for (Index d = 0; d < one_.shape.value_dim; ++d)
      wrong = wrong || differs(result.output(b, i, h, d), sees_nothing ? T(0) : trained.output(b, row, h, d));
    if (wrong && complaint_.empty())
      complaint_ = "other bits at position " + std::to_string(position) + ", head " + std::to_string(h) + ", item " +
                   std::to_string(b) + ": lse " + std::to_string(result.lse(b, h, i)) + " and " + std::to_string(lse) +
                   " of training";
  }

  Ring& ring_;
  B& backend_;
  ServingCase one_;
  annulus::KvCache<T, B> cache_;
  Attention attention_;
  Sinks sinks_;
  std::mt19937 engine_;
  std::map<Index, std::vector<Index>> rows_;  ///< serial numbers of the rows of each sequence
  Index next_serial_ = 0, compared_rows_ = 0;
  std::string complaint_;
};

}  // namespace annulus_test
