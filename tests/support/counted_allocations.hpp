#pragma once
// Counting replacements of new and delete for all threads, which fail on request. To be included by one file of a
// program.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "support/allocation_counts.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored \
    "-Wmismatched-new-delete"  // GCC 12 does not recognise that new and delete are replaced together
#endif

namespace annulus_test {

inline long bytes_of([[maybe_unused]] void* memory) {
#if defined(__GLIBC__)
  return static_cast<long>(malloc_usable_size(memory));
#else
  return 0;
#endif
}

inline void* counted(std::size_t bytes, std::size_t alignment) {
  if (allocations_until_failure >= 0 && allocations_until_failure-- == 0) throw std::bad_alloc();
  ++allocations;
  std::size_t const whole = std::max<std::size_t>((bytes + alignment - 1) / alignment, 1) * alignment;
  void* const memory = std::aligned_alloc(alignment, whole);
  if (!memory) throw std::bad_alloc();
  ++live_allocations;
  live_bytes += bytes_of(memory);
  return memory;
}

inline void* counted_or_null(std::size_t bytes) noexcept {
  try {
    return counted(bytes, alignof(std::max_align_t));
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
}

inline void release(void* memory) noexcept {
  if (!memory) return;
  --live_allocations;
  live_bytes -= bytes_of(memory);
  std::free(memory);
}

}  // namespace annulus_test

void* operator new(std::size_t bytes) { return annulus_test::counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return annulus_test::counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return annulus_test::counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return annulus_test::counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept { return annulus_test::counted_or_null(bytes); }
void* operator new[](std::size_t bytes, std::nothrow_t const&) noexcept { return annulus_test::counted_or_null(bytes); }
void operator delete(void* memory, std::nothrow_t const&) noexcept { annulus_test::release(memory); }
void operator delete[](void* memory, std::nothrow_t const&) noexcept { annulus_test::release(memory); }
void operator delete(void* memory) noexcept { annulus_test::release(memory); }
void operator delete[](void* memory) noexcept { annulus_test::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { annulus_test::release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { annulus_test::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { annulus_test::release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { annulus_test::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { annulus_test::release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { annulus_test::release(memory); }
