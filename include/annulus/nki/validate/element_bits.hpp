#pragma once
// Bit set with one bit per element of a tensor; queried and changed by runs of consecutive elements.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "annulus/core/index.hpp"

namespace annulus::nki::validate_detail {

/// All bits are initially clear. Ranges are [begin, begin + count) and must be inside the tensor.
class ElementBits {
 public:
  explicit ElementBits(Index elements) : words_(static_cast<std::size_t>((elements + 63) / 64), 0) {}

  void clear() { std::ranges::fill(words_, 0); }
  void set(Index begin, Index count) {
    for_each_word(begin, count, [](std::uint64_t& word, std::uint64_t mask) {
      word |= mask;
      return true;
    });
  }
  /// Index of the first clear (set) bit of the range, -1 if there is none.
  Index first_clear(Index begin, Index count) { return first(begin, count, ~std::uint64_t{0}); }
  Index first_set(Index begin, Index count) { return first(begin, count, 0); }

 private:
  /// The first bit that differs from the same bit of `expected`.
  Index first(Index begin, Index count, std::uint64_t expected) {
    Index found = -1;
    for_each_word(begin, count, [&](std::uint64_t& word, std::uint64_t mask) {
      std::uint64_t const different = (word ^ expected) & mask;
      if (different == 0) return true;
      found = (&word - words_.data()) * 64 + std::countr_zero(different);
      return false;
    });
    return found;
  }

  template <class Visit>
  void for_each_word(Index begin, Index count, Visit&& visit) {
    if (count <= 0) return;
    std::uint64_t constexpr all = ~std::uint64_t{0};
    Index const last = begin + count - 1;
    std::uint64_t* word = words_.data() + begin / 64;
    std::uint64_t* const last_word = words_.data() + last / 64;
    std::uint64_t const from = all << (begin % 64), to = all >> (63 - last % 64);
    if (word == last_word) {
      visit(*word, from & to);
      return;
    }
    if (!visit(*word, from)) return;
    while (++word != last_word)
      if (!visit(*word, all)) return;
    visit(*word, to);
  }

  std::vector<std::uint64_t> words_;
};

}  // namespace annulus::nki::validate_detail
