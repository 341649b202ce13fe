#pragma once
// Prefetching of rows that are read soon, in the order of memory, whatever the order that products read rows in.

#include <algorithm>

#include "annulus/backend/cpu/simd/prefetch.hpp"
#include "annulus/core/index.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// The cache lines of `count` rows of `length` elements, `stride` elements apart.
template <class T>
class LinesAhead {
 public:
  LinesAhead() = default;  ///< none
  /// pages_ahead: elements from a row to the one whose page is prefetched with it; 0: none.
  LinesAhead(T const* first, Index stride, Index length, Index count, Cache cache, Index pages_ahead)
      : at_(first),
        stride_(stride),
        lines_(annulus::detail::ceil_divide(length, line)),
        left_(lines_),
        count_(count),
        pages_ahead_(pages_ahead),
        cache_(cache) {}

  /// Prefetches as many lines as Bytes bytes have, at least one.
  template <Index Bytes>
  [[gnu::always_inline]] void prefetch() {
    for (Index lines = std::max(Bytes / 64, Index{1}); count_ > 0 && lines > 0;) {
      Index const of_row = std::min(lines, left_);
#pragma GCC unroll 1
      for (T const* const end = at_ + of_row * line; at_ < end; at_ += line) prefetch_line(at_, cache_);
      lines -= of_row;
      if ((left_ -= of_row) == 0) next_row();
    }
  }

 private:
  static constexpr Index line = 64 / static_cast<Index>(sizeof(T));

  void next_row() {
    at_ += stride_ - lines_ * line;
    left_ = lines_;
    --count_;
    if (pages_ahead_ > 0) prefetch_page(at_ + pages_ahead_, stride_);
  }

  T const* at_ = nullptr;
  Index stride_ = 0, lines_ = 0, left_ = 0, count_ = 0, pages_ahead_ = 0;
  Cache cache_ = Cache::l2;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
