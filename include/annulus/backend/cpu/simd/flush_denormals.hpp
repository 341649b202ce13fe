#pragma once
// Flushing of denormals to zero: they cost hundreds of cycles each on some processors, and weights that small add
// nothing.

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace annulus::cpu {

/// Sets FTZ and DAZ of this thread for the lifetime of the object: denormal operands and results become 0. No effect
/// without SSE2.
class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }
#else
  FlushDenormals() = default;
#endif
  FlushDenormals(FlushDenormals const&) = delete;
  FlushDenormals& operator=(FlushDenormals const&) = delete;

 private:
#if defined(__SSE2__)
  unsigned before_;
#endif
};

}  // namespace annulus::cpu
