#pragma once
// Matrix tiles of bfloat16 (Intel AMX), for targets that have them.

#include <annulus/backend/cpu/simd/tiles.hpp>

#if defined(ANNULUS_CPU_HAS_TILES)

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace annulus_bench {

/// Products of tiles of 16 x 32 and 32 x 16 elements into four tiles of sums; floating-point operations done.
[[gnu::noinline]] inline double tile_products(long turns) {
  alignas(64) std::uint16_t elements[512];
  std::fill(std::begin(elements), std::end(elements), std::uint16_t{0x3c00});  // 2^-7
  annulus::cpu::FullTiles const tiles;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, elements, 64);
  _tile_loadd(5, elements, 64);
  _tile_loadd(6, elements, 64);
  _tile_loadd(7, elements, 64);
  for (long turn = 0; turn < turns; ++turn) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return 4 * 16384.0 * static_cast<double>(turns);
}

}  // namespace annulus_bench

#endif
