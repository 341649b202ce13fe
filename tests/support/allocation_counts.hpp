#pragma once
// Allocation counters of a program, and a switch that makes allocations fail. Active if one file of the program
// includes support/counted_allocations.hpp.

#include <atomic>

namespace annulus_test {

/// Number of calls of new so far.
inline std::atomic<long> allocations{0};
/// Number of allocations not yet deleted, and their bytes (0 if the C library does not report sizes).
inline std::atomic<long> live_allocations{0}, live_bytes{0};

/// Number of allocations of this thread that succeed before one fails with bad_alloc; negative: none fails.
inline thread_local long allocations_until_failure = -1;

}  // namespace annulus_test
