#pragma once
// Instruction-set levels of annulus::cpu, and detection of those that the processor and the operating system support.
//
// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID, and volume 1, chapters 13 (XSAVE) and
// 18 (AMX); the levels v3 and v4 are those of the x86-64 psABI, section 3.1.1.

#include <cstdint>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace annulus::cpu {

/// In ascending order: a processor that supports a level supports all before it.
enum class Level { baseline, avx2, avx512, avx512_bf16, avx512_amx };

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

  /// The widest supported level.
  Level widest() const {
    if (!has_avx2()) return Level::baseline;
    if (!has_avx512()) return Level::avx2;
    if (!has(more_eax_, 5)) return Level::avx512;
    return has_amx() ? Level::avx512_amx : Level::avx512_bf16;
  }

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

inline Level widest_level() { return ProcessorFeatures().widest(); }

#else

inline Level widest_level() { return Level::baseline; }

#endif

}  // namespace annulus::cpu
