#pragma once
// The visible pairs of one panel and one key block as a bit matrix [key][query lane], where a mask tensor, a predicate
// or irregular rows decide pair by pair.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "annulus/backend/cpu/panel/panel_keys.hpp"
#include "annulus/backend/cpu/threads/workspace.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// A bit for each pair of a panel and a key block. Bit j % word_bits of word [j / word_bits][lane] belongs to key j of
/// the block.
template <class A>
class BitMatrix {
  using V = Vector<A>;
  using B = Blocking<A>;

 public:
  using Word = std::make_unsigned_t<typename V::Integer>;
  using Words = typename V::UnsignedBits;
  static constexpr int word_bits = 8 * static_cast<int>(sizeof(Word));
  /// Bits of one lane for all keys of a block, 64 in a word.
  using LaneBits = std::array<std::uint64_t, B::key_block / 64>;

  /// Lanes of vector v whose bit for key j is set.
  [[gnu::always_inline]] Lanes<A> at(int v, Index j) const {
    Words words;
    std::memcpy(&words, words_[j / word_bits] + v * B::lanes, sizeof words);
    return {(words & (Word{1} << (j % word_bits))) != 0};
  }
  /// Bits of the keys from j to the end of its word, that of j in bit 0, for the lanes of vector v.
  [[gnu::always_inline]] Words from(int v, Index j) const {
    Words words;
    std::memcpy(&words, words_[j / word_bits] + v * B::lanes, sizeof words);
    return words >> static_cast<Word>(j % word_bits);
  }
  bool at_lane(Index lane, Index j) const { return words_[j / word_bits][lane] >> (j % word_bits) & 1; }

  void set_lane(int lane, LaneBits const& bits) {
    for (int w = 0; w < words_of_block; ++w)
      words_[w][lane] = static_cast<Word>(bits[static_cast<std::size_t>(w * word_bits / 64)] >> (w * word_bits % 64));
  }
  /// Sets the bits of keys [w * word_bits, (w + 1) * word_bits) for the lanes of vector v.
  [[gnu::always_inline]] void set_words(int v, Index w, Words words) {
    std::memcpy(words_[w] + v * B::lanes, &words, sizeof words);
  }

 private:
  static constexpr int words_of_block = B::key_block / word_bits;
  alignas(64) Word words_[words_of_block][B::panel];
};

/// Visible lanes of the rows of a block by their bits, for multiply_vectors(). Row 0 belongs to key `first` of the
/// block, a multiple of micro_rows, so that micro_rows keys have their bits in one word.
template <class A>
struct SeenByBits {
  BitMatrix<A> const* bits;
  Index first;

  SeenByBits from(Index row) const { return {bits, first + row}; }
  [[gnu::always_inline]] auto of_rows(Index row) const {
    using Words = typename BitMatrix<A>::Words;
    using Word = typename BitMatrix<A>::Word;
    static_assert(BitMatrix<A>::word_bits % Blocking<A>::micro_rows == 0);
    std::array<Words, Blocking<A>::panel_vectors> words;
    for (int v = 0; v < Blocking<A>::panel_vectors; ++v)
      words[static_cast<std::size_t>(v)] = bits->from(v, first + row);
    return [words](int r, int v) __attribute__((always_inline)) {
      return Lanes<A>{(words[static_cast<std::size_t>(v)] & (Word{1} << r)) != 0};
    };
  }
};

/// The bits of 64 bools, the first in the lowest bit.
inline std::uint64_t bits_of_bools(bool const* bools) {
#if defined(__AVX512BW__)
  __m512i const bytes = _mm512_loadu_si512(bools);
  return _mm512_test_epi8_mask(bytes, bytes);
#elif defined(__SSE2__)
  std::uint64_t bits = 0;
  for (int i = 0; i < 64; i += 16) {
    __m128i const bytes = _mm_loadu_si128(reinterpret_cast<__m128i const*>(bools + i));
    bits |= static_cast<std::uint64_t>(_mm_movemask_epi8(_mm_slli_epi16(bytes, 7))) << i;
  }
  return bits;
#else
  std::uint64_t bits = 0;
  for (int i = 0; i < 64; ++i) bits |= std::uint64_t{bools[i]} << i;
  return bits;
#endif
}

/// How many of the pairs of a panel and a key block, within the bounds of the lanes, are visible.
enum class Visibility : std::uint8_t { none, all, some, unknown };

/// Prefetches a lane's row of the boolean mask for the next key block, from key row `key` on.
template <class T, class A>
void prefetch_mask(HostStep<T> const& step, QueryPanel<A> const& panel, int lane, Index key) {
  if (!step.boolean_mask.data() || key >= static_cast<Index>(step.key_positions.size())) return;
  bool const* const next =
      step.boolean_mask.data() + step.boolean_mask.offset(panel.rows->batch, panel.head(lane), panel.query(lane),
                                                          step.key_positions[static_cast<std::size_t>(key)]);
  for (int line = 0; line < Blocking<A>::key_block; line += 64) __builtin_prefetch(next + line, 0, 2);
}

/// find_visible() for a whole key block, within the bounds of all lanes, where the mask alone decides: `mask` are its
/// elements for the keys of the block of head 0 and query 0.
template <class T, class A>
[[gnu::noinline]] Visibility find_shown_by_mask(HostStep<T> const& step, QueryPanel<A> const& panel,
                                                BlockKeys const& rows, bool const* mask, BitMatrix<A>& visible) {
  using LaneBits = typename BitMatrix<A>::LaneBits;
  constexpr Index size = Blocking<A>::key_block;
  Index const head_stride = step.boolean_mask.stride(1), query_stride = step.boolean_mask.stride(2);
  bool const has_next = rows.key(2 * size) <= static_cast<Index>(step.key_positions.size());
  std::uint64_t shown = 0, hidden = 0;
  for (int lane = 0; lane < panel.count; ++lane) {
    bool const* const row = mask + panel.head(lane) * head_stride + panel.query(lane) * query_stride;
    LaneBits bits;
    for (std::size_t w = 0; w < bits.size(); ++w) {
      if (has_next) __builtin_prefetch(row + size + 64 * w, 0, 2);
      bits[w] = bits_of_bools(row + 64 * w);
      shown |= bits[w];
      hidden |= ~bits[w];
    }
    visible.set_lane(lane, bits);
  }
  for (int lane = panel.count; lane < Blocking<A>::panel; ++lane) visible.set_lane(lane, LaneBits{});
  return shown == 0 ? Visibility::none : hidden == 0 ? Visibility::all : Visibility::some;
}

/// Sets the bits of the visible pairs of `rows`, where the rules decide pair by pair (keys.each). `same_for_heads`: the
/// keys that a query sees do not depend on its head.
template <class T, class A>
Visibility find_visible(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& keys,
                        BlockKeys const& rows, bool same_for_heads, BitMatrix<A>& visible) {
  using LaneBits = typename BitMatrix<A>::LaneBits;
  PairTests tests = keys.tests;
  tests.consecutive = are_consecutive(step.key_positions, {rows.key(rows.begin), rows.key(rows.end)});
  RowRange const block{rows.block_begin, rows.key(Blocking<A>::key_block)};
  if (keys.covers(block))
    if (bool const* const mask = step.deciding_mask(panel.rows->batch, 0, 0, block, tests))
      return find_shown_by_mask(step, panel, rows, mask, visible);
  LaneBits bits{};
  bool any = false, all = true;
  for (int lane = 0; lane < Blocking<A>::panel; ++lane) {
    if (lane == 0 || lane >= panel.count || !same_for_heads || panel.query(lane) != panel.query(lane - 1)) {
      bits = {};
      Index const begin = lane < panel.count ? std::max(rows.begin, keys.begin[lane] - rows.block_begin) : 0;
      Index const end = lane < panel.count ? std::min(rows.end, keys.end[lane] - rows.block_begin) : 0;
      if (begin < end) {
        alignas(64) bool copied[Blocking<A>::key_block];
        if (tests.consecutive) prefetch_mask(step, panel, lane, rows.key(rows.begin) + Blocking<A>::key_block);
        RowRange const asked{rows.key(begin), rows.key(end)};
        std::ranges::fill(copied, false);
        step.find_visible(panel.rows->batch, panel.head(lane), panel.query(lane), asked, tests, copied + begin);
        Index count = 0;
        for (std::size_t w = 0; w < bits.size(); ++w) {
          bits[w] = bits_of_bools(copied + 64 * w);
          count += std::popcount(bits[w]);
        }
        any = any || count > 0;
        all = all && count == end - begin;
      }
    }
    visible.set_lane(lane, bits);
  }
  return !any ? Visibility::none : all ? Visibility::all : Visibility::some;
}

/// Visibility of each tile, panel and key block of a step whose heads share a boolean mask, found by the first head
/// that needs it: for the others, blocks that are hidden or visible as a whole need no test. Of several key blocks at
/// once, as the processor prefetches long runs of a row. Threads share it.
template <class T>
class VisibilityCache {
  using A = Accumulator<T>;
  using B = Blocking<A>;

 public:
  /// Takes memory from the arena if `step` has a boolean mask that its heads share. `extents` must outlive the object.
  template <class E>
  VisibilityCache(Arena& arena, HostStep<T> const& step, StepExtents<E> const& extents)
      : panels_(extents.panels()), blocks_(extents.blocks()), batches_(extents.batches) {
    Index const count = static_cast<Index>(step.tiles.size()) * batches_ * panels_ * blocks_;
    if (same_for_heads(step) && step.boolean_mask.data() && count <= most_bytes)
      known_ = arena.take<Visibility>(count_ = count);
  }
  /// Marks all entries as unknown. Call it once the arena has memory; at first it only counts bytes.
  void clear() { std::fill_n(known_, count_, Visibility::unknown); }

  /// Without a predicate, query heads that share the mask see the same keys.
  static bool same_for_heads(HostStep<T> const& step) {
    return !step.predicate->restrict && (!step.boolean_mask.data() || step.boolean_mask.stride(1) == 0);
  }

  /// Visibility of `rows` for the panel; sets the bits of the visible pairs if it is Visibility::some.
  Visibility find(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& keys, BlockKeys const& rows,
                  BitMatrix<A>& visible) const {
    if (!keys.each) return Visibility::all;
    if (!known_) return find_visible(step, panel, keys, rows, same_for_heads(step), visible);
    Index const place = place_of(panel, keys, rows.block_begin / B::key_block);
    // Threads that find the same at the same time store equal values.
    if (load(place) == Visibility::unknown) find_whole_blocks(step, panel, keys, rows.block_begin, place);
    if (Visibility const known = load(place); known == Visibility::none || known == Visibility::all) return known;
    Visibility const found = find_visible(step, panel, keys, rows, true, visible);
    store(place, found);
    return found;
  }

  /// True if the key block is known to be hidden from the panel.
  bool hides(QueryPanel<A> const& panel, PanelKeys<A> const& keys, Index block) const {
    return keys.each && known_ && load(place_of(panel, keys, block)) == Visibility::none;
  }

 private:
  Index place_of(QueryPanel<A> const& panel, PanelKeys<A> const& keys, Index block) const {
    return ((keys.tile * batches_ + panel.rows->batch) * panels_ + panel.first / B::panel) * blocks_ + block;
  }

  /// Finds which key blocks from key row `begin` on the mask alone hides or shows as a whole, and stores their entries
  /// from `place` on: of those within the bounds of all lanes, up to blocks_at_once.
  void find_whole_blocks(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& keys, Index begin,
                         Index place) const {
    Index const count = std::min(blocks_at_once, (keys.all.end - begin) / B::key_block);
    if (count <= 0 || begin < keys.all.begin) return;
    RowRange const asked{begin, begin + count * B::key_block};
    PairTests tests = keys.tests;
    tests.consecutive = are_consecutive(step.key_positions, asked);
    auto const row_of = [&](int lane) {
      return step.deciding_mask(panel.rows->batch, panel.head(lane), panel.query(lane), asked, tests);
    };
    // Bit b: no pair, or every pair, of block b is visible so far.
    std::uint32_t none = (std::uint32_t{1} << count) - 1, all = none;
    bool const* looked_at = nullptr;
    if (!row_of(0)) return;
    for (int lane = 0; lane < panel.count && (none | all) != 0; ++lane) {
      bool const *const row = row_of(lane), *const later = row_of(std::min(lane + lanes_ahead, panel.count - 1));
      for (Index b = 0; row != looked_at && b < count; ++b) {
        std::uint64_t hidden = 0, shown = 0;
        for (Index i = b * B::key_block; i < (b + 1) * B::key_block; i += 64) {
          __builtin_prefetch(later + i, 0, 2);
          std::uint64_t const bits = bits_of_bools(row + i);
          hidden |= ~bits;
          shown |= bits;
        }
        none &= ~(std::uint32_t{shown != 0} << b);
        all &= ~(std::uint32_t{hidden != 0} << b);
      }
      looked_at = row;
    }
    for (Index b = 0; b < count; ++b)
      store(place + b, none >> b & 1 ? Visibility::none : all >> b & 1 ? Visibility::all : Visibility::some);
  }

  Visibility load(Index place) const {
    return std::atomic_ref<Visibility>(known_[place]).load(std::memory_order_relaxed);
  }
  void store(Index place, Visibility visibility) const {
    std::atomic_ref<Visibility>(known_[place]).store(visibility, std::memory_order_relaxed);
  }

  static constexpr Index most_bytes = Index{1} << 24, blocks_at_once = 16;
  /// Rows of the mask are prefetched so many lanes before they are looked at.
  static constexpr int lanes_ahead = 4;

  Index panels_, blocks_, batches_, count_ = 0;
  Visibility* known_ = nullptr;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
