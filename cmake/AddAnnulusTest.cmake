# annulus_add_test(<name> SOURCES <file>... [SLOW] [JOIN] [SLOW_CASES] [LONG_CASES] [LABELS <label>...]
#                  [LIBRARIES <target>...])
#     Adds a Catch2 executable annulus_<name>_tests and its ctest entry unit.<name>.
#     SLOW: too expensive, to compile or to run, for the quick tests.
#     JOIN: the files form one unity-build group: templates are instantiated once. Names in the files must not collide.
#     SLOW_CASES: test cases tagged [slow] run in an entry of their own, unit.<name>.slow.
#     LONG_CASES: test cases tagged [.long], which take many minutes, run in the entry unit.<name>.long, in the test
#     configuration long alone: ctest -C long -L long
# annulus_add_mpi_test(<name> SOURCES <file>... [QUICK_RANKS <count>...] [SLOW_RANKS <count>...]
#                      [HOSTED_RANKS <count>...] [JOIN] [LONG_CASES])
#     The same under mpirun, with the main function of tests/mpi/main.cpp: an entry mpi.<name>.<ranks> for each count.
# annulus_add_unit_entry(<entry> <name> SPEED quick|slow|hosted|long [CASES <specification>] [LABELS <label>...]
#                        [ENVIRONMENT <variable>=<value>...])
#     One more ctest entry of annulus_<name>_tests. Every entry fails if its specification selects no test case.
# annulus_join_sources(<executable> <group> <file>...)
#     Makes some files of an executable one unity-build group.
# annulus_require_all_tests(<folder>)
#     Fails if the folder has a file *_test.cpp, at any depth, that belongs to no executable.
#
# Each ctest entry has one of the labels quick, slow, hosted and long (tests/README.md). The target annulus_quick_tests
# builds what the entries labelled quick run.

include(MpiLaunch)

set(ANNULUS_TEST_TIMEOUT 600 CACHE STRING "Seconds after which ctest ends a test")
option(ANNULUS_PRECOMPILE_TESTS "Compile Eigen's tensors and Catch2 once for all tests" ON)
option(ANNULUS_JOIN_TESTS "Compile together the test files that a test joins" ON)

add_custom_target(annulus_quick_tests)

# Include folders of every test: the library, tests/, and examples/, whose parts are tested as well.
add_library(annulus_test_support INTERFACE)
target_link_libraries(annulus_test_support INTERFACE annulus::cpu annulus_build_options Catch2::Catch2)
target_include_directories(annulus_test_support INTERFACE "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/examples")
# -O1 halves the compile time of -O3. The kernels of annulus::cpu are optimised in every configuration, and the command
# and the benchmarks compile the rest with the flags of the build type, as users do.
target_compile_options(annulus_test_support INTERFACE $<$<CONFIG:Release>:-O1>)

# The definitions of Catch2 2, which is headers only, take seconds to compile: all executables share the object file.
add_library(annulus_catch_runner OBJECT "${PROJECT_SOURCE_DIR}/tests/support/catch_runner.cpp")
target_link_libraries(annulus_catch_runner PRIVATE annulus_test_support)
add_library(annulus_catch_main OBJECT "${PROJECT_SOURCE_DIR}/tests/support/catch_main.cpp")
target_link_libraries(annulus_catch_main PRIVATE annulus_test_support)

# A fixed seed makes all ranks generate the same values. Durations are printed for test cases of a second or more.
set(annulus_catch_arguments --rng-seed 1 --min-duration 1)
get_target_property(annulus_catch_type Catch2::Catch2 TYPE)
if(annulus_catch_type STREQUAL "INTERFACE_LIBRARY")  # version 2
  list(APPEND annulus_catch_arguments --warn NoTests --use-colour no)
else()
  list(APPEND annulus_catch_arguments --colour-mode none)
endif()

if(ANNULUS_PRECOMPILE_TESTS)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/precompiled.cpp" CONTENT "// Holds the precompiled headers.\n")
  add_library(annulus_precompiled OBJECT "${PROJECT_BINARY_DIR}/precompiled.cpp")
  target_link_libraries(annulus_precompiled PRIVATE annulus_test_support)
  target_precompile_headers(annulus_precompiled PRIVATE <unsupported/Eigen/CXX11/Tensor>
                            "${PROJECT_SOURCE_DIR}/tests/support/catch.hpp")
endif()

function(annulus_reuse_precompiled target)
  if(ANNULUS_PRECOMPILE_TESTS)
    target_precompile_headers(${target} REUSE_FROM annulus_precompiled)
  endif()
endfunction()

function(annulus_join_sources executable group)
  if(ANNULUS_JOIN_TESTS)
    set_target_properties(${executable} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
  endif()
endfunction()

# Adds the executable, with <libraries>, and sets <speed>.
function(annulus_add_test_executable name libraries speed)
  set(executable annulus_${name}_tests)
  add_executable(${executable} ${test_SOURCES})
  set_target_properties(${executable} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  target_link_libraries(${executable} PRIVATE annulus_catch_runner ${libraries} annulus_test_support ${test_LIBRARIES})
  set_property(GLOBAL APPEND PROPERTY annulus_test_sources ${test_SOURCES})
  if(test_JOIN)
    annulus_join_sources(${executable} ${name} ${test_SOURCES})
  endif()
  set(${speed} slow PARENT_SCOPE)
  if(NOT test_SLOW)
    add_dependencies(annulus_quick_tests ${executable})
    set(${speed} quick PARENT_SCOPE)
  endif()
endfunction()

# Sets <seconds> to the time limit of an entry.
function(annulus_time_limit seconds speed)
  set(factor_quick 1)
  set(factor_slow 3)
  set(factor_hosted 3)
  set(factor_long 24)
  math(EXPR limit "${factor_${speed}} * ${ANNULUS_TEST_TIMEOUT}")
  set(${seconds} ${limit} PARENT_SCOPE)
endfunction()

function(annulus_add_unit_entry entry name)
  cmake_parse_arguments(PARSE_ARGV 2 entry "" "SPEED;CASES" "LABELS;ENVIRONMENT")
  set(configurations)
  if(entry_SPEED STREQUAL "long")
    set(configurations CONFIGURATIONS long)
  endif()
  add_test(NAME ${entry} COMMAND annulus_${name}_tests ${entry_CASES} ${annulus_catch_arguments} ${configurations})
  annulus_time_limit(seconds ${entry_SPEED})
  set_tests_properties(${entry} PROPERTIES TIMEOUT ${seconds} LABELS "unit;${entry_SPEED};${entry_LABELS}"
                                           ENVIRONMENT "${entry_ENVIRONMENT}")
endfunction()

function(annulus_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "SLOW;JOIN;SLOW_CASES;LONG_CASES" "" "SOURCES;LABELS;LIBRARIES")
  annulus_add_test_executable(${name} annulus_catch_main speed)
  annulus_reuse_precompiled(annulus_${name}_tests)
  set(cases)
  if(test_SLOW_CASES)
    set(cases CASES "~[slow]")
    annulus_add_unit_entry(unit.${name}.slow ${name} SPEED slow CASES "[slow]" LABELS ${test_LABELS})
  endif()
  annulus_add_unit_entry(unit.${name} ${name} SPEED ${speed} ${cases} LABELS ${test_LABELS})
  if(test_LONG_CASES)
    annulus_add_unit_entry(unit.${name}.long ${name} SPEED long CASES "[long]" LABELS ${test_LABELS})
  endif()
endfunction()

function(annulus_add_mpi_entry entry ranks speed)
  annulus_time_limit(seconds ${speed})
  annulus_mpi_command(command ${ranks} ${seconds} ${ARGN})
  set(configurations)
  if(speed STREQUAL "long")
    set(configurations CONFIGURATIONS long)
  endif()
  add_test(NAME ${entry} COMMAND ${command} ${configurations})
  set_tests_properties(${entry} PROPERTIES TIMEOUT ${seconds} LABELS "mpi;${speed}")
  annulus_mpi_test_properties(${entry} ${ranks})
endfunction()

function(annulus_add_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "JOIN;LONG_CASES" "" "SOURCES;QUICK_RANKS;SLOW_RANKS;HOSTED_RANKS;LIBRARIES")
  set(test_SLOW TRUE)
  if(test_QUICK_RANKS)
    set(test_SLOW FALSE)
  endif()
  annulus_add_test_executable(mpi_${name} annulus::mpi speed)
  target_sources(annulus_mpi_${name}_tests PRIVATE "${PROJECT_SOURCE_DIR}/tests/mpi/main.cpp")
  set(program $<TARGET_FILE:annulus_mpi_${name}_tests>)
  foreach(speed IN ITEMS QUICK SLOW HOSTED)
    string(TOLOWER ${speed} label)
    foreach(ranks IN LISTS test_${speed}_RANKS)
      annulus_add_mpi_entry(mpi.${name}.${ranks} ${ranks} ${label} ${program} ${annulus_catch_arguments})
      if(test_LONG_CASES)
        annulus_add_mpi_entry(mpi.${name}.${ranks}.long ${ranks} long ${program} "[long]" ${annulus_catch_arguments})
      endif()
    endforeach()
  endforeach()
endfunction()

function(annulus_require_all_tests folder)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS "${folder}/*_test.cpp")
  get_property(added GLOBAL PROPERTY annulus_test_sources)
  list(REMOVE_ITEM found ${added})
  if(found)
    list(JOIN found ", " found)
    message(FATAL_ERROR "in no test executable: ${found}")
  endif()
endfunction()
