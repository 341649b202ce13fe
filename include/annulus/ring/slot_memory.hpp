#pragma once
// Slot memory: rows of named parts, in a buffer of this rank or in another rank's memory, with views and byte runs.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/core/digest.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/mask/mask.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// Memory of a slot. A part is a dense array [rows, batch, heads, dim].
template <class Space>
class SlotMemory {
 public:
  template <class T>
  using PartList = ShortList<T, PayloadLayout::max_parts + 1>;

  /// Provides storage of at least `bytes`. `allocator`: a backend, or a communicator whose ranks share memory
  /// (`windowed`). A buffer that is large enough, and of that allocator if it must be, is kept.
  template <class Allocator>
  void reserve(Allocator& allocator, Index bytes, bool windowed) {
    if (bytes_ >= bytes && (windowed_ || !windowed)) return;
    // Freed first, so that the allocator can reuse its memory.
    buffer_ = nullptr;
    bytes_ = 0;
    auto buffer = std::make_shared<decltype(allocator.allocate(bytes))>(allocator.allocate(bytes));
    first_ = buffer->data();
    bytes_ = buffer->size();
    buffer_ = std::move(buffer);
    windowed_ = windowed;
  }
  /// Places the parts of `rows` rows in the storage of `owner`, possibly *this. nodes: partial results of a row.
  void arrange(SlotMemory const& owner, PayloadLayout const& layout, Index rows, Index nodes) {
    layout_ = layout;
    nodes_ = nodes;
    parts_.clear();
    for (std::size_t p = 0; p < layout.parts.size(); ++p) parts_.push_back(owner.first_ + layout.part_offset(p, rows));
    checksums_ = owner.first_ + layout.part_offset(layout.parts.size(), rows);
  }

  /// Refers to memory of another rank from now on, which is only read: one run per part,
  /// each with the bytes of `rows`, then the checksum, if used.
  void bind_to(WindowRuns runs, RowRange rows) {
    parts_.clear();
    for (std::size_t p = 0; p < layout_.parts.size(); ++p) parts_.push_back(const_cast<std::byte*>(runs[p].data()));
    checksums_ = has_checksum(rows) ? const_cast<std::byte*>(runs.back().data()) : nullptr;
  }
  /// Byte length of each run of `rows`: one per part, then the checksum, if used.
  PartList<std::size_t> run_lengths(RowRange rows) const {
    PartList<std::size_t> lengths;
    for (PartLayout const& part : layout_.parts)
      lengths.push_back(static_cast<std::size_t>(rows.size() * part.row_bytes()));
    if (has_checksum(rows)) lengths.push_back(sizeof(std::uint64_t));
    return lengths;
  }

  PayloadLayout const& layout() const { return layout_; }
  Index nodes() const { return nodes_; }
  std::byte* buffer() const { return first_; }  ///< first byte of its own storage; null if there is none
  Index bytes() const { return bytes_; }        ///< of its own storage, which may be larger than was asked for

  /// First element of row `row` of a part. T has the element size of the layout.
  template <class T>
  T* data(Part part, Index row = 0) const {
    std::size_t const p = layout_.index_of(part);
    return reinterpret_cast<T*>(parts_[p] + row * layout_.parts[p].row_bytes());
  }

  /// Places of the checksums: `leaving` for rows sent, `arriving` for rows received. Rows that several ranks read use
  /// one for each reader, from 0.
  static constexpr Index leaving = 0, arriving = 1;

  /// Byte runs of rows: one per part, then the checksum, if used, which is computed unless it has been before (sealed).
  /// `seed` identifies call, step and channel, so that rows of another exchange fail the check.
  PartList<std::span<std::byte const>> outgoing(RowRange rows, std::uint64_t seed, Index place, bool sealed) const {
    if (has_checksum(rows) && !sealed) {
      std::uint64_t const sum = checksum_of(rows, seed);
      std::memcpy(checksum_run(place).data(), &sum, sizeof sum);
    }
    return runs_of<std::byte const>(rows, place);
  }
  /// Byte runs that receive rows: one per part, then the checksum, if used.
  PartList<std::span<std::byte>> incoming(RowRange rows, Index place) const { return runs_of<std::byte>(rows, place); }
  /// True if no checksums are used, or if the one at `place` matches the rows.
  bool is_intact(RowRange rows, std::uint64_t seed, Index place) const {
    if (!has_checksum(rows)) return true;
    std::uint64_t sum = 0;
    std::memcpy(&sum, checksum_run(place).data(), sizeof sum);
    return sum == checksum_of(rows, seed);
  }

 private:
  template <class Byte>
  PartList<std::span<Byte>> runs_of(RowRange rows, Index place) const {
    PartList<std::span<Byte>> runs;
    for (std::size_t p = 0; p < layout_.parts.size(); ++p) runs.push_back(run(p, rows));
    if (has_checksum(rows)) runs.push_back(checksum_run(place));
    return runs;
  }
  std::span<std::byte> run(std::size_t p, RowRange rows) const {
    if (rows.empty()) return {};
    Index const bytes = layout_.parts[p].row_bytes();
    return {parts_[p] + rows.begin * bytes, static_cast<std::size_t>(rows.size() * bytes)};
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
  std::span<std::byte> checksum_run(Index place) const {
    constexpr Index bytes = sizeof(std::uint64_t);
    return {checksums_ + place * bytes, static_cast<std::size_t>(bytes)};
  }

  std::shared_ptr<void> buffer_;
  std::byte* first_ = nullptr;
  Index bytes_ = 0;
  bool windowed_ = false;
  PartList<std::byte*> parts_;
  std::byte* checksums_ = nullptr;
  PayloadLayout layout_{};
  Index nodes_ = 1;
};

/// Rows of a slot, one of several partial results of each where there are any.
template <class Space>
struct SlotView {
  SlotMemory<Space> const* memory = nullptr;
  RowRange rows{};
  int node = 0;

  PayloadLayout const& layout() const { return memory->layout(); }

  /// View [batch, rows, heads, dim] of a part. Throws Error for a part that the slot does not have.
  template <class T>
  TensorView<T, 4, Space> view(Part part) const {
    auto const& [name, all, heads, dim, bytes] = layout().parts[layout().index_of(part)];
    Index const batch = all / memory->nodes();
    return {memory->template data<T>(part, rows.empty() ? 0 : rows.begin) + node * batch * heads * dim,
            {batch, rows.size(), heads, dim},
            {heads * dim, all * heads * dim, dim, 1}};
  }
  /// View [batch, heads, rows] of a row statistic.
  template <class T>
  TensorView<T, 3, Space> statistics(Part part) const {
    auto const all = view<T>(part);
    return {all.data(), {all.extent(0), all.extent(2), all.extent(1)}, {all.stride(0), all.stride(2), all.stride(1)}};
  }
  /// View [batch, rows] of document ids.
  template <class T>
  TensorView<T, 2, Space> document_ids() const {
    auto const all = view<T>(Part::document_ids);
    return {all.data(), {all.extent(0), all.extent(1)}, {all.stride(0), all.stride(1)}};
  }
  /// The running state that the slot holds.
  template <class A>
  RunningState<A, Space> state() const {
    return {view<A>(Part::accumulator), statistics<A>(Part::maximum), statistics<A>(Part::sum)};
  }
  bool is_state() const { return layout().has(Part::accumulator); }
};

}  // namespace annulus::detail
