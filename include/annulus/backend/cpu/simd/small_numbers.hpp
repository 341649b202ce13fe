#pragma once
// Numbers too small to be normal cost hundreds of cycles each on some processors, and weights that small add nothing.

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace annulus::cpu {

/// While it lives, this thread takes such operands and results for 0 (where the processor can).
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
