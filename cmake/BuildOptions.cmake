# annulus_build_options: compile options of tests, examples and benchmarks, but not of consumers of the library.

include(CompilerWarnings)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

set(CMAKE_CXX_EXTENSIONS OFF)
add_library(annulus_build_options INTERFACE)
annulus_enable_warnings(annulus_build_options)
if(ANNULUS_SANITIZE)
  target_link_libraries(annulus_build_options INTERFACE annulus_sanitizers)
  # In instrumented code GCC warns of initialised values.
  target_compile_options(annulus_build_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
