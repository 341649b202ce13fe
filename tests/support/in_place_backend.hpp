#pragma once
// CpuBackend whose steps with few query rows never pack keys and values.

#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/backend/cpu/decode/decode_fold.hpp>

namespace annulus_test {

/// CpuBackend that reads keys and values where they are in every step with few query rows, however few keys it has.
struct InPlaceBackend : annulus::CpuBackend {
  template <class T, class Predicate>
  void fold(annulus::Step<T, Predicate, annulus::HostMemory> const& step,
            annulus::StepOperands<T, annulus::HostMemory> const& operands,
            annulus::RunningState<annulus::Accumulator<T>, annulus::HostMemory> state) {
    using namespace annulus::cpu::detail;
    documents.assign(step);
    sections.assign(step, documents, operands, false);
    AnyPredicate const predicate = AnyPredicate::of(*step.predicate);
    auto const erased = step.with_predicate(predicate);
    StepExtents<BlockElement<T>> const extents(operands);
    if (extents.rows(0).count() <= KeySplits::most_rows<annulus::Accumulator<T>>)
      DecodeFold<T>({erased, operands, state, documents, sections, threads}).run();
    else
      annulus::CpuBackend::fold(step, operands, state);
  }
};

}  // namespace annulus_test
