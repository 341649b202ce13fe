#pragma once
// KvCache: keys and values of sequences, in pages spread over the ranks of a ring.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/attention/agreement.hpp"
#include "annulus/attention/page_table.hpp"
#include "annulus/backend/cpu/cpu.hpp"
#include "annulus/sharding/segment.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// Extents of a cache, equal on all ranks.
struct CacheShape {
  Index kv_heads = 1;      ///< heads of k and v
  Index head_dim = 1;      ///< elements of a row of k
  Index value_dim = 1;     ///< elements of a row of v
  Index pages = 1;         ///< of each rank
  Index page_rows = 1024;  ///< rows of a page; shorter runs of rows take slower kernels

  bool operator==(CacheShape const&) const = default;
};

/// The keys and values of sequences of different lengths, for CachedAttention (cached_attention.hpp), which adds rows to
/// them. The rows of a sequence are at positions 0, 1, 2, ...; pages of page_rows positions lie on the ranks with most
/// room, so that each rank holds about the same share of a long sequence.
///
/// All ranks make one together and call its functions alike. create, fork, truncate and release send nothing: a rank
/// that was called differently is found by the next call of CachedAttention, which then throws on all ranks. They throw
/// ShapeError, and change nothing, for a sequence that does not exist, or a length that it does not have.
/// The backend must outlive the cache.
template <Scalar T, Backend B = CpuBackend>
class KvCache {
 public:
  using Space = typename B::memory_space;  ///< of keys and values

  /// Allocates the pages of this rank. Collective. Throws, on all ranks, ShapeError for extents that are not positive or
  /// too large, CommunicationError if they differ between ranks, and Error if a rank has not enough memory.
  template <Communicator C>
  requires std::same_as<typename C::memory_space, Space> KvCache(C& ring, B& backend, CacheShape const& shape)
      : backend_(&backend), shape_(shape), rank_(ring.rank()), table_(ring.size(), 1, 1) {
    static std::atomic<Index> made{0};
    detail::CallRecord record;
    record.add_named("collective operation", 4, "KvCache");
    record.add_named("element type", static_cast<Index>(data_type<T>), name_of(data_type<T>));
    record.add("kv_heads", shape.kv_heads);
    record.add("head_dim", shape.head_dim);
    record.add("value_dim", shape.value_dim);
    record.add("pages", shape.pages);
    record.add("page_rows", shape.page_rows);
    // Rank 0 numbers the cache; this field of the record is not compared.
    record.local_queries = made.fetch_add(1, std::memory_order_relaxed);
    record.fill_or_refuse([&](detail::CallRecord&) { allocate(ring.size()); });
    number_ = detail::agree(ring, record).front().local_queries;
  }

  CacheShape const& shape() const { return shape_; }                      ///< as given
  PageTable const& table() const { return table_; }                       ///< the pages of all sequences
  Index length(Index sequence) const { return table_.length(sequence); }  ///< number of rows of a sequence

  Index create() { return table_.create(); }  ///< a new, empty sequence; its number is not used again
  /// A new sequence with the rows of another one. They share pages; a shared page that is partly filled is copied by the
  /// first append that writes into it.
  Index fork(Index sequence) { return table_.fork(sequence); }
  /// Drops the rows from position `length` on.
  void truncate(Index sequence, Index length) { table_.truncate(sequence, length); }
  /// Ends a sequence; pages that no other sequence shares become free.
  void release(Index sequence) { table_.release(sequence); }

  /// Bytes of keys and values that this rank holds room for.
  Index bytes() const { return keys_->size() + values_->size(); }

  /// Rows and pages, for CachedAttention.
  class Access;

 private:
  void allocate(int ranks) {
    auto const& s = shape_;
    detail::check<ShapeError>(
        s.kv_heads >= 1 && s.head_dim >= 1 && s.value_dim >= 1 && s.pages >= 1 && s.page_rows >= 1, "a cache of ",
        s.pages, " pages of ", s.page_rows, " rows, kv_heads ", s.kv_heads, ", head_dim ", s.head_dim, ", value_dim ",
        s.value_dim, "; positive numbers are accepted");
    std::array const keys{s.pages, s.page_rows, s.kv_heads, s.head_dim};
    std::array const values{s.pages, s.page_rows, s.kv_heads, s.value_dim};
    detail::require_countable("the keys of a cache", keys, sizeof(T) * static_cast<std::size_t>(ranks));
    detail::require_countable("the values of a cache", values, sizeof(T) * static_cast<std::size_t>(ranks));
    auto const bytes = [](auto const& e) { return e[0] * e[1] * e[2] * e[3] * static_cast<Index>(sizeof(T)); };
    table_ = PageTable(ranks, s.pages, s.page_rows);
    keys_.emplace(backend_->allocate(bytes(keys)));
    values_.emplace(backend_->allocate(bytes(values)));
    positions_.resize(static_cast<std::size_t>(s.pages * s.page_rows));
  }

  B* backend_;
  CacheShape shape_;
  Rank rank_;
  PageTable table_;
  Index number_ = 0;
  std::optional<typename B::Buffer> keys_, values_;  ///< [pages * page_rows, kv_heads, dim]
  std::vector<Index> positions_;                     ///< of each row; the same for all sequences that share a page
};

template <Scalar T, Backend B>
class KvCache<T, B>::Access {
 public:
  explicit Access(KvCache& cache) : cache_(cache) {}

  Index number() const { return cache_.number_; }  ///< equal on all ranks, and different for each cache of a process

  /// Makes room for `count` rows more in each of these sequences, which PageTable::require_room has accepted.
  void extend(std::span<Index const> sequences, Index count) {
    if (count == 0) return;
    for (Index sequence : sequences)
      if (auto const copy = cache_.table_.own_last_page(sequence); copy && copy->rank == cache_.rank_) {
        cache_.backend_->copy(TensorView<T const, 4, Space>(keys(copy->from, copy->rows)), keys(copy->to, copy->rows));
        cache_.backend_->copy(TensorView<T const, 4, Space>(values(copy->from, copy->rows)),
                              values(copy->to, copy->rows));
        number_rows(copy->to, cache_.length(sequence) / page_rows());
      }
    for (Index sequence : sequences) {
      auto const before = cache_.table_.pages(sequence).size();
      cache_.table_.append(sequence, count);
      auto const pages = cache_.table_.pages(sequence);
      for (std::size_t p = before; p < pages.size(); ++p)
        if (pages[p].rank == cache_.rank_) number_rows(pages[p].slot, static_cast<Index>(p));
    }
    cache_.backend_->synchronize();
  }

  /// Rows at consecutive positions within one page.
  struct Piece {
    Index row, position, count;  ///< first of the rows that are written, its position, their number
  };
  /// Calls function(rank, piece) for the rows at these segments of the positions from `first` on, in row order.
  template <class Function>
  void for_each_piece(Index sequence, Index first, std::span<Segment const> segments, Function&& function) const {
    auto const pages = cache_.table_.pages(sequence);
    for (Segment const& segment : segments)
      for (Index i = 0; i < segment.length;) {
        Index const position = first + segment.global_begin + i * segment.global_stride;
        Index const page = position / page_rows(), left = (page + 1) * page_rows() - position;
        Index const count = segment.global_stride == 1 ? std::min(left, segment.length - i) : 1;
        function(pages[static_cast<std::size_t>(page)].rank, Piece{segment.local_begin + i, position, count});
        i += count;
      }
  }
  /// Copies rows [1, piece.count, kv_heads, dim] to the page of this rank that holds their positions.
  void write(Index sequence, Piece const& piece, TensorView<T const, 4, Space> k, TensorView<T const, 4, Space> v) {
    Index const page = piece.position / page_rows(), row = piece.position % page_rows();
    Index const slot = cache_.table_.pages(sequence)[static_cast<std::size_t>(page)].slot;
    cache_.backend_->copy(k, keys(slot, page_rows()).slice(axis::sequence, row, piece.count));
    cache_.backend_->copy(v, values(slot, page_rows()).slice(axis::sequence, row, piece.count));
  }

  /// Calls function(k, v, positions, segments) for each run of pages of the sequence that are adjacent in the memory of
  /// this rank: k and v [1, rows, kv_heads, dim], and the positions of the rows. `segments` is storage.
  template <class Function>
  void for_each_run(Index sequence, std::vector<Segment>& segments, Function&& function) const {
    auto const pages = cache_.table_.pages(sequence);
    Index const length = cache_.length(sequence);
    Index slot = 0, rows = 0;
    segments.clear();
    auto const end_run = [&] {
      if (rows == 0) return;
      function(TensorView<T const, 4, Space>(keys(slot, rows)), TensorView<T const, 4, Space>(values(slot, rows)),
               std::span<Index const>(cache_.positions_)
                   .subspan(static_cast<std::size_t>(slot * page_rows()), static_cast<std::size_t>(rows)),
               std::span<Segment const>(segments));
      segments.clear();
      rows = 0;
    };
    for (std::size_t p = 0; p < pages.size(); ++p) {
      if (pages[p].rank != cache_.rank_) continue;
      if (pages[p].slot != slot + rows / page_rows()) end_run();
      if (rows == 0) slot = pages[p].slot;
      Index const begin = static_cast<Index>(p) * page_rows(), count = std::min(page_rows(), length - begin);
      detail::append_segment(segments, count, begin, 1);
      rows += count;
    }
    end_run();
  }

 private:
  Index page_rows() const { return cache_.shape_.page_rows; }

  /// Rows from the first one of a slot on; those of the next slots follow.
  TensorView<T, 4, Space> keys(Index slot, Index rows) const {
    return at(*cache_.keys_, slot, rows, cache_.shape_.head_dim);
  }
  TensorView<T, 4, Space> values(Index slot, Index rows) const {
    return at(*cache_.values_, slot, rows, cache_.shape_.value_dim);
  }
  TensorView<T, 4, Space> at(typename B::Buffer const& buffer, Index slot, Index rows, Index dim) const {
    T* const first = reinterpret_cast<T*>(buffer.data()) + slot * page_rows() * cache_.shape_.kv_heads * dim;
    return {first, {1, rows, cache_.shape_.kv_heads, dim}};
  }
  void number_rows(Index slot, Index page) {
    for (Index row = 0; row < page_rows(); ++row)
      cache_.positions_[static_cast<std::size_t>(slot * page_rows() + row)] = page * page_rows() + row;
  }

  KvCache& cache_;
};

}  // namespace annulus
