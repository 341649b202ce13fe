// Run-time selection of the kernels of annulus::cpu. Compiled for the lowest level of the architecture.

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "annulus/backend/cpu/compiled/kernel_table.hpp"
#include "annulus/backend/cpu/compiled/processor.hpp"
#include "annulus/backend/cpu/kernels.hpp"
#include "annulus/backend/cpu/instruction_set.hpp"
#include "annulus/core/check.hpp"

// One table per level and element type, such as annulus_cpu_avx2_float. The build defines which levels exist.
#define ANNULUS_CPU_DECLARE(level)                                                       \
  extern "C" annulus::cpu::KernelTable<float> const annulus_cpu_##level##_float;         \
  extern "C" annulus::cpu::KernelTable<double> const annulus_cpu_##level##_double;       \
  extern "C" annulus::cpu::KernelTable<Eigen::half> const annulus_cpu_##level##_half;    \
  extern "C" annulus::cpu::KernelTable<Eigen::bfloat16> const annulus_cpu_##level##_bfloat16;
#define ANNULUS_CPU_LEVEL(level, name)                                                                       \
  LevelKernels {                                                                                             \
    Level::level, name, {                                                                                    \
      &annulus_cpu_##level##_float, &annulus_cpu_##level##_double, &annulus_cpu_##level##_half,              \
          &annulus_cpu_##level##_bfloat16                                                                    \
    }                                                                                                        \
  }

ANNULUS_CPU_DECLARE(baseline)
#if defined(ANNULUS_CPU_HAS_LEVELS)
ANNULUS_CPU_DECLARE(avx2)
ANNULUS_CPU_DECLARE(avx512)
ANNULUS_CPU_DECLARE(avx512_bf16)
ANNULUS_CPU_DECLARE(avx512_amx)
#endif

namespace annulus::cpu {
namespace {

template <class T>
using Table = KernelTable<T> const*;

/// All kernels of a level.
struct LevelKernels {
  Level level;
  std::string_view name;
  std::tuple<Table<float>, Table<double>, Table<Eigen::half>, Table<Eigen::bfloat16>> tables;
};

/// All levels of this build, in ascending order.
auto const levels = std::to_array({
    ANNULUS_CPU_LEVEL(baseline, target_name),
#if defined(ANNULUS_CPU_HAS_LEVELS)
    ANNULUS_CPU_LEVEL(avx2, "avx2"),
    ANNULUS_CPU_LEVEL(avx512, "avx512"),
    ANNULUS_CPU_LEVEL(avx512_bf16, "avx512_bf16"),
    ANNULUS_CPU_LEVEL(avx512_amx, "avx512_amx"),
#endif
});

/// The widest supported level, or the one that ANNULUS_CPU_TARGET names; throws Error if that one is not supported.
LevelKernels const& choose() {
  Level const widest = widest_level();
  LevelKernels const* chosen = &levels.front();
  for (LevelKernels const& one : levels)
    if (one.level <= widest) chosen = &one;
  char const* const requested = std::getenv("ANNULUS_CPU_TARGET");
  if (!requested || !*requested) return *chosen;
  std::string accepted;
  for (LevelKernels const& one : levels) {
    if (one.level > widest) break;
    if (one.name == requested) return one;
    accepted += (accepted.empty() ? "" : ", ") + std::string(one.name);
  }
  throw Error(message_of("the environment variable ANNULUS_CPU_TARGET is '", requested, "'; this processor accepts: ", accepted));
}

LevelKernels const& chosen() {
  static LevelKernels const& kernels = choose();
  return kernels;
}

template <class T>
KernelTable<T> const& kernels_of() {
  return *std::get<Table<T>>(chosen().tables);
}

}  // namespace

inline namespace ANNULUS_CPU_KERNELS {

template <class T>
void fold(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
          RunningState<Accumulator<T>, HostMemory> const& state, StepDocuments const& documents, int threads) {
  kernels_of<T>().fold(step, operands, state, documents, threads);
}

template <class T>
void add_gradients(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
                   BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const& backward,
                   StepGradients<Accumulator<T>, HostMemory> const& gradients, StepDocuments const& documents,
                   int threads) {
  kernels_of<T>().add_gradients(step, operands, backward, gradients, documents, threads);
}

#define ANNULUS_CPU_INSTANTIATE(T)                                                                       \
  template void fold<T>(HostStep<T> const&, StepOperands<T, HostMemory> const&,                          \
                        RunningState<Accumulator<T>, HostMemory> const&, StepDocuments const&, int);     \
  template void add_gradients<T>(HostStep<T> const&, StepOperands<T, HostMemory> const&,                 \
                                 BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const&, \
                                 StepGradients<Accumulator<T>, HostMemory> const&, StepDocuments const&, int);
ANNULUS_CPU_INSTANTIATE(float)
ANNULUS_CPU_INSTANTIATE(double)
ANNULUS_CPU_INSTANTIATE(Eigen::half)
ANNULUS_CPU_INSTANTIATE(Eigen::bfloat16)

std::string_view cpu_target_name() { return chosen().name; }

std::vector<std::string_view> cpu_target_names() {
  std::vector<std::string_view> names;
  for (LevelKernels const& one : levels)
    if (one.level <= widest_level()) names.push_back(one.name);
  return names;
}

PeakLoop peak_loop_of(DataType type) {
  switch (type) {
    case DataType::float64: return kernels_of<double>().peak_loop();
    case DataType::bfloat16: return kernels_of<Eigen::bfloat16>().peak_loop();
    case DataType::float16: return kernels_of<Eigen::half>().peak_loop();
    default: return kernels_of<float>().peak_loop();
  }
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
}  // namespace annulus::cpu
