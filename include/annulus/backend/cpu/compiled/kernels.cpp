// Kernels of one element type at one instruction-set level. The build defines ANNULUS_CPU_ELEMENT, the type, and
// ANNULUS_CPU_TABLE, the name of the exported table, and passes the compiler flags of the level.

#include "annulus/backend/cpu/kernels.hpp"

extern "C" annulus::cpu::detail::KernelTable<ANNULUS_CPU_ELEMENT> const ANNULUS_CPU_TABLE;
constinit annulus::cpu::detail::KernelTable<ANNULUS_CPU_ELEMENT> const ANNULUS_CPU_TABLE =
    annulus::cpu::detail::kernels<ANNULUS_CPU_ELEMENT>();
