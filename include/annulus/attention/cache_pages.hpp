#pragma once
// Pages of a KvCache in the memory of one rank: new rows are written to them, and runs of adjacent ones are read.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "annulus/attention/kv_cache.hpp"
#include "annulus/sharding/segment.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// The pages of a cache on this rank.
template <class T, class B>
class CachePages {
 public:
  using Space = typename B::memory_space;

  explicit CachePages(KvCache<T, B>& cache) : cache_(cache) {}

  /// Equal on all ranks, and different for each cache that the first rank of the ring has made.
  Index number() const { return cache_.number_; }
  Rank rank() const { return cache_.rank_; }  ///< that holds these pages

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
      append_segment(segments, count, begin, 1);
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

  KvCache<T, B>& cache_;
};

}  // namespace annulus::detail
