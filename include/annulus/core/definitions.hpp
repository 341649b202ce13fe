#pragma once
// Where functions that are long, but no templates, are defined: in a header-only program by each translation unit that
// includes their header; in a program that links annulus::cpu (ANNULUS_CPU_COMPILED) by that library alone, in one file
// that defines ANNULUS_CPU_DEFINES. A header declares them without `inline`, and defines them as ANNULUS_INLINE below
// #if defined(ANNULUS_DEFINITIONS). nki/definitions.hpp is the same for the tile programs.

#if !defined(ANNULUS_CPU_COMPILED)
#define ANNULUS_DEFINITIONS
#define ANNULUS_INLINE inline
#elif defined(ANNULUS_CPU_DEFINES)
#define ANNULUS_DEFINITIONS
#define ANNULUS_INLINE
#endif
