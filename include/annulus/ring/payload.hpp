#pragma once
// Payload: rows stored in a buffer of this rank or in another rank's memory, with views and byte runs of them.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/digest.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/mask/mask.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// A range of rows in the parts of a layout. A part is a dense array [rows, batch, heads, dim].
template <class Space>
class Payload {
 public:
  using memory_space = Space;
  template <class T>
  using PartList = ShortList<T, PayloadLayout::max_parts>;

  /// Provides storage for `capacity` rows. `allocator`: a backend, or a communicator whose ranks share memory. A buffer
  /// that is large enough is kept.
  template <class Allocator>
  void reserve(Allocator& allocator, PayloadLayout const& layout, Index capacity) {
    layout_ = layout;
    Index const bytes = layout.buffer_bytes(capacity);
    if (buffer_bytes_ < bytes) {
      // Freed first, so that the allocator can reuse its memory.
      buffer_ = nullptr;
      buffer_bytes_ = 0;
      auto buffer = std::make_shared<decltype(allocator.allocate(bytes))>(allocator.allocate(bytes));
      first_ = buffer->data();
      buffer_bytes_ = buffer->size();
      buffer_ = std::move(buffer);
    }
    parts_.clear();
    for (std::size_t p = 0; p < layout.parts.size(); ++p) parts_.push_back(first_ + layout.part_offset(p, capacity));
    checksums_ = first_ + layout.part_offset(layout.parts.size(), capacity);
  }

  /// Rebinds this payload to read-only memory owned by another rank: one run per part, each with the bytes of `rows`,
  /// then the checksum, if used.
  void bind_to(WindowRuns runs, PayloadLayout const& layout, RowRange rows) {
    layout_ = layout;
    rows_ = rows;
    parts_.clear();
    for (std::size_t p = 0; p < layout.parts.size(); ++p) parts_.push_back(const_cast<std::byte*>(runs[p].data()));
    checksums_ = has_checksum(rows) ? const_cast<std::byte*>(runs.back().data()) : nullptr;
  }
  /// Byte length of each run of `rows`: one per part, then the checksum, if used.
  static PartList<std::size_t> run_lengths(PayloadLayout const& layout, RowRange rows) {
    PartList<std::size_t> lengths;
    for (PartLayout const& part : layout.parts)
      lengths.push_back(static_cast<std::size_t>(rows.size() * part.row_bytes()));
    if (layout.checksums > 0 && !rows.empty()) lengths.push_back(sizeof(std::uint64_t));
    return lengths;
  }

  /// Sets the rows of a shard that the buffer holds.
  void hold(RowRange rows) { rows_ = rows; }
  RowRange rows() const { return rows_; }
  PayloadLayout const& layout() const { return layout_; }
  /// First byte of the buffer that reserve made; null if there is none.
  std::byte* buffer() const { return first_; }
  /// Size of that buffer in bytes; kept buffers may be larger than the last reserve asked for.
  Index buffer_bytes() const { return buffer_bytes_; }

  /// View [batch, rows, heads, dim] of a part, all rows held. T has the element size of the layout. Throws Error, as
  /// all views, for a part that the payload does not have.
  template <class T>
  TensorView<T, 4, Space> view(Part part) const {
    auto const& [name, batch, heads, dim, bytes] = layout_.parts[layout_.index_of(part)];
    return {data<T>(part), {batch, rows_.size(), heads, dim}, {heads * dim, batch * heads * dim, dim, 1}};
  }
  /// View [batch, heads, rows] of a row statistic.
  template <class T>
  TensorView<T, 3, Space> statistics(Part part) const {
    auto const& [name, batch, heads, dim, bytes] = layout_.parts[layout_.index_of(part)];
    return {data<T>(part), {batch, heads, rows_.size()}, {heads, 1, batch * heads}};
  }
  /// View [batch, rows] of the document ids.
  template <class T>
  TensorView<T, 2, Space> document_ids() const {
    Index const batch = layout_.parts[layout_.index_of(Part::document_ids)].batch;
    return {data<T>(Part::document_ids), {batch, rows_.size()}, {1, batch}};
  }
  /// First element of a part.
  template <class T>
  T* data(Part part) const {
    return reinterpret_cast<T*>(parts_[layout_.index_of(part)]);
  }

  /// Checksum slots: `leaving` for rows sent, `arriving` for rows received. Rows that several ranks read use one slot
  /// per reader, from 0.
  static constexpr Index leaving = 0, arriving = 1;

  /// Byte runs of `rows` (a subset of the rows held): one per part, then the checksum, if used, which is computed and
  /// stored in `slot`. `seed` identifies call, step and channel, so rows of another exchange fail the check.
  PartList<std::span<std::byte const>> outgoing(RowRange rows, std::uint64_t seed, Index slot = leaving) const {
    PartList<std::span<std::byte const>> runs;
    for (std::size_t p = 0; p < layout_.parts.size(); ++p) runs.push_back(run(p, rows));
    if (has_checksum(rows)) {
      std::uint64_t const sum = checksum_of(rows, seed);
      std::memcpy(checksum_run(slot).data(), &sum, sizeof sum);
      runs.push_back(checksum_run(slot));
    }
    return runs;
  }
  /// Byte runs that receive `rows` (a subset of the rows held): one per part, then the checksum, if used, in `slot`.
  PartList<std::span<std::byte>> incoming(RowRange rows, Index slot = arriving) const {
    PartList<std::span<std::byte>> runs;
    for (std::size_t p = 0; p < layout_.parts.size(); ++p) runs.push_back(run(p, rows));
    if (has_checksum(rows)) runs.push_back(checksum_run(slot));
    return runs;
  }
  /// True if no checksums are used, or if the one in `slot` matches `rows`.
  bool is_intact(RowRange rows, std::uint64_t seed, Index slot) const {
    if (!has_checksum(rows)) return true;
    std::uint64_t sum = 0;
    std::memcpy(&sum, checksum_run(slot).data(), sizeof sum);
    return sum == checksum_of(rows, seed);
  }

 private:
  std::span<std::byte> run(std::size_t p, RowRange rows) const {
    if (rows.empty()) return {};
    Index const bytes = layout_.parts[p].row_bytes();
    return {parts_[p] + (rows.begin - rows_.begin) * bytes, static_cast<std::size_t>(rows.size() * bytes)};
  }

  /// Only in host memory: RingAttention refuses Options::checked elsewhere.
  bool has_checksum(RowRange rows) const {
    return std::same_as<Space, HostMemory> && layout_.checksums > 0 && !rows.empty();
  }
  std::uint64_t checksum_of(RowRange rows, std::uint64_t seed) const {
    std::uint64_t sum = seed;
    if constexpr (std::same_as<Space, HostMemory>)
      for (std::size_t p = 0; p < layout_.parts.size(); ++p) sum = digest_of(run(p, rows), sum);
    return sum;
  }
  std::span<std::byte> checksum_run(Index slot) const {
    constexpr Index bytes = sizeof(std::uint64_t);
    return {checksums_ + slot * bytes, static_cast<std::size_t>(bytes)};
  }

  std::shared_ptr<void> buffer_;
  std::byte* first_ = nullptr;
  Index buffer_bytes_ = 0;
  PartList<std::byte*> parts_;
  std::byte* checksums_ = nullptr;
  PayloadLayout layout_{};
  RowRange rows_{};
};

}  // namespace annulus::detail
