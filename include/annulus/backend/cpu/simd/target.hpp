#pragma once
// Instruction set of the compiler's flags: the namespace of its kernels, and its vector widths.

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#endif

#if defined(__FAST_MATH__)
#error \
    "annulus: -ffast-math gives wrong results, as masks need infinities and exponentials rounding; leave it out, or at least add -fno-finite-math-only -fno-associative-math, for files that include annulus/backend/cpu"
#endif

// Kernels for different instruction sets are in different namespaces. Translation units that exchange Eigen tensors
// must still use the same flags, as Eigen's alignment depends on them.
#if defined(__AVX512F__) && defined(__AVX512BF16__) && defined(__linux__) && \
    (defined(__AMX_BF16__) || defined(__AMXBF16__))  // the latter in older Clang
#define ANNULUS_CPU_INSTRUCTIONS avx512_amx
#define ANNULUS_CPU_HAS_PAIRS
#define ANNULUS_CPU_HAS_AMX
#elif defined(__AVX512F__) && defined(__AVX512BF16__)
#define ANNULUS_CPU_INSTRUCTIONS avx512_bf16
#define ANNULUS_CPU_HAS_PAIRS
#elif defined(__AVX512F__)
#define ANNULUS_CPU_INSTRUCTIONS avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define ANNULUS_CPU_INSTRUCTIONS avx2
#elif defined(__AVX__)
#define ANNULUS_CPU_INSTRUCTIONS avx
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define ANNULUS_CPU_INSTRUCTIONS neon_bf16
#define ANNULUS_CPU_HAS_PAIRS
#define ANNULUS_CPU_HAS_QUADS
#elif defined(__ARM_NEON)
#define ANNULUS_CPU_INSTRUCTIONS neon
#else
#define ANNULUS_CPU_INSTRUCTIONS generic
#endif

// Namespace of the code that calls the kernels: programs that link annulus::cpu select a target at run time.
#if defined(ANNULUS_CPU_COMPILED)
#define ANNULUS_CPU_KERNELS compiled
#else
#define ANNULUS_CPU_KERNELS ANNULUS_CPU_INSTRUCTIONS
#endif

namespace annulus::cpu::detail {

/// Benchmark of the fastest multiply-add instructions for elements of a type.
struct PeakLoop {
  char const* name;
  double (*run)(long repetitions);  ///< runs them on registers alone; returns the number of floating-point operations
};

inline namespace ANNULUS_CPU_INSTRUCTIONS {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64, vector_registers = 32;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32, vector_registers = 16;
#elif defined(__ARM_NEON)
inline constexpr int vector_bytes = 16, vector_registers = 32;
#else
inline constexpr int vector_bytes = 16, vector_registers = 16;
#endif

/// Name of the instruction set that this code is compiled for.
#define ANNULUS_CPU_NAME_OF(target) #target
#define ANNULUS_CPU_NAME(target) ANNULUS_CPU_NAME_OF(target)
inline constexpr char const* target_name = ANNULUS_CPU_NAME(ANNULUS_CPU_INSTRUCTIONS);
#undef ANNULUS_CPU_NAME
#undef ANNULUS_CPU_NAME_OF

}  // namespace ANNULUS_CPU_INSTRUCTIONS
}  // namespace annulus::cpu::detail
