#pragma once
// Rows of a payload in a buffer or in a neighbour's memory, and the views and byte runs into them.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "annulus/comm/lending.hpp"
#include "annulus/mask/band.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// Part p is a dense array [rows, batch, heads, dim] (dim missing for row statistics, heads for segment ids).
template <class Space>
class Payload {
 public:
  using memory_space = Space;
  template <class T>
  using PartList = ShortList<T, PayloadLayout::max_parts>;

  /// Makes room for `capacity` rows in memory of `allocator`, a backend or a communicator that lends; a buffer that is
  /// large enough is kept.
  template <class Allocator>
  void reserve(Allocator& allocator, PayloadLayout const& layout, Index capacity) {
    layout_ = layout;
    Index const bytes = layout.buffer_bytes(capacity);
    if (buffer_bytes_ < bytes) {
      // Its memory may serve the next one.
      buffer_ = nullptr;
      buffer_bytes_ = 0;
      auto buffer = std::make_shared<decltype(allocator.allocate(bytes))>(allocator.allocate(bytes));
      first_ = buffer->data();
      buffer_bytes_ = buffer->size();
      buffer_ = std::move(buffer);
    }
    parts_.clear();
    for (std::size_t p = 0; p < layout.row_bytes.size(); ++p)
      parts_.push_back(first_ + layout.part_offset(p, capacity));
  }

  /// Lies from now on in another rank's memory, which is only read: one run per part, each with the bytes of `rows`.
  void lie_at(BorrowedBytes runs, PayloadLayout const& layout, RowRange rows) {
    layout_ = layout;
    rows_ = rows;
    parts_.clear();
    for (auto const& run : runs) parts_.push_back(const_cast<std::byte*>(run.data()));
  }

  /// Says which rows of a shard the buffer holds from now on.
  void hold(RowRange rows) { rows_ = rows; }
  RowRange rows() const { return rows_; }
  /// The buffer, where the payload has one.
  std::byte* buffer() const { return first_; }
  Index buffer_bytes() const { return buffer_bytes_; }

  /// [batch, rows, heads, dim] of part p, all rows held.
  template <class T>
  TensorView<T, 4, Space> view(std::size_t p, Index batch, Index heads, Index dim) const {
    return {data<T>(p), {batch, rows_.size(), heads, dim}, {heads * dim, batch * heads * dim, dim, 1}};
  }
  /// [batch, heads, rows] of part p.
  template <class T>
  TensorView<T, 3, Space> statistics(std::size_t p, Index batch, Index heads) const {
    return {data<T>(p), {batch, heads, rows_.size()}, {heads, 1, batch * heads}};
  }
  /// [batch, rows] of part p.
  template <class T>
  TensorView<T, 2, Space> segments(std::size_t p, Index batch) const {
    return {data<T>(p), {batch, rows_.size()}, {1, batch}};
  }

  /// The bytes of `rows`, one run per part. They must be among the rows held.
  PartList<std::span<std::byte const>> outgoing(RowRange rows) const {
    PartList<std::span<std::byte const>> runs;
    for (std::size_t p = 0; p < layout_.row_bytes.size(); ++p) runs.push_back(run(p, rows));
    return runs;
  }
  /// The place of `rows`, which must be among the rows held; one run per part.
  PartList<std::span<std::byte>> incoming(RowRange rows) const {
    PartList<std::span<std::byte>> runs;
    for (std::size_t p = 0; p < layout_.row_bytes.size(); ++p) runs.push_back(run(p, rows));
    return runs;
  }

 private:
  template <class T>
  T* data(std::size_t p) const {
    return reinterpret_cast<T*>(parts_[p]);
  }
  std::span<std::byte> run(std::size_t p, RowRange rows) const {
    if (rows.empty()) return {};
    return {parts_[p] + (rows.begin - rows_.begin) * layout_.row_bytes[p],
            static_cast<std::size_t>(rows.size() * layout_.row_bytes[p])};
  }

  std::shared_ptr<void> buffer_;
  std::byte* first_ = nullptr;
  Index buffer_bytes_ = 0;
  PartList<std::byte*> parts_;
  PayloadLayout layout_{};
  RowRange rows_{};
};

}  // namespace annulus
