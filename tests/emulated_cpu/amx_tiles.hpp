#pragma once
// The AMX tiles that the CPU kernels use, emulated by AVX-512: with -include ahead of a program, it replaces the
// tile intrinsics of <immintrin.h> and the request for the permission of Linux. Results, rounding and faults are
// those that Intel documents (Intrinsics Guide, _tile_loadconfig, _tile_loadd, _tile_stored, _tile_zero,
// _tile_dpbf16ps, _tile_release; Software Developer's Manual, TDPBF16PS), except that subnormal numbers are kept.
// A program that uses tiles before they are configured, or never, fails.

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>

namespace annulus_test::amx {

inline constexpr int tiles = 8, rows = 16, row_bytes = 64;

struct Tile {
  alignas(row_bytes) std::uint32_t row[rows][rows];
};
/// The tile registers of a thread.
struct Registers {
  bool configured = false;
  Tile tile[tiles];
};
inline thread_local Registers registers;

/// Where the processor would raise a fault.
[[noreturn]] inline void fail(char const* complaint) {
  std::cerr << "emulated AMX tiles: " << complaint << std::endl;
  std::_Exit(1);
}

/// Whether any thread multiplied tiles, verified at the end of the program.
struct Use {
  std::atomic<bool> seen{false};
  ~Use() {
    if (!seen) fail("the program multiplied none");
  }
};
inline Use use;

inline Tile& tile(int number) {
  if (!registers.configured) fail("used without a configuration");
  return registers.tile[number];
}

/// The system calls of other headers.
template <class... Arguments>
long call_system(long call, Arguments... arguments) {
  return ::syscall(call, arguments...);
}
/// The request for the permission to use tiles, granted.
inline long call_system(int call, long request, long feature) {
  constexpr long request_permission = 0x1023, tile_data = 18;
  if (call != SYS_arch_prctl || request != request_permission || feature != tile_data) fail("another request to Linux");
  return 0;
}

/// Accepts tiles of full size alone. 64 bytes: palette, first row, 14 reserved, 16 row sizes of two bytes, 16 counts.
inline void configure(void const* configuration) {
  auto const* const bytes = static_cast<std::uint8_t const*>(configuration);
  bool valid = bytes[0] == 1 && bytes[1] == 0;
  for (int t = 0; t < tiles; ++t)
    valid = valid && bytes[16 + 2 * t] == row_bytes && bytes[17 + 2 * t] == 0 && bytes[48 + t] == rows;
  if (!valid) fail("configured to another size than 16 rows of 64 bytes");
  registers = {.configured = true, .tile = {}};
}
inline void release() { registers.configured = false; }

inline void zero(int to) { tile(to) = {}; }
inline void load(int to, void const* from, std::ptrdiff_t stride) {
  for (int r = 0; r < rows; ++r) std::memcpy(tile(to).row[r], static_cast<char const*>(from) + r * stride, row_bytes);
}
inline void store(int from, void* to, std::ptrdiff_t stride) {
  for (int r = 0; r < rows; ++r) std::memcpy(static_cast<char*>(to) + r * stride, tile(from).row[r], row_bytes);
}

/// sum[r][c] += the products of the pairs a[r][k] and b[k][c] over all k, those of low and of high halves added apart.
inline void multiply_add(int sum, int a, int b) {
  use.seen.store(true, std::memory_order_relaxed);
  typedef std::uint32_t Pairs __attribute__((vector_size(row_bytes)));
  auto const low = [](Pairs pairs) { return reinterpret_cast<__m512>(pairs << 16); };
  auto const high = [](Pairs pairs) { return reinterpret_cast<__m512>(pairs & 0xffff0000u); };
  for (int r = 0; r < rows; ++r) {
    __m512 low_sum = {}, high_sum = {};
    for (int k = 0; k < rows; ++k) {
      Pairs const factor = tile(a).row[r][k] + Pairs{};
      Pairs row;
      std::memcpy(&row, tile(b).row[k], sizeof row);
      low_sum = _mm512_fmadd_ps(low(factor), low(row), low_sum);
      high_sum = _mm512_fmadd_ps(high(factor), high(row), high_sum);
    }
    std::uint32_t* const result = tile(sum).row[r];
    _mm512_store_ps(result, _mm512_load_ps(result) + (low_sum + high_sum));
  }
}

}  // namespace annulus_test::amx

// Some compilers define intrinsics as macros.
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig annulus_test::amx::configure
#define _tile_release annulus_test::amx::release
#define _tile_zero annulus_test::amx::zero
#define _tile_loadd annulus_test::amx::load
#define _tile_stored annulus_test::amx::store
#define _tile_dpbf16ps annulus_test::amx::multiply_add
#define syscall annulus_test::amx::call_system
