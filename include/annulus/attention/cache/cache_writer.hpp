#pragma once
// Writes new rows into the pages of a cache: rows that every rank has, without a message, or rows that are sharded,
// each of which is sent once at most.

#include <array>
#include <span>

#include "annulus/attention/cache/cached_call.hpp"
#include "annulus/ring/executor.hpp"

namespace annulus::detail {

/// The rows of one call, and the pages that take them. As a pass: packs rows for another rank, and writes those that
/// have arrived.
template <Communicator C, Backend B, class T>
class CacheWriter {
 public:
  using Space = typename B::memory_space;
  using Rows = NewRows<T, Space>;

  /// The table has room for the rows.
  CacheWriter(C const& ring, B& backend, CacheCall<T, B> const& call, Rows const& rows, Slots<C, B> const& slots)
      : ring_(ring), call_(call), rows_(rows), slots_(slots), backend_(backend), pages_(call.cache, backend) {}

  /// Appends rows that every rank has.
  void write_all() {
    count_ = rows_.rows();
    pages_.extend(call_.sequences, count_);
    std::array const all{Segment{0, count_, 0, 1}};
    write_own(all);
  }
  /// Makes room for the rows of which every rank has a shard, and writes those of this rank that it holds itself.
  void begin_shards(ShardedRows const& sharded) {
    sharded_ = &sharded;
    count_ = sharded.total();
    pages_.extend(call_.sequences, count_);
    write_own(sharded.segments(ring_.rank()));
  }
  /// Number of rows that `source` passes and `target` holds.
  Index moving(Rank source, Rank target) const {
    Index rows = 0;
    for_each_piece(sharded_->segments(source), target, [&](std::size_t, auto const& piece) { rows += piece.count; });
    return rows;
  }

  void perform(Pack const& pack, Action const& action) {
    Rank const target = ring_neighbour(ring_.rank(), action.step + 1, ring_.size());
    Index first = 0;
    for_each_piece(sharded_->segments(ring_.rank()), target, [&](std::size_t b, auto const& piece) {
      copy_rows(backend_, rows_of(b, piece), rows_in(pack.into.slot, first, piece.count));
      first += piece.count;
    });
  }
  void perform(Write const& write, Action const& action) {
    Rank const source = ring_neighbour(ring_.rank(), -action.step - 1, ring_.size());
    Index first = 0;
    for_each_piece(sharded_->segments(source), ring_.rank(), [&](std::size_t b, auto const& piece) {
      pages_.write(call_.sequences[b], piece, rows_in(write.from.slot, first, piece.count).constant());
      first += piece.count;
    });
  }

 private:
  void write_own(std::span<Segment const> segments) {
    for_each_piece(segments, ring_.rank(), [&](std::size_t b, auto const& piece) {
      pages_.write(call_.sequences[b], piece, rows_of(b, piece));
    });
  }

  /// Calls function(b, piece) for the rows at `segments`, of those appended to each sequence, that `holder` holds.
  template <class Function>
  void for_each_piece(std::span<Segment const> segments, Rank holder, Function const& function) const {
    for (std::size_t b = 0; b < call_.sequences.size(); ++b) {
      Index const first = call_.cache.length(call_.sequences[b]) - count_;
      pages_.for_each_piece(call_.sequences[b], first, segments, [&](Rank rank, auto const& piece) {
        if (rank == holder) function(b, piece);
      });
    }
  }

  template <class Piece>
  CacheRows<T const, Space> rows_of(std::size_t b, Piece const& piece) const {
    return rows_.all().slice(axis::batch, static_cast<Index>(b), 1).slice(axis::sequence, piece.row, piece.count);
  }
  /// Rows of a message.
  CacheRows<T, Space> rows_in(int slot, Index first, Index count) const {
    SlotView<Space> const rows = slots_[{slot, {first, first + count}}];
    CacheRows<T, Space> result{rows.template view<T>(Part::k), rows.template view<T>(Part::v)};
    if (call_.cache.shape().document_ids) result.ids = rows.template document_ids<std::int32_t>();
    return result;
  }

  C const& ring_;
  CacheCall<T, B> const& call_;
  Rows const& rows_;
  Slots<C, B> const& slots_;
  B& backend_;
  CachePages<T, B> pages_;
  ShardedRows const* sharded_ = nullptr;
  Index count_ = 0;
};

}  // namespace annulus::detail
