#pragma once
// Pages of a KvCache in the memory of one rank: new rows are written to them, and parts with few other
// pages between them are read.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "annulus/attention/cache/kv_cache.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/sharding/segment.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// Rows of other pages that the backend lets a part have between those of the sequence.
enum class CacheGaps {
  none,
  few,  ///< not more than the sequence has in it
  any,  ///< also rows of the sequence in another order
};

/// The rows of a sequence among those of a part: runs that are adjacent in memory, which ascend unless gaps are `any`.
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

/// Rows of a cache, or for it: k and v [batch, rows, kv_heads, dim], and document ids [batch, rows], which are without
/// data if the cache has none.
template <class T, class Space>
struct CacheRows {
  using Id = std::conditional_t<std::is_const_v<T>, std::int32_t const, std::int32_t>;

  TensorView<T, 4, Space> k, v;
  TensorView<Id, 2, Space> ids{};

  CacheRows slice(std::size_t axis, Index first, Index count) const {
    return {k.slice(axis, first, count), v.slice(axis, first, count), ids.data() ? ids.slice(axis, first, count) : ids};
  }
  CacheRows<T const, Space> constant() const { return {k, v, ids}; }
};

/// Starts copying rows; the caller synchronizes the backend.
template <class B, class T, class Space>
void copy_rows(B& backend, CacheRows<T const, Space> const& from, CacheRows<T, Space> const& to) {
  backend.copy(from.k, to.k);
  backend.copy(from.v, to.v);
  if (to.ids.data()) backend.copy(from.ids, to.ids);
}

/// The range of these ids; of ids that are not in host memory, that of all.
template <class Space>
DocumentIdRange range_of(TensorView<std::int32_t const, 2, Space> const& ids) {
  if constexpr (std::same_as<Space, HostMemory>) {
    DocumentIdRange range;
    for_each_element(ids, ids, [&](std::int32_t const& id, std::int32_t const&) {
      if (id > 0) range.add({id, id});
    });
    return range;
  } else {
    return {1, std::numeric_limits<std::int32_t>::max()};
  }
}

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
        copy_rows(backend_, rows_of(copy->from, copy->rows).constant(), rows_of(copy->to, copy->rows));
        number_rows(copy->to, cache_.length(sequence) / page_rows());
        if (has_ids()) ids_of_page(copy->to) = ids_of_page(copy->from);
      }
    for (Index sequence : sequences) {
      auto const before = cache_.table_.pages(sequence).size();
      cache_.table_.append(sequence, count);
      auto const pages = cache_.table_.pages(sequence);
      for (std::size_t p = before; p < pages.size(); ++p)
        if (pages[p].rank == cache_.rank_) {
          number_rows(pages[p].slot, static_cast<Index>(p));
          if (has_ids()) ids_of_page(pages[p].slot) = {};
        }
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
  /// Copies piece.count rows of one batch item to the page of this rank that holds their positions.
  void write(Index sequence, Piece const& piece, CacheRows<T const, Space> const& rows) {
    Index const page = piece.position / page_rows(), row = piece.position % page_rows();
    Index const slot = cache_.table_.pages(sequence)[static_cast<std::size_t>(page)].slot;
    copy_rows(backend_, rows, rows_of(slot, page_rows()).slice(axis::sequence, row, piece.count));
    if (has_ids()) ids_of_page(slot).add(range_of(rows.ids));
  }

  /// Calls function(rows, positions) for each part of the sequence, without pages that have no id of `wanted` if the
  /// cache has document ids. `runs` then has the rows that are the sequence's; the others, of other pages, must not be
  /// read.
  template <class Function>
  void for_each_part(Index sequence, DocumentIdRange const& wanted, CacheGaps gaps, CacheRuns& runs,
                     Function&& function) const {
    auto const pages = cache_.table_.pages(sequence);
    Index const length = cache_.length(sequence);
    Index slot = 0, end = 0, used = 0;  // of the part: first slot, rows from there on, those of the sequence
    auto const end_part = [&] {
      if (used == 0) return;
      function(rows_of(slot, end).constant(),
               std::span<Index const>(cache_.positions_)
                   .subspan(static_cast<std::size_t>(slot * page_rows()), static_cast<std::size_t>(end)));
      used = 0;
    };
    for (std::size_t p = 0; p < pages.size(); ++p) {
      if (pages[p].rank != cache_.rank_ || (has_ids() && !ids_of_page(pages[p].slot).meets(wanted))) continue;
      Index const begin = static_cast<Index>(p) * page_rows(), count = std::min(page_rows(), length - begin);
      Index first = (pages[p].slot - slot) * page_rows();
      if (used > 0 && gaps != CacheGaps::any &&
          (first < end || first + count > (gaps == CacheGaps::few ? 2 : 1) * (used + count)))
        end_part();
      if (used == 0) {
        runs.clear();
        slot = gaps == CacheGaps::any ? 0 : pages[p].slot;
        first = (pages[p].slot - slot) * page_rows();
        end = 0;
      }
      runs.append(first, begin, count);
      end = std::max(end, first + count);
      used += count;
    }
    end_part();
  }

  /// Rows at consecutive positions, all on this rank: in place if their pages are adjacent, else copied to `gathered`.
  /// Nothing if the cache has document ids, and none of the pages has one of `wanted`.
  std::optional<CacheRows<T const, Space>> rows_at(Index sequence, RowRange positions, DocumentIdRange const& wanted,
                                                   CacheRows<T, Space> const& gathered) const {
    Index const first = positions.begin / page_rows(), end = ceil_divide(positions.end, page_rows());
    auto const pages =
        cache_.table_.pages(sequence).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
    auto const is_wanted = [&](PagePlace const& page) { return ids_of_page(page.slot).meets(wanted); };
    if (has_ids() && std::none_of(pages.begin(), pages.end(), is_wanted)) return {};
    auto const is_apart = [](PagePlace const& a, PagePlace const& b) { return b.slot != a.slot + 1; };
    Index const skipped = positions.begin - first * page_rows();
    if (std::adjacent_find(pages.begin(), pages.end(), is_apart) == pages.end())
      return rows_of(pages.front().slot, skipped + positions.size())
          .slice(axis::sequence, skipped, positions.size())
          .constant();
    for (Index row = 0; row < positions.size();) {
      Index const position = positions.begin + row, in_page = position % page_rows();
      Index const count = std::min(page_rows() - in_page, positions.size() - row);
      Index const slot = pages[static_cast<std::size_t>(position / page_rows() - first)].slot;
      copy_rows(backend_, rows_of(slot, page_rows()).slice(axis::sequence, in_page, count).constant(),
                gathered.slice(axis::sequence, row, count));
      row += count;
    }
    return gathered.slice(axis::sequence, 0, positions.size()).constant();
  }

 private:
  Index page_rows() const { return cache_.shape_.page_rows; }
  bool has_ids() const { return cache_.shape_.document_ids; }
  DocumentIdRange& ids_of_page(Index slot) const { return cache_.ids_of_pages_[static_cast<std::size_t>(slot)]; }

  /// Rows from the first one of a slot on; those of the next slots follow.
  CacheRows<T, Space> rows_of(Index slot, Index rows) const {
    CacheRows<T, Space> result{at(*cache_.keys_, slot, rows, cache_.shape_.head_dim),
                               at(*cache_.values_, slot, rows, cache_.shape_.value_dim)};
    if (has_ids()) result.ids = {reinterpret_cast<std::int32_t*>(cache_.ids_->data()) + slot * page_rows(), {1, rows}};
    return result;
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
