#pragma once
// Counts what a program allocates, on all threads. Replaces new and delete: for one file of a program.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored \
    "-Wmismatched-new-delete"  // GCC 12 does not see that new and delete are replaced together
#endif

namespace annulus_test {

/// Calls of new so far.
inline std::atomic<long> allocations{0};

inline void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  std::size_t const whole = std::max<std::size_t>((bytes + alignment - 1) / alignment, 1) * alignment;
  void* const memory = std::aligned_alloc(alignment, whole);
  if (!memory) throw std::bad_alloc();
  return memory;
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
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  return annulus_test::counted(bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t bytes, std::nothrow_t const&) noexcept {
  return annulus_test::counted(bytes, alignof(std::max_align_t));
}
void operator delete(void* memory, std::nothrow_t const&) noexcept { std::free(memory); }
void operator delete[](void* memory, std::nothrow_t const&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
