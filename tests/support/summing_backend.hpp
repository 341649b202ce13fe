#pragma once
// CpuBackend that sums in memory before it writes results, also in a pass of one step.

#include <annulus/backend/cpu/cpu.hpp>

namespace annulus_test {

/// A derived class has no WritesResults of its own, see writes_results.
struct SummingBackend : annulus::CpuBackend {};
static_assert(annulus::writes_results<annulus::CpuBackend> && !annulus::writes_results<SummingBackend>);

}  // namespace annulus_test
