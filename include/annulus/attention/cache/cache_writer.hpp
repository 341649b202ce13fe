#pragma once
// Writes new rows into the pages of a cache: rows that every rank has, without a message, or rows that are sharded,
// each of which is sent once at most.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "annulus/attention/cache/cached_call.hpp"
#include "annulus/ring/state_merge.hpp"

namespace annulus::detail {

/// The segments of all ranks, and their numbers of rows, for one side of a sharding; found again if the rows change.
class ShardedRows {
 public:
  /// `records`: of the ranks' calls. Throws ShapeError for lengths that the sharding does not accept.
  void find(Sharding const& sharding, Side side, std::span<CallRecord const> records) {
    auto const rows = [&](CallRecord const& r) { return side == Side::query ? r.local_queries : r.local_keys; };
    bool const known = lengths_.size() == records.size() && segments_.size() == records.size() &&
                       std::equal(records.begin(), records.end(), lengths_.begin(),
                                  [&](CallRecord const& r, Index length) { return rows(r) == length; });
    if (known) return;
    lengths_.clear();
    segments_.clear();
    for (CallRecord const& record : records) lengths_.push_back(rows(record));
    for (std::size_t r = 0; r < records.size(); ++r)
      segments_.push_back(sharding.segments(side, static_cast<Rank>(r), lengths_));
  }

  std::span<Index const> lengths() const { return lengths_; }
  Index total() const { return std::accumulate(lengths_.begin(), lengths_.end(), Index{0}); }
  std::span<Segment const> segments(Rank rank) const { return segments_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<Index> lengths_;
  std::vector<std::vector<Segment>> segments_;
};

/// Buffers of the messages are kept from call to call.
template <Communicator C, Backend B>
class CacheWriter {
 public:
  using Space = typename B::memory_space;

  Index bytes() const { return leaving_.size() + arriving_.size(); }  ///< of the buffers

  /// Appends rows that every rank has. The table has room for them.
  template <class T>
  void write(Rank rank, B& backend, CacheCall<T, B> const& call, NewRows<T, Space> const& rows) {
    Pages<T> pages(call.cache, backend);
    pages.extend(call.sequences, rows.rows());
    std::array const all{Segment{0, rows.rows(), 0, 1}};
    for_each_piece(call, pages, rows.rows(), all, rank, [&](std::size_t b, auto const& piece) {
      pages.write(call.sequences[b], piece, rows_of_piece(rows, b, piece));
    });
    backend.synchronize();
  }

  /// Appends the rows of which every rank has a shard. The table has room for them. Collective.
  template <class T>
  void write_shards(C& ring, B& backend, CacheCall<T, B> const& call, NewRows<T, Space> const& rows,
                    ShardedRows const& sharded, std::uint64_t number, bool checked) {
    Pages<T> pages(call.cache, backend);
    pages.extend(call.sequences, sharded.total());
    Rank const rank = ring.rank();
    int const ranks = ring.size();
    // Calls function(b, piece) for the rows that `source` passes and `target` holds.
    auto const for_each_moving = [&](Rank source, Rank target, auto const& function) {
      for_each_piece(call, pages, sharded.total(), sharded.segments(source), target, function);
    };
    for_each_moving(rank, rank, [&](std::size_t b, auto const& piece) {
      pages.write(call.sequences[b], piece, rows_of_piece(rows, b, piece));
    });
    CacheShape const& shape = call.cache.shape();
    auto const reserve = [&](MessageBuffer<B>& message, Rank source, Rank target) {
      Index moving = 0;
      for_each_moving(source, target, [&](std::size_t, auto const& piece) { moving += piece.count; });
      message.reserve(backend, Packed<T>::bytes(shape, moving), checked);
      return Packed<T>{message.template data<std::byte>(), shape, moving};
    };
    std::optional<TransferOf<C>> transfer;
    for (int hop = 1; hop < ranks; ++hop)
      exchange_in_step(ring, hop - 1, ranks - 1, [&] {
        Rank const target = ring_neighbour(rank, hop, ranks), source = ring_neighbour(rank, -hop, ranks);
        Packed<T> out = reserve(leaving_, rank, target), in = reserve(arriving_, source, rank);
        for_each_moving(rank, target, [&](std::size_t b, auto const& piece) {
          copy_rows(backend, rows_of_piece(rows, b, piece), out.next(piece.count));
        });
        backend.synchronize();
        std::uint64_t const seed = checksum_seed(number, Channel::prefetched, hop - 1);
        transfer.emplace(start_message(ring, Channel::prefetched, hop, &leaving_, &arriving_, seed));
        transfer->wait();
        transfer.reset();
        arriving_.require_intact(seed, Channel::prefetched, rank, source);
        for_each_moving(source, rank, [&](std::size_t b, auto const& piece) {
          pages.write(call.sequences[b], piece, in.next(piece.count).constant());
        });
        backend.synchronize();
      });
    backend.synchronize();
  }

 private:
  template <class T>
  using Pages = CachePages<T, B>;

  /// Rows in a message: all document ids, if the cache has them, all of k, all of v; next() gives the places of the
  /// next ones.
  template <class T>
  struct Packed {
    std::byte* data;
    CacheShape const& shape;
    Index total, first = 0;

    static Index bytes(CacheShape const& shape, Index rows) {
      Index const elements = rows * shape.kv_heads * (shape.head_dim + shape.value_dim);
      return bytes_of_ids(shape.document_ids, rows) + elements * static_cast<Index>(sizeof(T));
    }
    CacheRows<T, Space> next(Index rows) {
      Index const key = shape.kv_heads * shape.head_dim, value = shape.kv_heads * shape.value_dim;
      T* const elements = reinterpret_cast<T*>(data + bytes_of_ids(shape.document_ids, total));
      CacheRows<T, Space> result{{elements + first * key, {1, rows, shape.kv_heads, shape.head_dim}},
                                 {elements + total * key + first * value, {1, rows, shape.kv_heads, shape.value_dim}}};
      if (shape.document_ids) result.ids = {reinterpret_cast<std::int32_t*>(data) + first, {1, rows}};
      first += rows;
      return result;
    }
  };

  /// Calls function(b, piece) for the rows at `segments`, of `count` appended to each sequence, that `holder` holds.
  template <class T, class Function>
  static void for_each_piece(CacheCall<T, B> const& call, Pages<T> const& pages, Index count,
                             std::span<Segment const> segments, Rank holder, Function const& function) {
    for (std::size_t b = 0; b < call.sequences.size(); ++b) {
      Index const first = call.cache.length(call.sequences[b]) - count;
      pages.for_each_piece(call.sequences[b], first, segments, [&](Rank rank, auto const& piece) {
        if (rank == holder) function(b, piece);
      });
    }
  }

  template <class T, class Piece>
  static CacheRows<T const, Space> rows_of_piece(NewRows<T, Space> const& rows, std::size_t b, Piece const& piece) {
    return rows.all().of_item(static_cast<Index>(b)).slice(piece.row, piece.count);
  }

  MessageBuffer<B> leaving_, arriving_;
};

}  // namespace annulus::detail
