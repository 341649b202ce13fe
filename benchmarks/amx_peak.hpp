#pragma once
// Matrix tiles of bfloat16 (Intel AMX), for targets that have them.

#if defined(__AMX_BF16__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace annulus_bench {

/// Linux lends the tile registers on demand, once for all threads of the process.
inline bool amx_is_permitted() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  static bool const permitted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return permitted;
}

/// Products of tiles of 16 x 32 and 32 x 16 elements into four tiles of sums; floating-point operations done.
[[gnu::noinline]] inline double tile_products(long turns) {
  struct alignas(64) Configuration {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const configuration;
  alignas(64) static std::uint16_t const zeros[512] = {};
  _tile_loadconfig(&configuration);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
  for (long turn = 0; turn < turns; ++turn) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4 * 16384.0 * static_cast<double>(turns);
}

}  // namespace annulus_bench

#endif
