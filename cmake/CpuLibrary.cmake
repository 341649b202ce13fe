# annulus::cpu: the kernels of CpuBackend, compiled for several instruction sets (levels) and chosen at run time; and,
# for the lowest level, what does not depend on a program's types (attention/compiled.hpp, core/definitions.hpp).
#
# A kernel object file also holds functions of the standard library and of Eigen, compiled for its level. If the linker
# chose one of them for the rest of the program, the program would execute illegal instructions on older processors.
# Therefore every function in the object file of a level is made local (LocalFunctions.cmake).

set(ANNULUS_CPU_LEVELS ON CACHE STRING
    "Instruction sets of annulus::cpu: ON for all of the architecture, OFF for the baseline alone, native for this machine's alone")
set_property(CACHE ANNULUS_CPU_LEVELS PROPERTY STRINGS ON OFF native)
if(NOT ANNULUS_CPU_LEVELS MATCHES "^(ON|OFF|TRUE|FALSE|YES|NO|1|0|native)$")
  message(FATAL_ERROR "ANNULUS_CPU_LEVELS is '${ANNULUS_CPU_LEVELS}'; accepted are ON, OFF and native")
endif()

set(annulus_cpu_folder "${PROJECT_SOURCE_DIR}/include/annulus/backend/cpu/compiled")
set(annulus_cpu_types float double half bfloat16)
set(annulus_cpu_float float)
set(annulus_cpu_double double)
set(annulus_cpu_half Eigen::half)
set(annulus_cpu_bfloat16 Eigen::bfloat16)

# Flags of the levels of x86-64 and aarch64, in agreement with dispatch.cpp.
set(annulus_cpu_flags_baseline)
set(annulus_cpu_flags_avx2 -march=x86-64-v3)
set(annulus_cpu_flags_avx512 -march=x86-64-v4)
set(annulus_cpu_flags_avx512_bf16 -march=x86-64-v4 -mavx512bf16)
set(annulus_cpu_flags_avx512_amx -march=x86-64-v4 -mavx512bf16 -mamx-tile -mamx-bf16)
set(annulus_cpu_flags_neon_bf16 -march=armv8.2-a+bf16)

set(annulus_cpu_levels baseline)
set(annulus_cpu_levels_above)
set(annulus_cpu_baseline generic)  # its name in the program
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(annulus_cpu_levels_above avx2 avx512 avx512_bf16 avx512_amx)
  set(annulus_cpu_flags_baseline -march=x86-64)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  set(annulus_cpu_baseline neon)
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(${annulus_cpu_flags_neon_bf16} ANNULUS_COMPILER_HAS_ARM_BF16)
  if(ANNULUS_COMPILER_HAS_ARM_BF16)
    set(annulus_cpu_levels_above neon_bf16)
  endif()
endif()
# Levels whose functions are made local.
set(annulus_cpu_separate ${annulus_cpu_levels_above})
if(ANNULUS_CPU_LEVELS STREQUAL "native")
  # Kernels of the machine's instruction set, in place of those of the baseline. What is not a kernel stays at the
  # baseline: it exchanges Eigen tensors with the program, and must round as the program's own instances do.
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-march=native ANNULUS_COMPILER_HAS_MARCH_NATIVE)
  set(annulus_cpu_levels_above)
  set(annulus_cpu_separate)
  if(ANNULUS_COMPILER_HAS_MARCH_NATIVE)
    set(annulus_cpu_separate baseline)
  endif()
endif()
# Sanitizers do not support functions made local.
if(ANNULUS_CPU_LEVELS AND annulus_cpu_separate AND CMAKE_EXECUTABLE_FORMAT STREQUAL "ELF" AND NOT ANNULUS_SANITIZE)
  # With Clang, CMake may choose LLVM's linker, which cannot dissolve section groups (LocalFunctions.cmake); GNU ld can.
  set(annulus_cpu_linker)
  foreach(candidate IN ITEMS "${CMAKE_LINKER}" ld.bfd)
    execute_process(COMMAND "${candidate}" --help OUTPUT_VARIABLE annulus_cpu_help ERROR_QUIET)
    if(annulus_cpu_help MATCHES "--force-group-allocation")
      set(annulus_cpu_linker "${candidate}")
      break()
    elseif(CMAKE_CROSSCOMPILING)
      break()
    endif()
  endforeach()
  if(annulus_cpu_linker AND CMAKE_OBJCOPY AND CMAKE_NM)
    list(APPEND annulus_cpu_levels ${annulus_cpu_levels_above})
    if("neon_bf16" IN_LIST annulus_cpu_levels)
      set(annulus_cpu_flags_baseline -march=armv8-a)
    endif()
  else()
    message(STATUS "annulus::cpu: kernels for the baseline alone, as GNU ld, objcopy or nm was not found")
    set(annulus_cpu_separate)
  endif()
else()
  set(annulus_cpu_separate)
endif()
set(annulus_cpu_kernel_flags_baseline ${annulus_cpu_flags_baseline})
if("baseline" IN_LIST annulus_cpu_separate)
  set(annulus_cpu_baseline)  # named by the compiler
  set(annulus_cpu_kernel_flags_baseline -march=native)
endif()
foreach(level IN LISTS annulus_cpu_levels_above)
  set(annulus_cpu_kernel_flags_${level} ${annulus_cpu_flags_${level}})
endforeach()

set(annulus_cpu_in_all)
if(NOT PROJECT_IS_TOP_LEVEL)
  set(annulus_cpu_in_all EXCLUDE_FROM_ALL)
endif()

set(annulus_cpu_passes "${PROJECT_SOURCE_DIR}/include/annulus/attention/compiled")
add_library(annulus_cpu ${annulus_cpu_in_all} "${annulus_cpu_folder}/dispatch.cpp" "${annulus_cpu_passes}/definitions.cpp"
                        "${annulus_cpu_passes}/self_ring.cpp" "${annulus_cpu_passes}/simulated_ring.cpp")
add_library(annulus::cpu ALIAS annulus_cpu)
# A shared library exports what programs use, whatever the default of the build.
set_target_properties(annulus_cpu PROPERTIES EXPORT_NAME cpu POSITION_INDEPENDENT_CODE ON
                                             CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN OFF)
target_link_libraries(annulus_cpu PUBLIC annulus)
target_compile_definitions(annulus_cpu PUBLIC ANNULUS_CPU_COMPILED=1)
target_compile_options(annulus_cpu PRIVATE ${annulus_cpu_flags_baseline})

set(annulus_cpu_optimised -O3)
if(ANNULUS_SANITIZE)
  set(annulus_cpu_optimised)
endif()
set(annulus_cpu_objects)
foreach(level IN LISTS annulus_cpu_levels)
  set(types ${annulus_cpu_types})
  # These add products of bfloat16; the kernels of other types are those of the level below (dispatch.cpp).
  if(level MATCHES "_(bf16|amx)$")
    set(types bfloat16)
  endif()
  foreach(type IN LISTS types)
    set(kernels annulus_cpu_${level}_${type})
    add_library(${kernels} OBJECT EXCLUDE_FROM_ALL "${annulus_cpu_folder}/kernels.cpp")
    set_target_properties(${kernels} PROPERTIES POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF)
    target_link_libraries(${kernels} PRIVATE annulus)
    target_compile_definitions(${kernels} PRIVATE ANNULUS_CPU_ELEMENT=${annulus_cpu_${type}} ANNULUS_CPU_TABLE=${kernels})
    # Optimised in every configuration except with sanitizers. Data that all levels share must not be GNU-unique, a
    # binding that allows only one definition.
    target_compile_options(${kernels} PRIVATE ${annulus_cpu_kernel_flags_${level}} ${annulus_cpu_optimised}
                                              -fno-fast-math -Wno-psabi $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
    if(NOT level IN_LIST annulus_cpu_separate)
      target_sources(annulus_cpu PRIVATE $<TARGET_OBJECTS:${kernels}>)
    else()
      set(object "${PROJECT_BINARY_DIR}/cpu/${level}_${type}.o")
      add_custom_command(OUTPUT "${object}"
                         COMMAND "${CMAKE_COMMAND}" "-DLINKER=${annulus_cpu_linker}" "-DOBJCOPY=${CMAKE_OBJCOPY}" "-DNM=${CMAKE_NM}"
                                 "-DFROM=$<TARGET_OBJECTS:${kernels}>" "-DTO=${object}"
                                 -P "${PROJECT_SOURCE_DIR}/cmake/LocalFunctions.cmake"
                         DEPENDS "${PROJECT_SOURCE_DIR}/cmake/LocalFunctions.cmake" $<TARGET_OBJECTS:${kernels}> VERBATIM)
      list(APPEND annulus_cpu_objects "${object}")
      # Makefiles have no rule for an object file of another target: that target must be built before.
      add_dependencies(annulus_cpu ${kernels})
      target_sources(annulus_cpu PRIVATE "${object}")
      set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    endif()
  endforeach()
endforeach()
if(annulus_cpu_separate AND annulus_cpu_levels_above)
  # For this file alone, so that a compiler cache finds the others in a build without levels.
  set_source_files_properties("${annulus_cpu_folder}/dispatch.cpp"
                              PROPERTIES COMPILE_DEFINITIONS ANNULUS_CPU_HAS_LEVELS=1)
endif()
if(ANNULUS_SANITIZE)
  foreach(target IN ITEMS annulus_cpu annulus_cpu_baseline_float annulus_cpu_baseline_double annulus_cpu_baseline_half
                          annulus_cpu_baseline_bfloat16)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:annulus_sanitizers>)
  endforeach()
endif()
