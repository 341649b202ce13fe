#pragma once
// Pages of a KvCache in the memory of one rank: new rows are written to them, and parts with few other
// pages between them are read.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "annulus/attention/kv_cache.hpp"
#include "annulus/sharding/segment.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// The rows of a sequence among those of a part: runs that are adjacent in memory, which ascend.
class CacheRuns {
 public:
  /// Rows that are consecutive in the sequence, too, form one segment; local rows count from the first one of the run.
  struct Run {
    Index first_row;  ///< in the part
    std::size_t segments_begin, segments_end;
  };

  void clear() {
    runs_.clear();
    segments_.clear();
    end_ = -1;
  }
  /// Adds the rows from `row` of the part on, which are at consecutive positions from `position` on.
  void append(Index row, Index position, Index count) {
    if (row != end_) {
      runs_.push_back({row, segments_.size(), segments_.size()});
      segments_.push_back({0, count, position, 1});
    } else {
      append_segment(segments_, count, position, 1);
    }
    runs_.back().segments_end = segments_.size();
    end_ = row + count;
  }

  std::span<Run const> runs() const { return runs_; }
  std::span<Segment const> segments(Run const& run) const {
    return std::span(segments_).subspan(run.segments_begin, run.segments_end - run.segments_begin);
  }

 private:
  std::vector<Run> runs_;
  std::vector<Segment> segments_;
  Index end_ = -1;  ///< row after the last run
};

/// The pages of a cache on this rank.
template <class T, class B>
class CachePages {
 public:
  using Space = typename B::memory_space;

  /// `backend` copies rows; the caller synchronizes it.
  CachePages(KvCache<T, B>& cache, B& backend) : cache_(cache), backend_(backend) {}

  /// Equal on all ranks, and different from that of every other cache of a ring with the same first rank.
  static Index number(KvCache<T, B> const& cache) { return cache.number_; }
  static Rank rank(KvCache<T, B> const& cache) { return cache.rank_; }  ///< that holds the pages

  /// Makes room for `count` rows more in each of these sequences, which PageTable::require_room has accepted.
  void extend(std::span<Index const> sequences, Index count) {
    if (count == 0) return;
    for (Index sequence : sequences)
      if (auto const copy = cache_.table_.own_last_page(sequence); copy && copy->rank == cache_.rank_) {
        backend_.copy(TensorView<T const, 4, Space>(keys(copy->from, copy->rows)), keys(copy->to, copy->rows));
        backend_.copy(TensorView<T const, 4, Space>(values(copy->from, copy->rows)), values(copy->to, copy->rows));
        number_rows(copy->to, cache_.length(sequence) / page_rows());
      }
    for (Index sequence : sequences) {
      auto const before = cache_.table_.pages(sequence).size();
      cache_.table_.append(sequence, count);
      auto const pages = cache_.table_.pages(sequence);
      for (std::size_t p = before; p < pages.size(); ++p)
        if (pages[p].rank == cache_.rank_) number_rows(pages[p].slot, static_cast<Index>(p));
    }
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
    backend_.copy(k, keys(slot, page_rows()).slice(axis::sequence, row, piece.count));
    backend_.copy(v, values(slot, page_rows()).slice(axis::sequence, row, piece.count));
  }

  /// Calls function(k, v, positions) for each part of the sequence: k and v [1, rows, kv_heads, dim], and the positions
  /// of the rows. `runs` then has the rows that are the sequence's; the others, of other pages, must not be read.
  template <class Function>
  void for_each_part(Index sequence, CacheRuns& runs, Function&& function) const {
    auto const pages = cache_.table_.pages(sequence);
    Index const length = cache_.length(sequence);
    Index slot = 0, end = 0, used = 0;  // of the part: first slot, rows from there on, those of the sequence
    auto const end_part = [&] {
      if (used == 0) return;
      function(TensorView<T const, 4, Space>(keys(slot, end)), TensorView<T const, 4, Space>(values(slot, end)),
               std::span<Index const>(cache_.positions_)
                   .subspan(static_cast<std::size_t>(slot * page_rows()), static_cast<std::size_t>(end)));
      used = 0;
    };
    for (std::size_t p = 0; p < pages.size(); ++p) {
      if (pages[p].rank != cache_.rank_) continue;
      Index const begin = static_cast<Index>(p) * page_rows(), count = std::min(page_rows(), length - begin);
      Index first = (pages[p].slot - slot) * page_rows();
      if (used > 0 && (first < end || first + count > most_rows_of_part * (used + count))) end_part();
      if (used == 0) {
        runs.clear();
        slot = pages[p].slot;
        first = 0;
      }
      runs.append(first, begin, count);
      end = first + count;
      used += count;
    }
    end_part();
  }

 private:
  /// Rows of a part for each row of the sequence. One step reads several runs with small gaps: at the end of each step
  /// the threads wait for each other.
  static constexpr Index most_rows_of_part = 2;

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
  B& backend_;
};

}  // namespace annulus::detail
