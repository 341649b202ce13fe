#pragma once
// What a program has allocated, and the order to refuse an allocation. Counts where support/counted_allocations.hpp is
// included by one file of the program.

#include <atomic>

namespace annulus_test {

/// Calls of new so far.
inline std::atomic<long> allocations{0};
/// Calls of new whose memory has not been deleted, and its bytes (0 where the C library does not tell).
inline std::atomic<long> live_allocations{0}, live_bytes{0};

/// Allocations that this thread may still make before one fails with bad_alloc; negative: none fails.
inline thread_local long allocations_until_failure = -1;

}  // namespace annulus_test
