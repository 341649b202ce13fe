#pragma once
// Arguments of the CPU kernels: a step with a type-erased predicate, its operands and results.

#include <concepts>
#include <cstring>

#include "annulus/backend/cpu/threads/document_sections.hpp"
#include "annulus/backend/step.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu::detail {

/// Type-erased reference to a predicate, so that kernels are compiled once for all predicate types. A call covers a row
/// of keys: the predicate is compiled into the loop.
struct AnyPredicate {
  void const* object = nullptr;
  void (*restrict)(void const*, Index, Index, Index, Index const*, Index, bool*) = nullptr;  ///< null: all are visible

  template <class Predicate>
  static AnyPredicate of(Predicate const& predicate) {
    if constexpr (std::same_as<Predicate, EveryPair>) return {};
#if defined(__x86_64__) && !defined(__AVX2__)
    if (__builtin_cpu_supports("avx2")) return {&predicate, restrict_with_avx2<Predicate>};
#endif
    return {&predicate, restrict_by<Predicate>};
  }
  bool admits_all() const { return !restrict; }
  /// Clears visible[i] for the keys, given by position, that the query does not see.
  void restrict_row(Index batch, Index head, Index query, Index const* keys, Index count, bool* visible) const {
    if (restrict) restrict(object, batch, head, query, keys, count, visible);
  }

 private:
  template <class Predicate>
  [[gnu::always_inline]] static void restrict_by(void const* self, Index batch, Index head, Index query,
                                                 Index const* keys, Index count, bool* visible) {
    auto const& asked = *static_cast<Predicate const*>(self);
    // Without a branch the compiler can vectorise the loop, but hidden pairs must not be asked about.
    if (!std::memchr(visible, 0, static_cast<std::size_t>(count)))
      for (Index i = 0; i < count; ++i) visible[i] = static_cast<bool>(asked(batch, head, query, keys[i]));
    else
      for (Index i = 0; i < count; ++i)
        visible[i] = visible[i] && static_cast<bool>(asked(batch, head, query, keys[i]));
  }

#if defined(__x86_64__) && !defined(__AVX2__)
  /// The same with vectors of positions, which x86-64 without extensions cannot compare. AVX2 has no fused
  /// multiply-add, which could change what a predicate computes with floating-point numbers.
  template <class Predicate>
  [[gnu::target("avx2")]] static void restrict_with_avx2(void const* self, Index batch, Index head, Index query,
                                                         Index const* keys, Index count, bool* visible) {
    restrict_by<Predicate>(self, batch, head, query, keys, count, visible);
  }
#endif
};

/// Step in host memory with a type-erased predicate.
template <class T>
using HostStep = Step<T, AnyPredicate, HostMemory>;

/// Backend::fold: adds the step's keys and values to `state`, on `threads` threads (0: automatic, see CpuBackend).
template <class T>
struct FoldArguments {
  HostStep<T> const& step;
  StepOperands<T, HostMemory> const& operands;
  RunningState<Accumulator<T>, HostMemory> const& state;
  annulus::detail::StepDocuments const& documents;
  DocumentSections const& sections;
  int threads;
  /// Unless null, the step is the only one: the results are written, and the state is not used.
  ForwardResults<T, Accumulator<T>, HostMemory> const* results = nullptr;
};

/// Backend::add_gradients: adds the step's share to dq, dk, dv and, if given, dbias. `threads` as in FoldArguments.
template <class T>
struct GradientArguments {
  HostStep<T> const& step;
  StepOperands<T, HostMemory> const& operands;
  BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const& backward;
  StepGradients<Accumulator<T>, HostMemory> const& gradients;
  /// Written instead of the sums, whatever they hold: dq, dk and dv, all or none, of the only step of a pass, which may
  /// use the sum dq and does not use the sums dk and dv; and dbias. Without data: not written.
  GradientResults<T, HostMemory> const& written;
  bool overwrites_keys;  ///< dk and dv hold unspecified elements: all are written instead of added to
  annulus::detail::StepDocuments const& documents;
  DocumentSections const& sections;
  int threads;
};

/// to[d] = scale * from[d], rounded, for d < count.
template <class T>
using ScaleRow = void (*)(Accumulator<T> const* from, Accumulator<T> scale, T* to, Index count);
/// Sum over d < count of output[d] * dout[d], without elements whose output is 0.
template <class T>
using RowProduct = Accumulator<T> (*)(T const* output, T const* dout, Index count);

}  // namespace annulus::cpu::detail
