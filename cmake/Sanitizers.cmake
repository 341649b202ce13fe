# annulus_sanitizers: flags of ANNULUS_SANITIZE, for tests, examples, benchmarks, annulus::cpu and annulus::nki.

option(ANNULUS_BUILD_FUZZERS "Build the fuzz targets of the tests with libFuzzer, which Clang has" OFF)
set(default_sanitizers "")
if(ANNULUS_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "ANNULUS_BUILD_FUZZERS requires libFuzzer; the compiler is ${CMAKE_CXX_COMPILER_ID}; accepted: "
                        "-DCMAKE_CXX_COMPILER=clang++, or without the option targets that replay their corpus")
  endif()
  # All code is instrumented, so that libFuzzer sees which branches an input reaches.
  set(default_sanitizers "address,undefined,fuzzer-no-link")
endif()
set(ANNULUS_SANITIZE "${default_sanitizers}" CACHE STRING
    "Sanitizers: \"address,undefined\" or \"thread\"; empty for none")
if(ANNULUS_SANITIZE)
  add_library(annulus_sanitizers INTERFACE)
  set(flags -fsanitize=${ANNULUS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(annulus_sanitizers INTERFACE ${flags})
  target_compile_definitions(annulus_sanitizers INTERFACE ANNULUS_SANITIZED=1)
  target_link_options(annulus_sanitizers INTERFACE ${flags})
endif()
