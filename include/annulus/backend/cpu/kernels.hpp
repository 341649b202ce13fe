#pragma once
// Entry points of the CPU kernels, which are templates over the element type alone and hold all code that takes long to
// compile; and the instruction set that they use.
//
// A program that links annulus::cpu, which defines ANNULUS_CPU_COMPILED, calls kernels that are compiled for several
// instruction sets and selected at run time. Otherwise each program compiles the kernels for the instruction set of its
// compiler flags.

#include <string>
#include <string_view>
#include <vector>

#include "annulus/backend/cpu/kernel_arguments.hpp"
#include "annulus/backend/cpu/simd/target.hpp"
#include "annulus/core/scalar.hpp"

#if !defined(ANNULUS_CPU_COMPILED)
#include "annulus/backend/cpu/decode/decode_fold.hpp"
#include "annulus/backend/cpu/panel/backward.hpp"
#include "annulus/backend/cpu/panel/forward.hpp"
#include "annulus/backend/cpu/simd/peak.hpp"
#include "annulus/backend/cpu/simd/result_rows.hpp"
#endif

namespace annulus::cpu::detail {

/// The kernels of element type T for one instruction set.
template <class T>
struct KernelTable {
  char const* target;  ///< name of the instruction set
  /// False if FoldArguments::results are given and not supported: then nothing is done.
  bool (*fold)(FoldArguments<T> const&);
  void (*add_gradients)(GradientArguments<T> const&);
  ScaleRow<T> scale_row;
  RowProduct<T> row_product;
  PeakLoop (*peak_loop)();
};

inline namespace ANNULUS_CPU_KERNELS {

#if defined(ANNULUS_CPU_COMPILED)

/// The kernels that this program uses.
template <class T>
KernelTable<T> kernels();

std::string_view cpu_target_name();
std::vector<std::string_view> cpu_target_names();

/// Why the environment variable ANNULUS_CPU_TARGET cannot be honoured; empty if it can.
std::string target_refusal();

#else

template <class T>
bool fold(FoldArguments<T> const& call) {
  bool const decodes = DecodeFold<T>::accepts(call);
  if (call.results && (decodes || !ForwardFold<T>::can_write_results(call))) return false;
  if (decodes)
    DecodeFold<T>(call).run();
  else
    ForwardFold<T>(call).run();
  return true;
}

template <class T>
constexpr KernelTable<T> kernels() {
  return {target_name,  fold<T>,        [](GradientArguments<T> const& call) { BackwardSum<T>(call).run(); },
          scale_row<T>, row_product<T>, peak_loop<T>};
}

inline std::string_view cpu_target_name() { return target_name; }
inline std::vector<std::string_view> cpu_target_names() { return {target_name}; }
inline std::string target_refusal() { return {}; }

#endif

/// Loop that measures the peak arithmetic rate for operands of this type.
inline PeakLoop peak_loop_of(DataType type) {
  switch (type) {
    case DataType::float64:
      return kernels<double>().peak_loop();
    case DataType::bfloat16:
      return kernels<Eigen::bfloat16>().peak_loop();
    case DataType::float16:
      return kernels<Eigen::half>().peak_loop();
    default:
      return kernels<float>().peak_loop();
  }
}

}  // namespace ANNULUS_CPU_KERNELS
}  // namespace annulus::cpu::detail

namespace annulus {

/// Name of the instruction set that CpuBackend uses: generic (the x86-64 baseline), avx2, avx512, avx512_bf16,
/// avx512_amx, neon or neon_bf16. A program that links annulus::cpu uses the widest one that the processor and the
/// operating system support, or the one that the environment variable ANNULUS_CPU_TARGET names; throws Error if that
/// one is not supported. Without annulus::cpu: the instruction set of the compiler's flags.
using cpu::detail::cpu_target_name;

/// All values that ANNULUS_CPU_TARGET accepts on this machine, in ascending order.
using cpu::detail::cpu_target_names;

}  // namespace annulus
