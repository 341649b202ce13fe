# annulus_build_options: what tests, examples and benchmarks are compiled with, and consumers of the library are not.

include(CompilerWarnings)

set(ANNULUS_SANITIZE "" CACHE STRING "Sanitizers: \"address,undefined\" or \"thread\"; empty for none")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

set(CMAKE_CXX_EXTENSIONS OFF)
add_library(annulus_build_options INTERFACE)
annulus_enable_warnings(annulus_build_options)
if(ANNULUS_SANITIZE)
  set(flags -fsanitize=${ANNULUS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(annulus_build_options INTERFACE ${flags})
  target_link_options(annulus_build_options INTERFACE ${flags})
  # Instrumented code makes GCC warn of values that are set.
  target_compile_options(annulus_build_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
