// Kernels of one element type at one instruction-set level. The build defines ANNULUS_CPU_ELEMENT, the type, and
// ANNULUS_CPU_TABLE, the name of the exported table, and passes the compiler flags of the level.

#include "annulus/backend/cpu/compiled/kernel_table.hpp"
#include "annulus/backend/cpu/kernels.hpp"
#include "annulus/backend/cpu/simd/peak.hpp"

extern "C" annulus::cpu::KernelTable<ANNULUS_CPU_ELEMENT> const ANNULUS_CPU_TABLE;
annulus::cpu::KernelTable<ANNULUS_CPU_ELEMENT> const ANNULUS_CPU_TABLE = {
    annulus::cpu::fold<ANNULUS_CPU_ELEMENT>, annulus::cpu::add_gradients<ANNULUS_CPU_ELEMENT>,
    annulus::cpu::peak_loop<ANNULUS_CPU_ELEMENT>};
