#pragma once
// Instruction set of CpuBackend: its name, the names to choose from, and the loop that measures its peak rate.

#include <string>
#include <string_view>
#include <vector>

#include "annulus/backend/cpu/simd/target.hpp"
#include "annulus/core/scalar.hpp"

#if !defined(ANNULUS_CPU_COMPILED)
#include "annulus/backend/cpu/simd/peak.hpp"
#endif

namespace annulus::cpu {
inline namespace ANNULUS_CPU_KERNELS {

#if defined(ANNULUS_CPU_COMPILED)

std::string_view cpu_target_name();
std::vector<std::string_view> cpu_target_names();

/// Why the environment variable ANNULUS_CPU_TARGET cannot be honoured; empty if it can.
std::string target_refusal();

/// Loop that measures the peak arithmetic rate for operands of this type.
PeakLoop peak_loop_of(DataType type);

#else

inline std::string_view cpu_target_name() { return target_name; }
inline std::vector<std::string_view> cpu_target_names() { return {target_name}; }
inline std::string target_refusal() { return {}; }

inline PeakLoop peak_loop_of(DataType type) {
  switch (type) {
    case DataType::float64: return peak_loop<double>();
    case DataType::bfloat16: return peak_loop<Eigen::bfloat16>();
    case DataType::float16: return peak_loop<Eigen::half>();
    default: return peak_loop<float>();
  }
}

#endif

}  // namespace ANNULUS_CPU_KERNELS
}  // namespace annulus::cpu

namespace annulus {

/// Name of the instruction set that CpuBackend uses: generic (the x86-64 baseline), avx2, avx512, avx512_bf16,
/// avx512_amx or neon. A program that links annulus::cpu uses the widest one that the processor and the operating
/// system support, or the one that the environment variable ANNULUS_CPU_TARGET names; throws Error if that one is not
/// supported. Without annulus::cpu: the instruction set of the compiler's flags.
using cpu::cpu_target_name;

/// All values that ANNULUS_CPU_TARGET accepts on this machine, in ascending order.
using cpu::cpu_target_names;

}  // namespace annulus
