#pragma once
// Where functions of the tile programs that are long, but no templates, are defined: in a header-only program by each
// translation unit that includes their header; in a program that links annulus::nki (ANNULUS_NKI_COMPILED) by that
// library alone, in one file that defines ANNULUS_NKI_DEFINES. A header declares them without `inline`, and defines them
// as ANNULUS_NKI_INLINE below #if defined(ANNULUS_NKI_DEFINITIONS).

#if !defined(ANNULUS_NKI_COMPILED)
#define ANNULUS_NKI_DEFINITIONS
#define ANNULUS_NKI_INLINE inline
#elif defined(ANNULUS_NKI_DEFINES)
#define ANNULUS_NKI_DEFINITIONS
#define ANNULUS_NKI_INLINE
#endif
