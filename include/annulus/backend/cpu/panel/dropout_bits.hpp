#pragma once
// The pairs of one panel and one key block that dropout keeps, as a bit matrix [key][query lane].

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "annulus/backend/cpu/panel/visibility_bits.hpp"
#include "annulus/backend/cpu/simd/philox.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Sets the bits of the pairs of `rows` that dropout keeps.
template <class T, class A>
[[gnu::noinline]] void find_kept(HostStep<T> const& step, QueryPanel<A> const& panel, BlockKeys const& rows,
                                 BitMatrix<A>& kept) {
  using Words = typename BitMatrix<A>::Words;
  using Word = typename BitMatrix<A>::Word;
  constexpr Index word_bits = BitMatrix<A>::word_bits;
  Dropout const& dropout = step.rules.dropout;
  Word const threshold = static_cast<Word>(dropout_threshold(dropout));
  std::array<std::uint32_t, 2> const key{static_cast<std::uint32_t>(dropout.seed),
                                         static_cast<std::uint32_t>(dropout.seed >> 32)};
  for (int v = 0; v < Blocking<A>::panel_vectors; ++v) {
    Words heads{}, queries{};
    for (int i = 0; i < Blocking<A>::lanes && v * Blocking<A>::lanes + i < panel.count; ++i) {
      int const lane = v * Blocking<A>::lanes + i;
      heads[i] = static_cast<std::uint32_t>(step.first_head + panel.head(lane));
      queries[i] = static_cast<std::uint32_t>(step.query_positions[static_cast<std::size_t>(panel.query(lane))]);
    }
    PhiloxQueries<A> const row(static_cast<std::uint32_t>(step.first_batch + panel.rows->batch), heads, queries, key);
    Index known = -1;
    Words numbers[4]{};
    for (Index w = rows.begin / word_bits; w * word_bits < rows.end; ++w) {
      Words bits{};
      for (Index j = std::max(rows.begin, w * word_bits); j < std::min(rows.end, (w + 1) * word_bits); ++j) {
        Index const position = step.key_positions[static_cast<std::size_t>(rows.key(j))];
        if (position / 4 != known) {
          known = position / 4;
          row.generate(static_cast<std::uint32_t>(known), numbers);
        }
        bits |= reinterpret_cast<Words>(numbers[position % 4] >= threshold) & (Word{1} << (j % word_bits));
      }
      kept.set_words(v, w, bits);
    }
  }
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
