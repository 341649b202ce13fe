#pragma once
// Operand elements of products: single values, or pairs of bfloat16 where the target has a pair product instruction; and
// products of pairs on AMX tiles, the matrix registers of x86: sums of 16 x 16 floats, from 16 rows of 16 pairs and 16
// rows of pairs for 16 columns (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18).

#include <Eigen/Core>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "annulus/backend/cpu/simd/vector.hpp"
#include "annulus/core/index.hpp"
#include "annulus/core/scalar.hpp"

#if defined(ANNULUS_CPU_HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#endif

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Two bfloat16 neighbours along the summed axis; the first in the low bits.
struct BfloatPair {
  std::uint32_t bits;
};

/// Loads and multiply-adds for elements E.
template <class E>
struct Operand {
  using Sum = E;
  using Row = Vector<E>;
  static constexpr int depth = 1;  ///< products per element

  [[gnu::always_inline]] static Row load(E const* from) { return Row::load(from); }
  [[gnu::always_inline]] static Row repeat(E element) { return Row::of(element); }
  [[gnu::always_inline]] static Vector<E> multiply_add(Row a, Row b, Vector<E> sum) {
    return cpu::multiply_add(a, b, sum);
  }
};

#if defined(__AVX512BF16__)
inline constexpr bool multiplies_bfloat_pairs = true;

template <>
struct Operand<BfloatPair> {
  using Sum = float;
  using Row = __m512i;
  static constexpr int depth = 2;

  [[gnu::always_inline]] static Row load(BfloatPair const* from) { return _mm512_loadu_si512(from); }
  [[gnu::always_inline]] static Row repeat(BfloatPair element) {
    return _mm512_set1_epi32(static_cast<int>(element.bits));
  }
  [[gnu::always_inline]] static Vector<float> multiply_add(Row a, Row b, Vector<float> sum) {
    return {_mm512_dpbf16_ps(sum.native, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
  }
};

/// Stores pairs rounded to nearest: lane i holds (even, odd) of lane i.
[[gnu::always_inline]] inline void store_pairs_of_rows(Vector<float> even, Vector<float> odd, BfloatPair* to) {
  alignas(64) static constexpr std::uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  auto const halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd.native, even.native));
  _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi16(static_cast<__mmask32>(-1), _mm512_load_si512(order), halves));
}

/// Stores pairs of neighbouring lanes rounded to nearest, first those of `low`.
[[gnu::always_inline]] inline void store_pairs_of_lanes(Vector<float> low, Vector<float> high, BfloatPair* to) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.native, low.native)));
}
#else
inline constexpr bool multiplies_bfloat_pairs = false;

/// This target has no pair product; the type is needed for its sizes alone.
template <>
struct Operand<BfloatPair> {
  using Sum = float;
  static constexpr int depth = 2;
};
#endif

/// Packed element type of operands of type T.
template <class T>
using PackedElement =
    std::conditional_t<multiplies_bfloat_pairs && std::same_as<T, Eigen::bfloat16>, BfloatPair, Accumulator<T>>;

/// Pairs hold operands unscaled, so that the softmax scale is applied after the products.
template <class E>
inline constexpr bool is_pair = std::same_as<E, BfloatPair>;

/// Rows of an AMX tile, pairs in a row of factors, and columns of sums.
inline constexpr Index amx_tile_side = 16;

#if defined(ANNULUS_CPU_HAS_AMX)
/// True if Linux permits the AMX tile registers, which it grants on request, once for all threads of the process
/// (kernel documentation, "Using XSTATE features in user space applications"). Otherwise vector instructions are used.
inline bool amx_is_permitted() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  enum { unknown, permitted, refused };
  // Constant initialisation takes no lock, which a child forked at that moment would find locked.
  static constinit std::atomic<int> known{unknown};
  int answer = known.load(std::memory_order_relaxed);
  if (answer == unknown) {
    answer = syscall(SYS_arch_prctl, request_permission, tile_data) == 0 ? permitted : refused;
    known.store(answer, std::memory_order_relaxed);
  }
  return answer == permitted;
}

/// Configures this thread's AMX tiles to their full size for the lifetime of the object.
class AmxTiles {
 public:
  AmxTiles() {
    struct alignas(64) Configuration {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static constexpr Configuration configuration;
    if (amx_is_permitted()) _tile_loadconfig(&configuration);
  }
  ~AmxTiles() {
    if (amx_is_permitted()) _tile_release();
  }
  AmxTiles(AmxTiles const&) = delete;
  AmxTiles& operator=(AmxTiles const&) = delete;
};

namespace detail {

/// Compiler barrier: some compilers do not know that tile instructions read memory.
[[gnu::always_inline]] inline void finish_stores() { asm volatile("" ::: "memory"); }

/// result[32 rows][32 lanes], rows `panel` floats apart, = (or, with Add, +=) sum over `depth` pairs k, a multiple of
/// 16, of group[row][k] * columns[k][lane]. `group`: [depth / 16][32 rows][16 pairs]; rows of `columns` are `panel`
/// pairs apart.
template <bool Add, Index Panel>
[[gnu::always_inline]] inline void multiply_group_by_tiles(BfloatPair const* group, BfloatPair const* columns,
                                                           Index depth, float* result) {
  constexpr Index row_bytes = Panel * 4, side = amx_tile_side;
  float* const lower = result + side * Panel;
  if constexpr (Add) {
    _tile_loadd(0, result, row_bytes);
    _tile_loadd(1, result + side, row_bytes);
    _tile_loadd(2, lower, row_bytes);
    _tile_loadd(3, lower + side, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (Index k = 0; k < depth; k += side, group += 2 * side * side, columns += side * Panel) {
    _tile_loadd(4, group, 64);
    _tile_loadd(6, columns, row_bytes);
    _tile_loadd(5, group + side * side, 64);
    _tile_loadd(7, columns + side, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, result, row_bytes);
  _tile_stored(1, result + side, row_bytes);
  _tile_stored(2, lower, row_bytes);
  _tile_stored(3, lower + side, row_bytes);
}

/// result[row][Width * 16] += sum over 16 pairs k of a[row][k] * b[k][Width * 16], row_count is a multiple of 16.
template <int Width>
[[gnu::always_inline]] inline void add_strip_by_tiles(BfloatPair const* a, BfloatPair const* b, float* result,
                                                      Index row_count) {
  constexpr Index side = amx_tile_side, stride = Width * side, row_bytes = stride * 4;
  _tile_loadd(4, b, row_bytes);
  if constexpr (Width > 1) _tile_loadd(5, b + side, row_bytes);
  if constexpr (Width > 2) _tile_loadd(6, b + 2 * side, row_bytes);
  for (Index row = 0; row < row_count; row += side, a += side * side, result += side * stride) {
    _tile_loadd(7, a, 64);
    _tile_loadd(0, result, row_bytes);
    _tile_dpbf16ps(0, 7, 4);
    _tile_stored(0, result, row_bytes);
    if constexpr (Width > 1) {
      _tile_loadd(1, result + side, row_bytes);
      _tile_dpbf16ps(1, 7, 5);
      _tile_stored(1, result + side, row_bytes);
    }
    if constexpr (Width > 2) {
      _tile_loadd(2, result + 2 * side, row_bytes);
      _tile_dpbf16ps(2, 7, 6);
      _tile_stored(2, result + 2 * side, row_bytes);
    }
  }
}

}  // namespace detail
#endif

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
