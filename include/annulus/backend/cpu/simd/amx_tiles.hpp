#pragma once
// Products on AMX tiles, the matrix registers of x86: sums of 16 x 16 floats, from 16 rows of 16 pairs and 16 rows of
// pairs for 16 columns. Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

#include "annulus/backend/cpu/simd/target.hpp"
#include "annulus/core/index.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Rows of an AMX tile, pairs in a row of factors, and columns of sums.
inline constexpr Index amx_tile_side = 16;

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu

#if defined(ANNULUS_CPU_HAS_AMX)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "annulus/backend/cpu/simd/operand.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

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

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu

#endif
