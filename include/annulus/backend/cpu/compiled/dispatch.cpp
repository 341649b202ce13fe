// Run-time selection of the kernels of annulus::cpu. Compiled for the lowest level of the architecture.
//
// Features of the processor: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID, and volume
// 1, chapters 13 (XSAVE) and 18 (AMX); the levels v3 and v4 are those of the x86-64 psABI, section 3.1.1. Arm: Linux
// kernel documentation, "ARM64 ELF hwcaps".

#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "annulus/backend/cpu/kernels.hpp"
#include "annulus/core/error.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

// One table per level and element type, such as annulus_cpu_avx2_float. The build defines which levels exist. Levels
// that add products of bfloat16 have kernels of that type alone, and those of the level below for other types.
#define ANNULUS_CPU_DECLARE(level, type, Type) \
  extern "C" annulus::cpu::detail::KernelTable<Type> const annulus_cpu_##level##_##type;
#define ANNULUS_CPU_DECLARE_ALL(level)          \
  ANNULUS_CPU_DECLARE(level, float, float)      \
  ANNULUS_CPU_DECLARE(level, double, double)    \
  ANNULUS_CPU_DECLARE(level, half, Eigen::half) \
  ANNULUS_CPU_DECLARE(level, bfloat16, Eigen::bfloat16)
#define ANNULUS_CPU_LEVEL(name, others, of_bfloat16)                                               \
  Level {                                                                                          \
    name, {                                                                                        \
      &annulus_cpu_##others##_float, &annulus_cpu_##others##_double, &annulus_cpu_##others##_half, \
          &annulus_cpu_##of_bfloat16##_bfloat16                                                    \
    }                                                                                              \
  }

ANNULUS_CPU_DECLARE_ALL(baseline)
#if defined(ANNULUS_CPU_HAS_LEVELS) && defined(__x86_64__)
ANNULUS_CPU_DECLARE_ALL(avx2)
ANNULUS_CPU_DECLARE_ALL(avx512)
ANNULUS_CPU_DECLARE(avx512_bf16, bfloat16, Eigen::bfloat16)
ANNULUS_CPU_DECLARE(avx512_amx, bfloat16, Eigen::bfloat16)
#elif defined(ANNULUS_CPU_HAS_LEVELS)
ANNULUS_CPU_DECLARE(neon_bf16, bfloat16, Eigen::bfloat16)
#endif

namespace annulus::cpu::detail {
namespace {

template <class T>
using Table = KernelTable<T> const*;

/// All kernels of a level.
struct Level {
  std::string_view name;
  std::tuple<Table<float>, Table<double>, Table<Eigen::half>, Table<Eigen::bfloat16>> tables;
};

/// All levels of this build, in ascending order: a processor that supports a level supports all before it.
auto const levels = std::to_array({
  ANNULUS_CPU_LEVEL(annulus_cpu_baseline_float.target, baseline, baseline),
#if defined(ANNULUS_CPU_HAS_LEVELS) && defined(__x86_64__)
      ANNULUS_CPU_LEVEL("avx2", avx2, avx2), ANNULUS_CPU_LEVEL("avx512", avx512, avx512),
      ANNULUS_CPU_LEVEL("avx512_bf16", avx512, avx512_bf16), ANNULUS_CPU_LEVEL("avx512_amx", avx512, avx512_amx),
#elif defined(ANNULUS_CPU_HAS_LEVELS)
      ANNULUS_CPU_LEVEL("neon_bf16", baseline, neon_bf16),
#endif
});

#if defined(__x86_64__)

/// Feature bits of the processor, from CPUID, and register states that the operating system saves, from XGETBV.
class ProcessorFeatures {
 public:
  ProcessorFeatures() {
    unsigned eax = 0, ebx = 0, edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &features_.ecx, &edx)) return;
    if (has(features_.ecx, 27)) saved_registers_ = enabled_registers();
    if (__get_cpuid_count(7, 0, &eax, &extended_.ebx, &extended_.ecx, &extended_.edx))
      __get_cpuid_count(7, 1, &more_eax_, &ebx, &eax, &edx);
    __get_cpuid(0x80000001, &eax, &ebx, &amd_ecx_, &edx);
  }

  /// Whether the processor has what each level above the baseline adds to the one before it.
  std::array<bool, 4> levels() const { return {has_avx2(), has_avx512(), has(more_eax_, 5), has_amx()}; }

 private:
  struct Registers {
    unsigned ebx = 0, ecx = 0, edx = 0;
  };

  static bool has(unsigned word, int bit) { return (word >> bit & 1) != 0; }
  bool saves(std::uint64_t registers) const { return (saved_registers_ & registers) == registers; }

  /// XCR0 of XGETBV: the register states that the operating system saves.
  static std::uint64_t enabled_registers() {
    std::uint32_t low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return std::uint64_t{high} << 32 | low;
  }

  /// x86-64-v3: SSE3 to SSE4.2, POPCNT, CMPXCHG16B, AVX, F16C, FMA, MOVBE; AVX2, BMI1, BMI2; LZCNT.
  bool has_avx2() const {
    for (int bit : {0, 9, 12, 13, 19, 20, 22, 23, 28, 29})
      if (!has(features_.ecx, bit)) return false;
    return saves(0x6) && has(extended_.ebx, 3) && has(extended_.ebx, 5) && has(extended_.ebx, 8) && has(amd_ecx_, 5);
  }
  /// x86-64-v4: AVX-512 F, DQ, CD, BW, VL.
  bool has_avx512() const {
    for (int bit : {16, 17, 28, 30, 31})
      if (!has(extended_.ebx, bit)) return false;
    return saves(0xe6);
  }
  bool has_amx() const { return has(extended_.edx, 22) && has(extended_.edx, 24) && saves(0x60000); }

  Registers features_, extended_;
  unsigned more_eax_ = 0, amd_ecx_ = 0;
  std::uint64_t saved_registers_ = 0;
};

#else

struct ProcessorFeatures {
#if defined(__aarch64__) && defined(__linux__)
  /// FEAT_BF16, from the hardware capabilities that Linux reports.
  std::array<bool, 1> levels() const { return {(getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0}; }
#else
  std::array<bool, 0> levels() const { return {}; }
#endif
};

#endif

/// The levels that the processor and the operating system support.
std::span<Level const> supported() {
  std::size_t count = 1;
  for (bool const has : ProcessorFeatures().levels()) {
    if (!has || count == levels.size()) break;
    ++count;
  }
  return std::span(levels).first(count);
}

/// The widest supported level, or the one that ANNULUS_CPU_TARGET names; throws Error if that one is not supported.
Level const& choose() {
  char const* const requested = std::getenv("ANNULUS_CPU_TARGET");
  if (!requested || !*requested) return supported().back();
  std::string accepted;
  for (Level const& one : supported()) {
    if (one.name == requested) return one;
    accepted += (accepted.empty() ? "" : ", ") + std::string(one.name);
  }
  throw Error(annulus::detail::message_of("the environment variable ANNULUS_CPU_TARGET is '", requested,
                                          "'; this processor accepts: ", accepted));
}

Level const& chosen() {
  static Level const& choice = choose();
  return choice;
}

}  // namespace

inline namespace ANNULUS_CPU_KERNELS {

template <class T>
KernelTable<T> kernels() {
  return *std::get<Table<T>>(chosen().tables);
}
template KernelTable<float> kernels();
template KernelTable<double> kernels();
template KernelTable<Eigen::half> kernels();
template KernelTable<Eigen::bfloat16> kernels();

std::string_view cpu_target_name() { return chosen().name; }

std::vector<std::string_view> cpu_target_names() {
  std::vector<std::string_view> names;
  for (Level const& one : supported()) names.push_back(one.name);
  return names;
}

std::string target_refusal() {
  try {
    chosen();
    return {};
  } catch (Error const& error) {
    return error.what();
  }
}

}  // namespace ANNULUS_CPU_KERNELS
}  // namespace annulus::cpu::detail
