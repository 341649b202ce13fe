#pragma once
// A buffer of the backend that holds rows of a payload, and the views and byte runs into it.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "annulus/mask/band.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// Part p is a dense array [rows, batch, heads, dim] (dim missing for row statistics, heads for segment ids).
template <class Buffer, class Space>
class Payload {
 public:
  using memory_space = Space;

  /// Makes room for `capacity` rows; a buffer that is large enough is kept.
  template <class Backend>
  void reserve(Backend& backend, PayloadLayout const& layout, Index capacity) {
    layout_ = layout;
    capacity_ = capacity;
    Index const bytes = layout.buffer_bytes(capacity);
    if (buffer_.size() < bytes) buffer_ = backend.allocate(bytes);
  }

  /// Says which rows of a shard the buffer holds from now on.
  void hold(RowRange rows) { rows_ = rows; }
  RowRange rows() const { return rows_; }
  Index buffer_bytes() const { return buffer_.size(); }

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
  std::vector<std::span<std::byte const>> outgoing(RowRange rows) const {
    std::vector<std::span<std::byte const>> runs;
    for (std::size_t p = 0; p < layout_.row_bytes.size(); ++p) runs.emplace_back(run(p, rows));
    return runs;
  }
  /// The place of `rows`, which must be among the rows held; one run per part.
  std::vector<std::span<std::byte>> incoming(RowRange rows) const {
    std::vector<std::span<std::byte>> runs;
    for (std::size_t p = 0; p < layout_.row_bytes.size(); ++p) runs.push_back(run(p, rows));
    return runs;
  }

 private:
  template <class T>
  T* data(std::size_t p) const {
    return reinterpret_cast<T*>(buffer_.data() + layout_.part_offset(p, capacity_));
  }
  std::span<std::byte> run(std::size_t p, RowRange rows) const {
    if (rows.empty()) return {};
    std::byte* const first = data<std::byte>(p) + (rows.begin - rows_.begin) * layout_.row_bytes[p];
    return {first, static_cast<std::size_t>(rows.size() * layout_.row_bytes[p])};
  }

  Buffer buffer_{};
  PayloadLayout layout_{};
  Index capacity_ = 0;
  RowRange rows_{};
};

}  // namespace annulus
