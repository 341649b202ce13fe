# annulus_build_options: compile options of tests, examples and benchmarks, but not of consumers of the library.
# annulus_precompile_umbrella(<target> [MPI] <file>...)
#     In a short build (ANNULUS_SHORT_BUILD) in Release, if each of the files includes annulus/annulus.hpp and defines no
#     macro, the target is compiled with that header precompiled, for annulus::cpu (MPI: and annulus::mpi) and the flags
#     of tests. As the files include it themselves, other builds find what they lack.

include(CompilerWarnings)

set(CMAKE_CXX_EXTENSIONS OFF)
add_library(annulus_build_options INTERFACE)
annulus_enable_warnings(annulus_build_options)
if(ANNULUS_SANITIZE)
  target_link_libraries(annulus_build_options INTERFACE annulus_sanitizers)
  # In instrumented code GCC warns of initialised values.
  target_compile_options(annulus_build_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

function(annulus_precompile_umbrella target)
  cmake_parse_arguments(PARSE_ARGV 1 umbrella "MPI" "" "")
  if(NOT ANNULUS_SHORT_BUILD OR NOT CMAKE_BUILD_TYPE STREQUAL "Release")
    return()
  endif()
  foreach(file IN LISTS umbrella_UNPARSED_ARGUMENTS)
    file(STRINGS "${file}" found REGEX "^#include <annulus/annulus\\.hpp>")
    file(STRINGS "${file}" defines REGEX "^#define ")
    if(NOT found OR defines)
      return()
    endif()
  endforeach()
  set(precompiled annulus_umbrella)
  set(library annulus::cpu)
  if(umbrella_MPI)
    set(precompiled annulus_umbrella_mpi)
    list(APPEND library annulus::mpi)
  endif()
  if(NOT TARGET ${precompiled})
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/umbrella.cpp" CONTENT "// Holds the precompiled header.\n")
    add_library(${precompiled} OBJECT "${PROJECT_BINARY_DIR}/umbrella.cpp")
    target_link_libraries(${precompiled} PRIVATE annulus_build_options ${library})
    target_compile_options(${precompiled} PRIVATE -O1)
    target_precompile_headers(${precompiled} PRIVATE <annulus/annulus.hpp>)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${precompiled})
endfunction()
