#pragma once
// Prefetching, and the cache of this processor that is best for it.
//
// Family of a processor: AMD64 Architecture Programmer's Manual, volume 3, appendix E.3, CPUID functions 0 and 1.

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdint>

#include "annulus/backend/cpu/simd/vector.hpp"
#include "annulus/core/index.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

enum class Cache { l1, l2 };

/// Prefetches the cache line of an element.
template <class T>
[[gnu::always_inline]] inline void prefetch_line(T const* element, Cache cache) {
  if (cache == Cache::l1)
    __builtin_prefetch(element, 0, 3);
  else
    __builtin_prefetch(element, 0, 2);
}

/// Prefetches a row of `dim` elements, unless it is not contiguous.
template <class T>
[[gnu::always_inline]] inline void prefetch_row(T const* row, Index dim_stride, Index dim, Cache cache = Cache::l1) {
  if (dim_stride == 1)
    for (Index d = 0; d < dim; d += 64 / static_cast<Index>(sizeof(T))) prefetch_line(row + d, cache);
}

/// Prefetches the beginning of a row, if the row `stride` elements before it begins in another page of memory, for the
/// address of the page: lines that are prefetched shortly before they are read leave no time to look it up.
template <class T>
[[gnu::always_inline]] inline void prefetch_page(T const* row, Index stride) {
  constexpr std::uintptr_t page = 4096;
  if (reinterpret_cast<std::uintptr_t>(row) % page < static_cast<std::uintptr_t>(stride) * sizeof(T))
    prefetch_line(row, Cache::l1);
}

/// The cache that rows which are read once, in order, are prefetched to. L1, shortly before they are read, on AMD's
/// family 26 (Zen 5). Elsewhere L2, long before: on Zen 4 lines that wait for memory on their way to L1 stop the
/// arithmetic.
inline Cache cache_of_streams() {
#if defined(__x86_64__)
  static Cache const cache = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    bool const is_amd = __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_AMD_ebx &&
                        ecx == signature_AMD_ecx && edx == signature_AMD_edx;
    if (!is_amd || !__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return Cache::l2;
    unsigned const base = eax >> 8 & 0xf, extended = eax >> 20 & 0xff;
    return base == 0xf && base + extended == 26 ? Cache::l1 : Cache::l2;
  }();
  return cache;
#else
  return Cache::l2;
#endif
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
