#pragma once
// Version of the library: the one place where it is written. CMake reads it from here.

#include <string_view>

/// Changes with an incompatible interface.
#define ANNULUS_VERSION_MAJOR 0
/// Changes with an extended one; before 1.0 also with an incompatible one.
#define ANNULUS_VERSION_MINOR 1
/// Changes with a corrected one.
#define ANNULUS_VERSION_PATCH 0

namespace annulus {

namespace detail {

#define ANNULUS_TEXT_OF(number) #number
#define ANNULUS_VERSION_TEXT(major, minor, patch) \
  ANNULUS_TEXT_OF(major) "." ANNULUS_TEXT_OF(minor) "." ANNULUS_TEXT_OF(patch)
inline constexpr char version_text[] =
    ANNULUS_VERSION_TEXT(ANNULUS_VERSION_MAJOR, ANNULUS_VERSION_MINOR, ANNULUS_VERSION_PATCH);
#undef ANNULUS_VERSION_TEXT
#undef ANNULUS_TEXT_OF

}  // namespace detail

/// "major.minor.patch" of these headers, null-terminated. The macros ANNULUS_VERSION_MAJOR, _MINOR and _PATCH are for
/// the preprocessor.
constexpr std::string_view version() { return detail::version_text; }

}  // namespace annulus
