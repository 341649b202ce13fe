#pragma once
// Engines, operators and functions, with their NKI names.

#include <string_view>

namespace annulus::nki {

/// Five compute engines, the DMA queues and the collective cores of one physical core.
enum class Engine { tensor, vector, scalar, gpsimd, sync, dma, collective };
inline constexpr int engine_count = 7;
constexpr std::string_view name_of(Engine engine) {
  constexpr std::string_view names[] = {"tensor", "vector", "scalar", "gpsimd", "sync", "dma", "collective"};
  return names[static_cast<int>(engine)];
}

/// Binary operators of VectorE and GpSimdE, and of reductions.
enum class Operator {
  add,
  subtract,
  multiply,
  maximum,
  minimum,
  equal,
  not_equal,
  greater,
  greater_equal,
  less,
  less_equal,
  logical_and,
  logical_or
};
constexpr std::string_view name_of(Operator op) {
  constexpr std::string_view names[] = {"add",        "subtract",    "multiply",  "maximum",       "minimum",
                                        "equal",      "not_equal",   "greater",   "greater_equal", "less",
                                        "less_equal", "logical_and", "logical_or"};
  return names[static_cast<int>(op)];
}
constexpr bool is_comparison(Operator op) { return op >= Operator::equal && op <= Operator::less_equal; }

/// Elementwise functions of Activation.
enum class Function { copy, exp, log, tanh, square, abs, sqrt, rsqrt, reciprocal };
constexpr std::string_view name_of(Function function) {
  constexpr std::string_view names[] = {"copy", "exp", "log", "tanh", "square", "abs", "sqrt", "rsqrt", "reciprocal"};
  return names[static_cast<int>(function)];
}

/// Action of an instruction on the 128 internal accumulators (one per partition) of its engine.
enum class ReduceCommand { idle, reset, reduce, reset_reduce };
constexpr std::string_view name_of(ReduceCommand command) {
  constexpr std::string_view names[] = {"idle", "reset", "reduce", "reset_reduce"};
  return names[static_cast<int>(command)];
}

}  // namespace annulus::nki
