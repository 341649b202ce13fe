#pragma once
// What builds without NDEBUG check beyond what they are asked to. In a program that links annulus::cpu the build of
// that library decides, for all calls alike; in a header-only program its own, which must be that of each of its files.

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/ring_plan.hpp"

#if defined(ANNULUS_DEFINITIONS) && !defined(NDEBUG)
#include "annulus/schedule/check_plan.hpp"
#endif

namespace annulus::detail {

/// Value of an unset Options::checked for operands in host memory.
bool is_checked_by_default();

/// Throws Error if a plan that is quick to check has a fault.
void check_small_plan(RingPlan const& plan);

#if defined(ANNULUS_DEFINITIONS) && defined(NDEBUG)
ANNULUS_INLINE bool is_checked_by_default() { return false; }
ANNULUS_INLINE void check_small_plan(RingPlan const&) {}
#elif defined(ANNULUS_DEFINITIONS)
ANNULUS_INLINE bool is_checked_by_default() { return true; }
ANNULUS_INLINE void check_small_plan(RingPlan const& plan) {
  if (is_quick_to_check(plan)) check_plan(plan);
}
#endif

}  // namespace annulus::detail
