#pragma once
// ElementBits: one bit per element of a tensor, asked and changed a run of neighbours at a time.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "annulus/core/index.hpp"

namespace annulus::nki::validate_detail {

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
  /// -1 if there is none.
  Index first_clear(Index begin, Index count) { return first(begin, count, ~std::uint64_t{0}); }
  Index first_set(Index begin, Index count) { return first(begin, count, 0); }

 private:
  /// The first bit that differs from those of `ordinary`.
  Index first(Index begin, Index count, std::uint64_t ordinary) {
    Index found = -1;
    for_each_word(begin, count, [&](std::uint64_t& word, std::uint64_t mask) {
      std::uint64_t const odd = (word ^ ordinary) & mask;
      if (odd == 0) return true;
      found = (&word - words_.data()) * 64 + std::countr_zero(odd);
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
