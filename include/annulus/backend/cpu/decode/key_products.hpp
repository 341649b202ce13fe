#pragma once
// Products of a few query rows with keys that are read where they are, in the order of memory, and prefetched. Lanes
// are dimensions.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "annulus/backend/cpu/decode/key_splits.hpp"
#include "annulus/backend/cpu/panel/packing.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Calls function(first, integral_constant<count>) for parts of `rows` rows: powers of two, at most Most, the largest
/// ones first.
template <int Most, class Function>
[[gnu::always_inline]] inline void for_each_row_tile(Index rows, Function&& function) {
  Index row = 0;
  for (; row + Most <= rows; row += Most) function(row, std::integral_constant<int, Most>());
  auto const rest = [&]<int Rows>(std::integral_constant<int, Rows> tile) __attribute__((always_inline)) {
    if (row + Rows > rows) return;
    function(row, tile);
    row += Rows;
  };
  if constexpr (Most > 4) rest(std::integral_constant<int, 4>());
  rest(std::integral_constant<int, 2>());
  rest(std::integral_constant<int, 1>());
}

/// True if a vector holds 8 bytes of each row of a tile of Rows rows, not elements of one row: then a product has
/// fewer lanes to add.
template <int Rows>
inline constexpr bool share_vector = Rows == KeySplits::rows_of_vector;

/// Where a query row is among `rows` rows of `depth` elements that a product reads in order: [tile of
/// rows][k / width][row][k % width], where a vector holds `width` elements of a row.
template <class A>
struct QueryPlace {
  Index first, rows_of_tile, width;

  static QueryPlace of(Index row, Index depth, Index rows) {
    QueryPlace place{};
    for_each_row_tile<Blocking<A>::micro_rows>(rows, [&]<int Rows>(Index tile, std::integral_constant<int, Rows>) {
      constexpr Index elements = Vector<A>::lanes / (share_vector<Rows> ? Rows : 1);
      if (tile <= row && row < tile + Rows) place = {tile * depth + (row - tile) * elements, Rows, elements};
    });
    return place;
  }
  Index operator()(Index k) const {
    return first + (k & -width) * rows_of_tile + (k & (width - 1));  // the width is a power of two
  }
};

/// Loads a vector of packed elements E from a row of operands of whole vectors, or from packed elements.
template <class E, class R>
[[gnu::always_inline]] inline typename Operand<E>::Row load_row(R const* row, Index k) {
  if constexpr (std::is_same_v<R, E>)
    return Operand<E>::load(row + k);
  else if constexpr (is_pair<E>)
    return Operand<E>::load(reinterpret_cast<E const*>(row) + k);
  else
    return load_packed<E>(row + k);
}

/// Rows of keys: those of several heads, for each key. While a row is multiplied, the one that lies `ahead` elements
/// further is prefetched, and long before it the page of the one `pages_ahead` elements further; 0 for rows that are in
/// a cache, whose pages are not prefetched.
template <class R>
struct KeyRows {
  R const* first;
  Index key_stride, head_stride;
  Index count, heads;
  Index ahead, pages_ahead;
  Cache cache;  ///< where it is prefetched to
};

/// Prefetches rows of `length` elements, `stride` elements apart, a line at a time, in the order of memory.
template <class R>
class LinesAhead {
 public:
  LinesAhead(R const* first, Index stride, Index length, Cache cache)
      : at_(first),
        gap_(stride - annulus::detail::ceil_divide(length, line) * line),
        lines_(annulus::detail::ceil_divide(length, line)),
        left_(lines_),
        cache_(cache) {}

  [[gnu::always_inline]] void prefetch_next() {
    prefetch_line(at_, cache_);
    at_ += line;
    if (--left_ > 0) return;
    at_ += gap_;
    left_ = lines_;
  }

 private:
  static constexpr Index line = 64 / static_cast<Index>(sizeof(R));
  R const* at_;
  Index const gap_, lines_;
  Index left_;
  Cache const cache_;
};

/// Sets the sums of multiply_keys() to 0, [key][row][chain].
template <class V, int Keys, int Rows, int Chains>
[[gnu::always_inline]] inline void clear_sums(V (&of)[Keys][Rows][Chains]) {
#pragma GCC unroll 2
  for (int i = 0; i < Keys; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < Chains; ++c) of[i][r][c] = V::zero();
}

/// Adds up the chains of the sums of the first `keys` keys, and stores them at [row][lanes], key i in lane vector i.
template <class V, int Keys, int Rows, int Chains>
[[gnu::always_inline]] inline void add_chains(V (&of)[Keys][Rows][Chains], int keys, V* to) {
#pragma GCC unroll 2
  for (int i = 0; i < Keys; ++i) {
    if (i >= keys) break;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int c = 1; c < Chains; ++c) of[i][r][0] = of[i][r][0] + of[i][r][c];
      to[r * V::lanes + i] = of[i][r][0];
    }
  }
}

/// sums[(head * rows + r) * lanes + key] = product of a key and query row r, summed over the vectors of `depth` packed
/// elements only, for Rows rows. queries: see QueryPlace, `rows` rows for each head.
template <int Rows, class E, class R, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void multiply_keys(KeyRows<R> const keys, E const* queries, Index depth, Index rows,
                                     Vector<A>* sums) {
  using V = Vector<A>;
  using O = Operand<E>;
  constexpr Index joined = std::is_same_v<R, E> ? 1 : O::depth;  // elements of a key in a packed element
  constexpr Index lanes = V::lanes, line = 64 / static_cast<Index>(sizeof(R)), elements = lanes * joined;
  constexpr int at_once = 2;  // keys that share the loads of queries
  // Several sums hide the latency of additions; all of them take at most half of the registers.
  constexpr int chains = std::clamp(vector_registers / 2 / (at_once * Rows), 1, 4);
  constexpr int steps = std::max(chains, static_cast<int>(line / elements));  // vectors of a pass of the loop
  R const* first = keys.first;
  for (Index j = 0; j < keys.count; j += at_once, first += at_once * keys.key_stride) {
    bool const single = j + 1 == keys.count;
    if (keys.pages_ahead > 0)
      for (int i = 0; i < at_once; ++i) prefetch_page(first + i * keys.key_stride + keys.pages_ahead, keys.key_stride);
    R const* row = first;
    E const* query = queries;
    V* to = sums + j;
    for (Index h = 0; h < keys.heads; ++h, row += keys.head_stride, query += rows * depth, to += rows * lanes) {
      R const* key[at_once] = {row, single ? row : row + keys.key_stride};
      V of[at_once][Rows][chains];
      clear_sums(of);
      E const* factors = query;
      Index k = 0;
      auto const add_vectors = [&]<bool All>(std::bool_constant<All>) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int step = 0; step < steps; ++step) {
          if (!All && k + step * lanes >= depth) break;
          typename O::Row element[at_once];
#pragma GCC unroll 2
          for (int i = 0; i < at_once; ++i) {
            if (step * elements % line == 0) prefetch_line(key[i] + keys.ahead + step * elements, keys.cache);
            element[i] = load_row<E>(key[i], step * lanes);
          }
#pragma GCC unroll 8
          for (int r = 0; r < Rows; ++r) {
            auto const factor = O::load_once(factors + (step * Rows + r) * lanes);
#pragma GCC unroll 2
            for (int i = 0; i < at_once; ++i)
              of[i][r][step % chains] = O::multiply_add(element[i], factor, of[i][r][step % chains]);
          }
        }
      };
#pragma GCC unroll 1
      for (; k + steps * lanes <= depth; k += steps * lanes, factors += steps * Rows * lanes) {
        add_vectors(std::true_type());
#pragma GCC unroll 2
        for (int i = 0; i < at_once; ++i) key[i] += steps * elements;
      }
      add_vectors(std::false_type());
      add_chains(of, single ? 1 : at_once, to);
    }
  }
}

/// Joins two vectors: element I of the result is element Source::of(I) of a, or of b beyond the lanes.
template <class Source, class A>
[[gnu::always_inline]] inline Vector<A> shuffled(Vector<A> a, Vector<A> b) {
  return [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    return Vector<A>{__builtin_shufflevector(a.native, b.native, Source::of(I)...)};
  }
  (std::make_integer_sequence<int, Vector<A>::lanes>());
}

/// Adds the lanes of as many vectors as lanes: lane i of the result is the sum over rows[i]. Within 16 bytes first,
/// where shuffles are fastest, then across.
template <class A>
[[gnu::always_inline]] inline Vector<A> sums_of_lanes(Vector<A> const* rows) {
  using V = Vector<A>;
  constexpr int lanes = V::lanes, part = 16 / static_cast<int>(sizeof(A)), parts = lanes / part;
  // Elements of a and b alternate; those of the low or high half of each part.
  struct Low {
    static constexpr int of(int i) { return i / part * part + i % part / 2 + i % 2 * lanes; }
  };
  struct High {
    static constexpr int of(int i) { return Low::of(i) + part / 2; }
  };
  // Pairs of elements alternate.
  struct LowPairs {
    static constexpr int of(int i) { return i / part * part + i % 2 + i % part / 2 * lanes; }
  };
  struct HighPairs {
    static constexpr int of(int i) { return LowPairs::of(i) + 2; }
  };
  V of_parts[parts];
#pragma GCC unroll 4
  for (int p = 0; p < parts; ++p) {
    V const* const four = rows + p * part;
    V const first = shuffled<Low>(four[0], four[1]) + shuffled<High>(four[0], four[1]);
    if constexpr (part == 4) {
      V const second = shuffled<Low>(four[2], four[3]) + shuffled<High>(four[2], four[3]);
      of_parts[p] = shuffled<LowPairs>(first, second) + shuffled<HighPairs>(first, second);
    } else {
      of_parts[p] = first;
    }
  }
  // Each part now has a share of the sums of its rows in each 16 bytes.
  if constexpr (parts == 4) {
    struct LowHalf {
      static constexpr int of(int i) { return i % (lanes / 2) + i / (lanes / 2) * lanes; }
    };
    struct HighHalf {
      static constexpr int of(int i) { return LowHalf::of(i) + lanes / 2; }
    };
    struct Even {
      static constexpr int of(int i) { return i / part % 2 * 2 * part + i % part + i / (2 * part) * lanes; }
    };
    struct Odd {
      static constexpr int of(int i) { return Even::of(i) + part; }
    };
    V const first = shuffled<LowHalf>(of_parts[0], of_parts[1]) + shuffled<HighHalf>(of_parts[0], of_parts[1]);
    V const second = shuffled<LowHalf>(of_parts[2], of_parts[3]) + shuffled<HighHalf>(of_parts[2], of_parts[3]);
    return shuffled<Even>(first, second) + shuffled<Odd>(first, second);
  } else if constexpr (parts == 2) {
    struct LowHalf {
      static constexpr int of(int i) { return i % part + i / part * lanes; }
    };
    struct HighHalf {
      static constexpr int of(int i) { return LowHalf::of(i) + part; }
    };
    return shuffled<LowHalf>(of_parts[0], of_parts[1]) + shuffled<HighHalf>(of_parts[0], of_parts[1]);
  } else {
    return of_parts[0];
  }
}

/// 8 bytes of a row, repeated in a vector.
template <class Row>
[[gnu::always_inline]] inline Row load_repeated(void const* from) {
  typedef std::uint64_t Words __attribute__((vector_size(vector_bytes)));
  std::uint64_t word;
  std::memcpy(&word, from, sizeof word);
  Words const words = word + Words{};
  Row row;
  std::memcpy(&row, &words, sizeof row);
  return row;
}

/// Adds the lanes of 8 bytes of as many vectors as lanes, which hold Rows rows: lane j of vector r becomes the sum for
/// row r of vector j.
template <int Rows, class A>
[[gnu::always_inline]] inline void add_words(Vector<A> const* words, Vector<A> (&sums)[Rows]) {
  using V = Vector<A>;
  using Word = Vector<double>;
  constexpr int width = V::lanes / Rows;
  // Elements of two vectors alternate: those at even places, and those at odd places.
  struct Even {
    static constexpr int of(int i) { return i % 2 == 0 ? i : i - 1 + V::lanes; }
  };
  struct Odd {
    static constexpr int of(int i) { return Even::of(i) + 1; }
  };
  Word of_rows[Rows];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
    if constexpr (width == 2)
      of_rows[i] = {reinterpret_cast<Word::Native>(
          (shuffled<Even>(words[2 * i], words[2 * i + 1]) + shuffled<Odd>(words[2 * i], words[2 * i + 1])).native)};
    else
      of_rows[i] = {reinterpret_cast<Word::Native>(words[i].native)};
  interleave(of_rows);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) sums[r] = {reinterpret_cast<typename V::Native>(of_rows[r].native)};
}

/// scores[r * stride + j] = product of key j and query row r, for as many keys as lanes, of one head, and a tile of
/// Rows rows that a vector holds. query: see QueryPlace. OfPass: keys whose products are summed at a time.
template <int Rows, int OfPass, class E, class R, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void multiply_key_passes(KeyRows<R> const keys, E const* query, Index depth, A* scores,
                                           Index stride) {
  using V = Vector<A>;
  using O = Operand<E>;
  constexpr int lanes = V::lanes, at_once = 4;
  constexpr Index word = 8 / static_cast<Index>(sizeof(R));
  if (keys.pages_ahead > 0)
    for (int j = 0; j < lanes; ++j) prefetch_page(keys.first + j * keys.key_stride + keys.pages_ahead, keys.key_stride);
  V of[lanes];
#pragma GCC unroll 16
  for (int j = 0; j < lanes; ++j) of[j] = V::zero();
  Index const length = depth / lanes * (vector_bytes / static_cast<Index>(sizeof(R)));
  LinesAhead<R> lines(keys.first + keys.ahead, keys.key_stride, length, keys.cache);
  auto const multiply = [&]<int First>(std::integral_constant<int, First>) __attribute__((always_inline)) {
    E const* factors = query;
#pragma GCC unroll 1
    for (Index k = 0; k < length; k += word, factors += lanes) {
      // As many lines in all as the keys have.
      if (OfPass >= 8 || k / word % 2 == 0)
        for (int l = 0; l < std::max(OfPass / 8, 1); ++l) lines.prefetch_next();
      auto const factor = O::load_once(factors);
      R const* key = keys.first + First * keys.key_stride + k;
#pragma GCC unroll 4
      for (int j = First; j < First + OfPass; j += at_once, key += at_once * keys.key_stride)
#pragma GCC unroll 4
        for (int i = 0; i < at_once; ++i)
          of[j + i] = O::multiply_add(load_repeated<typename O::Row>(key + i * keys.key_stride), factor, of[j + i]);
    }
  };
  multiply(std::integral_constant<int, 0>());
  if constexpr (OfPass < lanes) multiply(std::integral_constant<int, OfPass>());
  V sums[Rows];
  add_words<Rows>(of, sums);
  for (int r = 0; r < Rows; ++r) sums[r].store(scores + r * stride);
}

/// The same in passes that suit the stride of the keys. Lines a multiple of 4096 bytes apart belong to one set of L1
/// cache, which on most processors holds 8 of them: of more keys that lie so, each product would fetch its line anew.
template <int Rows, class E, class R, class A = typename Operand<E>::Sum>
void multiply_key_group(KeyRows<R> const& keys, E const* query, Index depth, A* scores, Index stride) {
  constexpr int lanes = Vector<A>::lanes, of_set = 8;
  constexpr Index same_set = 4096 / static_cast<Index>(sizeof(R));
  if constexpr (lanes > of_set)
    if (keys.key_stride % same_set == 0)
      return multiply_key_passes<Rows, of_set, E, R>(keys, query, depth, scores, stride);
  multiply_key_passes<Rows, lanes, E, R>(keys, query, depth, scores, stride);
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
