#pragma once
// Random calls on a cache, on one rank of a ring, against dense attention in double over the rows that the sequences
// should have.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/attention/cache/cached_attention.hpp>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "attention/cache/cached_cases.hpp"
#include "support/larger_error.hpp"
#include "support/oracle_philox.hpp"

namespace annulus_test {

using annulus::Index;

/// Predicate of the runs that have one.
struct SomePairs {
  bool operator()(Index batch, Index head, Index query, Index key) const {
    return (batch + 2 * head + 5 * query + 3 * key) % 4 != 0;
  }
};

template <class T, annulus::Communicator Ring, annulus::Backend B, class Predicate = annulus::EveryPair,
          class Attention = annulus::CachedAttention<Ring, B, Predicate>>
class CachedRun {
  using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;
  using A = annulus::Accumulator<T>;
  using Sequences = std::vector<Index>;

 public:
  CachedRun(Ring& ring, B& backend, CachedCase const& one)
      : ring_(ring),
        one_(one),
        cache_(ring, backend, one.shape),
        attention_(ring, backend, one.options, Predicate{}),
        sinks_(one.group * one.shape.kv_heads, 1),
        engine_(one.seed) {
    for (Index h = 0; h < sinks_.size(); ++h) sinks_.data()[h] = static_cast<A>(0.5 * static_cast<double>(h) - 1);
  }

  /// Makes the calls. Returns what is wrong; empty if nothing is.
  std::string run() {
    for (int i = 0; i < one_.calls && complaint_.empty(); ++i) {
      call();
      agree_to_stop();
      if (!complaint_.empty()) complaint_ = "call " + std::to_string(i) + ", " + what_ + ": " + complaint_;
    }
    return complaint_;
  }
  double largest_error() const { return largest_error_; }
  Index compared_rows() const { return compared_rows_; }
  Index refused() const { return refused_; }

 private:
  /// All ranks stop where one of them complains.
  void agree_to_stop() {
    std::byte const mine{complaint_.empty() ? std::uint8_t{0} : std::uint8_t{1}};
    std::vector<std::byte> all(static_cast<std::size_t>(ring_.size()));
    ring_.all_gather({&mine, 1}, all);
    for (std::size_t r = 0; r < all.size(); ++r)
      if (complaint_.empty() && all[r] != std::byte{0}) complaint_ = "rank " + std::to_string(r) + " complains";
  }

  Index random(Index end) { return static_cast<Index>(engine_() % static_cast<std::uint32_t>(end)); }

  /// Sizes next to those of pages.
  Index some_rows() {
    Index const page = one_.shape.page_rows;
    std::array const sizes{Index{0}, Index{1}, page - 1, page, page + 1, 2 * page, 2 * page + 3, Index{2}};
    return sizes[static_cast<std::size_t>(random(sizes.size()))];
  }
  Sequences some_sequences() {
    Sequences all, some;
    for (auto const& [number, rows] : rows_) all.push_back(number);
    std::shuffle(all.begin(), all.end(), engine_);
    Index const count = std::min<Index>(static_cast<Index>(all.size()), 1 + random(3));
    some.assign(all.begin(), all.begin() + count);
    return some;
  }

  void call() {
    Index const kind = rows_.empty() ? 0 : random(one_.few_queries ? 10 : 12);
    if (kind == 0) {
      what_ = "create";
      rows_[cache_.create()];
    } else if (kind == 1) {
      what_ = "fork";
      Index const from = some_sequences()[0];
      rows_[cache_.fork(from)] = rows_[from];
    } else if (kind == 2) {
      what_ = "truncate";
      Index const sequence = some_sequences()[0];
      Index const length = random(static_cast<Index>(rows_[sequence].size()) + 1);
      cache_.truncate(sequence, length);
      rows_[sequence].resize(static_cast<std::size_t>(length));
    } else if (kind == 3) {
      what_ = "release";
      Index const sequence = some_sequences()[0];
      cache_.release(sequence);
      rows_.erase(sequence);
    } else if (kind <= 6) {
      append(kind > 4);
    } else if (kind <= 9) {
      decode(kind > 7);
    } else {
      prefill();
    }
    for (auto const& [sequence, rows] : rows_)
      if (cache_.length(sequence) != static_cast<Index>(rows.size()))
        complaint_ =
            "sequence " + std::to_string(sequence) + " has " + std::to_string(cache_.length(sequence)) + " rows";
  }

  /// Of the type that kernels read, and of one that a call converts.
  using Id = std::conditional_t<std::same_as<T, float>, std::int32_t, std::int16_t>;
  using Ids = Eigen::Tensor<Id, 2, Eigen::RowMajor>;
  /// Document id of a row: it changes every nine rows, and comes again. Padding is 0 or below.
  static Id document(Index serial) {
    auto const id = static_cast<Id>(serial / 9 % 6);
    return id > 1 ? id : static_cast<Id>(-id);
  }
  static Ids documents(std::vector<std::vector<Index>> const& serials) {
    Ids ids(static_cast<Index>(serials.size()), static_cast<Index>(serials.front().size()));
    for (Index b = 0; b < ids.dimension(0); ++b)
      for (Index i = 0; i < ids.dimension(1); ++i)
        ids(b, i) = document(serials[static_cast<std::size_t>(b)][static_cast<std::size_t>(i)]);
    return ids;
  }

  /// Element d of a row of k (of `what` 0) or v (1): a function of the row's serial number.
  static double element(Index what, Index serial, Index head, Index d) {
    auto bits = static_cast<std::uint64_t>(((serial * 64 + head) * 64 + d) * 2 + what) * 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits ^= bits >> 31;
    return static_cast<double>(static_cast<A>(static_cast<T>(static_cast<double>(bits % 4096) / 2048 - 1)));
  }
  /// Rows [batch, count, heads, dim] with the serial numbers [batch][count].
  static Tensor rows_of(Index what, std::vector<std::vector<Index>> const& serials, Index heads, Index dim) {
    auto const count = static_cast<Index>(serials.front().size());
    Tensor rows(static_cast<Index>(serials.size()), count, heads, dim);
    for (Index b = 0; b < rows.dimension(0); ++b)
      for (Index i = 0; i < count; ++i)
        for (Index h = 0; h < heads; ++h)
          for (Index d = 0; d < dim; ++d)
            rows(b, i, h, d) =
                static_cast<T>(element(what, serials[static_cast<std::size_t>(b)][static_cast<std::size_t>(i)], h, d));
    return rows;
  }

  std::vector<std::vector<Index>> new_serials(Sequences const& sequences, Index count) {
    std::vector<std::vector<Index>> serials(sequences.size());
    for (auto& item : serials)
      for (Index i = 0; i < count; ++i) item.push_back(next_serial_++);
    return serials;
  }
  /// True if the cache accepts the rows; else the model keeps its rows, and the call must be refused.
  bool accept(Sequences const& sequences, std::vector<std::vector<Index>> const& serials) {
    try {
      cache_.table().require_room(sequences, static_cast<Index>(serials.front().size()));
    } catch (annulus::ShapeError const&) {
      ++refused_;
      return false;
    }
    for (std::size_t b = 0; b < sequences.size(); ++b)
      rows_[sequences[b]].insert(rows_[sequences[b]].end(), serials[b].begin(), serials[b].end());
    return true;
  }
  template <class Call>
  void expect(bool accepted, Call const& call) {
    try {
      call();
      if (!accepted) complaint_ = "rows without room were accepted";
    } catch (annulus::ShapeError const& error) {
      if (accepted) complaint_ = error.what();
    }
  }

  /// Numbers of rows of each rank, which the sharding accepts.
  std::vector<Index> lengths(annulus::Side side, Index count) {
    auto lengths = one_.options.sharding.lengths(side, ring_.size(), count);
    if (one_.options.sharding == annulus::Sharding(annulus::Contiguous{}))
      for (int i = 0; i < ring_.size(); ++i) {
        auto &from = lengths[static_cast<std::size_t>(random(ring_.size()))],
             &to = lengths[static_cast<std::size_t>(random(ring_.size()))];
        Index const moved = random(from + 1);
        from -= moved;
        to += moved;
      }
    return lengths;
  }
  /// This rank's share of a list for each batch item.
  std::vector<std::vector<Index>> own_share(annulus::Side side, std::vector<std::vector<Index>> const& lists) {
    auto const segments =
        one_.options.sharding.segments(side, ring_.rank(), lengths(side, static_cast<Index>(lists[0].size())));
    std::vector<std::vector<Index>> mine;
    for (auto const& list : lists) {
      auto& share = mine.emplace_back();
      for (Index position : annulus::positions_of(segments)) share.push_back(list[static_cast<std::size_t>(position)]);
    }
    return mine;
  }

  void append(bool sharded) {
    what_ = sharded ? "append_shards" : "append";
    Sequences const sequences = some_sequences();
    // A zigzag of 2 * ranks blocks takes no other numbers of rows.
    Index const count = sharded ? some_rows() * 2 * ring_.size() : some_rows();
    auto serials = new_serials(sequences, count);
    bool const accepted = accept(sequences, serials);
    if (sharded) serials = own_share(annulus::Side::key, serials);
    auto const k = rows_of(0, serials, one_.shape.kv_heads, one_.shape.head_dim);
    auto const v = rows_of(1, serials, one_.shape.kv_heads, one_.shape.value_dim);
    auto const ids = documents(serials);
    annulus::AppendOperands<> given;
    if (one_.shape.document_ids) given.key_documents = ids;
    expect(accepted, [&] {
      if (sharded)
        attention_.append_shards(cache_, sequences, k, v, given);
      else
        attention_.append(cache_, sequences, k, v, given);
    });
  }

  /// Bias and mask of a call: the same for all heads, or for all batch items.
  double bias_at(Index b, Index head, Index i, Index key) const { return element(2, b + head, i, key) / 2; }
  static bool mask_at(Index i, Index key) { return (3 * i + key) % 5 != 1; }
  void make_pairs(Sequences const& sequences, Index queries) {
    bias_ = {};
    mask_ = {};
    if (!one_.pairs) return;
    Index longest = 1;
    for (Index sequence : sequences) longest = std::max(longest, static_cast<Index>(rows_[sequence].size()));
    auto const batch = static_cast<Index>(sequences.size());
    per_head_ = random(2) == 0;
    bias_.resize(per_head_ ? 1 : batch, per_head_ ? heads() : 1, queries, longest);
    mask_.resize(1, 1, queries, longest + 1);
    for (Index b = 0; b < bias_.dimension(0); ++b)
      for (Index h = 0; h < bias_.dimension(1); ++h)
        for (Index i = 0; i < queries; ++i)
          for (Index j = 0; j < longest; ++j) bias_(b, h, i, j) = static_cast<T>(bias_at(b, h, i, j));
    for (Index i = 0; i < queries; ++i)
      for (Index j = 0; j <= longest; ++j) mask_(0, 0, i, j) = mask_at(i, j);
  }

  /// `ids`: of the queries.
  annulus::CachedOperands<T> operands(std::vector<Index> const& offsets, Ids const& ids) const {
    annulus::CachedOperands<T> result{.query_offsets = offsets};
    if (one_.shape.document_ids) result.query_documents = ids;
    if (one_.sinks) result.sinks = sinks_;
    if (bias_.size() > 0) result.bias = bias_;
    if (mask_.size() > 0) result.mask = mask_;
    return result;
  }
  std::vector<Index> some_offsets(Sequences const& sequences) {
    std::vector<Index> offsets;
    // Blocks are numbered from position 0.
    bool const blocks{one_.options.block_mask};
    if (random(2) == 0 || blocks)
      for (Index sequence : sequences) offsets.push_back(random(cache_.length(sequence) + 5) - (blocks ? 0 : 3));
    return offsets;
  }
  static std::vector<std::vector<Index>> positions(Sequences const& sequences, Index count) {
    std::vector<Index> all;
    for (Index i = 0; i < count; ++i) all.push_back(i);
    return std::vector(sequences.size(), all);
  }

  void decode(bool appends) {
    what_ = appends ? "decode of appended rows" : "decode";
    Sequences const sequences = some_sequences();
    Index const queries = random(4) == 0 && !one_.few_queries ? some_rows() : 1 + random(3);
    auto const query_serials = new_serials(sequences, queries), key_serials = new_serials(sequences, queries);
    auto const offsets = some_offsets(sequences);
    auto const q = rows_of(0, query_serials, heads(), one_.shape.head_dim);
    bool const accepted = !appends || accept(sequences, key_serials);
    make_pairs(sequences, queries);
    auto const query_ids = documents(query_serials), key_ids = documents(key_serials);
    auto given = operands(offsets, query_ids);
    if (one_.shape.document_ids && appends) given.key_documents = key_ids;
    expect(accepted, [&] {
      auto const result = [&] {
        if (!appends) return attention_.decode(cache_, sequences, q, given);
        auto const k = rows_of(0, key_serials, one_.shape.kv_heads, one_.shape.head_dim);
        auto const v = rows_of(1, key_serials, one_.shape.kv_heads, one_.shape.value_dim);
        return attention_.decode(cache_, sequences, q, k, v, given);
      }();
      compare(sequences, query_serials, positions(sequences, queries), queries, offsets, result);
      compare_bits(result);
    });
  }

  void prefill() {
    what_ = "prefill";
    Sequences const sequences = some_sequences();
    Index const queries = some_rows() * 2 * ring_.size();
    auto const offsets = some_offsets(sequences);
    auto const serials = new_serials(sequences, queries);
    bias_ = {};
    mask_ = {};
    auto const place = positions(sequences, queries);
    // Both draw the same lengths, from equal engines.
    auto const engine = engine_;
    auto const own_serials = own_share(annulus::Side::query, serials);
    engine_ = engine;
    auto const own_places = own_share(annulus::Side::query, place);
    auto const q = rows_of(0, own_serials, heads(), one_.shape.head_dim);
    auto const ids = documents(own_serials);
    auto const result = attention_.prefill(cache_, sequences, q, operands(offsets, ids));
    compare(sequences, own_serials, own_places, queries, offsets, result);
  }

  Index heads() const { return one_.group * one_.shape.kv_heads; }

  template <class Result>
  void compare(Sequences const& sequences, std::vector<std::vector<Index>> const& query_serials,
               std::vector<std::vector<Index>> const& places, Index queries, std::vector<Index> const& offsets,
               Result const& result) {
    for (std::size_t b = 0; b < sequences.size(); ++b) {
      auto const& keys = rows_.at(sequences[b]);
      Index const offset = offsets.empty() ? static_cast<Index>(keys.size()) - queries : offsets[b];
      for (std::size_t i = 0; i < places[b].size(); ++i)
        for (Index head = 0; head < heads(); ++head)
          compare_row(static_cast<Index>(b), static_cast<Index>(i), head, query_serials[b][i], offset + places[b][i],
                      keys, result);
    }
  }

  template <class Result>
  void compare_row(Index b, Index i, Index head, Index query_serial, Index position, std::vector<Index> const& keys,
                   Result const& result) {
    Index const kv_head = head / one_.group, dim = one_.shape.head_dim;
    double const scale = one_.options.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(dim)));
    double const cap = one_.options.logit_softcap;
    annulus::Dropout const& dropout = one_.options.dropout;
    double const keep_scale = 1 / (1 - dropout.probability);
    double sum = 0;
    std::vector<double> values(static_cast<std::size_t>(one_.shape.value_dim));
    for (std::size_t j = 0; j < keys.size(); ++j) {
      auto const key = static_cast<Index>(j);
      if (!one_.options.mask.visible(position, key) || !Predicate{}(b, head, position, key)) continue;
      if (!one_.options.block_mask.visible(position, key)) continue;
      if (mask_.size() > 0 && !mask_at(i, key)) continue;
      if (Id const id = document(query_serial);
          one_.shape.document_ids && (id <= 0 || id != document(keys[j])))
        continue;
      double logit = 0;
      for (Index d = 0; d < dim; ++d) logit += element(0, query_serial, head, d) * element(0, keys[j], kv_head, d);
      logit *= scale;
      if (cap > 0) logit = cap * std::tanh(logit / cap);
      if (bias_.size() > 0)
        logit += static_cast<double>(static_cast<A>(bias_(per_head_ ? 0 : b, per_head_ ? head : 0, i, key)));
      sum += std::exp(logit);
      if (!oracle_dropout_keeps(dropout.probability, dropout.seed, b, head, position, key)) continue;
      for (std::size_t d = 0; d < values.size(); ++d)
        values[d] += keep_scale * std::exp(logit) * element(1, keys[j], kv_head, static_cast<Index>(d));
    }
    double const total = sum + (one_.sinks ? std::exp(static_cast<double>(sinks_.data()[head])) : 0);
    double const lse = total == 0 ? -std::numeric_limits<double>::infinity() : std::log(total);
    auto const seen_lse = static_cast<double>(result.lse(b, head, i));
    double error = lse == seen_lse ? 0 : std::abs(lse - seen_lse);
    for (std::size_t d = 0; d < values.size(); ++d) {
      double const expected = total == 0 ? 0 : values[d] / total;
      auto const output = static_cast<double>(static_cast<A>(result.output(b, i, head, static_cast<Index>(d))));
      error = larger_error(error, std::abs(expected - output));
    }
    ++compared_rows_;
    // Weights of kept pairs, and so their rounding errors, are enlarged.
    if (!(error <= keep_scale * one_.tolerance))
      complaint_ = "row " + std::to_string(i) + " of item " + std::to_string(b) + " at position " +
                   std::to_string(position) + " of " + std::to_string(keys.size()) + " keys has the error " +
                   annulus::detail::message_of(error);
    largest_error_ = larger_error(largest_error_, error);
  }

  /// All ranks must have the bits of this one.
  template <class Result>
  void compare_bits(Result const& result) {
    auto const bytes = [](auto const& tensor) {
      return std::as_bytes(std::span(tensor.data(), static_cast<std::size_t>(tensor.size())));
    };
    std::uint64_t const mine =
        annulus::detail::digest_of(bytes(result.lse), annulus::detail::digest_of(bytes(result.output)));
    std::vector<std::uint64_t> all(static_cast<std::size_t>(ring_.size()));
    ring_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    for (std::uint64_t one : all)
      if (one != mine) complaint_ = "the ranks have different bits";
  }

  Ring& ring_;
  CachedCase one_;
  annulus::KvCache<T, B> cache_;
  Attention attention_;
  Eigen::Tensor<A, 2, Eigen::RowMajor> sinks_;
  Tensor bias_;
  Eigen::Tensor<std::uint8_t, 4, Eigen::RowMajor> mask_;
  bool per_head_ = false;  ///< the bias differs between heads, not between batch items
  std::mt19937 engine_;
  std::map<Index, std::vector<Index>> rows_;  ///< serial numbers of the rows of each sequence
  Index next_serial_ = 0;
  std::string what_, complaint_;
  double largest_error_ = 0;
  Index compared_rows_ = 0, refused_ = 0;
};

}  // namespace annulus_test
