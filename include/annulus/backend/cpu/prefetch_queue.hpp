#pragma once
// Software prefetch of the rows that are needed next, while products keep the multipliers busy. The rows are too far
// apart for the hardware prefetcher.

#include <array>
#include <cstddef>
#include <cstdint>

#include "annulus/core/index.hpp"

namespace annulus::cpu {

/// Queue of rows, prefetched a few cache lines at a time: a processor drops prefetches when it gets many at once.
class PrefetchQueue {
 public:
  void clear() { next_ = end_ = 0; }

  /// Appends a row of `dim` elements. Ignores rows beyond the capacity, and rows that are not contiguous.
  template <class T>
  void add(T const* row, Index dim_stride, Index dim) {
    if (dim_stride != 1 || end_ == capacity) return;
    rows_[end_++] = {reinterpret_cast<std::uintptr_t>(row) / line_bytes * line_bytes,
                     reinterpret_cast<std::uintptr_t>(row + dim)};
  }

  /// Prefetches the next cache lines. Products call it every few hundred cycles.
  [[gnu::always_inline]] void next() {
    if (next_ < end_) fetch();
  }

 private:
  static constexpr std::size_t capacity = 128;
  static constexpr std::uintptr_t line_bytes = 64;
  static constexpr int lines_at_once = 8;

  struct Row {
    std::uintptr_t place, end;
  };

  void fetch() {
    for (int line = 0; line < lines_at_once && next_ < end_; ++line) {
      Row& row = rows_[next_];
      __builtin_prefetch(reinterpret_cast<void const*>(row.place));
      if ((row.place += line_bytes) >= row.end) ++next_;
    }
  }

  std::array<Row, capacity> rows_;
  std::size_t next_ = 0, end_ = 0;
};

}  // namespace annulus::cpu
