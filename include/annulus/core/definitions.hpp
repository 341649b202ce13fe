#pragma once
// Where functions that are long, but no templates, are defined: in a header-only program by each translation unit that
// includes their header; in a program that links annulus::cpu (ANNULUS_CPU_COMPILED) by that library alone, in one file
// that defines ANNULUS_CPU_DEFINES, and for the tile programs of nki/ in one that defines ANNULUS_CPU_DEFINES_NKI. A
// header declares them without `inline`, and defines them as ANNULUS_INLINE below #if defined(ANNULUS_DEFINITIONS), in
// nki/ below #if defined(ANNULUS_NKI_DEFINITIONS).

#if !defined(ANNULUS_CPU_COMPILED)
#define ANNULUS_DEFINITIONS
#define ANNULUS_NKI_DEFINITIONS
#define ANNULUS_INLINE inline
#elif defined(ANNULUS_CPU_DEFINES)
#define ANNULUS_DEFINITIONS
#define ANNULUS_INLINE
#elif defined(ANNULUS_CPU_DEFINES_NKI)
#define ANNULUS_NKI_DEFINITIONS
#define ANNULUS_INLINE
#endif
