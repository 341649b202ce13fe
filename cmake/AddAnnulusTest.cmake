# annulus_add_test(<name> SOURCES <file>... [JOIN <word>...] [LABELS <label>...] [LIBRARIES <target>...])
#     Adds a Catch2 executable annulus_<name>_tests and its ctest entry unit.<name>, with the label quick. Test cases
#     tagged [slow] run in a separate entry unit.<name>.slow. Test cases tagged [.long], which take many minutes, run in
#     the entry unit.<name>.long, in the test configuration long alone:
#     ctest -C long -L long
#     JOIN: files whose names begin with the same one of these words form one unity-build group.
# annulus_add_mpi_test(<name> SOURCES <file>... RANKS <count>... [LIBRARIES <target>...])
#     The same under mpirun, with the main function of tests/mpi/main.cpp: one entry mpi.<name>.<ranks> per count, and
#     mpi.<name>.<ranks>.long.

include(MpiLaunch)

set(ANNULUS_TEST_TIMEOUT 600 CACHE STRING "Seconds after which ctest ends a test")
option(ANNULUS_PRECOMPILE_TESTS "Compile Eigen's tensors and Catch2 once for all tests" ON)
option(ANNULUS_JOIN_TESTS "Compile together the test files that a test joins" ON)

# Catch2 2 is header-only, Catch2 3 a library.
get_target_property(annulus_catch_type Catch2::Catch2 TYPE)
if(NOT annulus_catch_type STREQUAL "INTERFACE_LIBRARY")
  set(annulus_catch_main Catch2::Catch2WithMain)
  set(annulus_catch_arguments --allow-running-no-tests --colour-mode none)
else()
  # Its main function takes seconds to compile, so all executables share one object file.
  add_library(annulus_catch_main OBJECT "${PROJECT_SOURCE_DIR}/tests/support/catch_main.cpp")
  target_link_libraries(annulus_catch_main PRIVATE annulus_build_options PUBLIC Catch2::Catch2)
  target_compile_features(annulus_catch_main PRIVATE cxx_std_20)  # as the tests: Catch2's types depend on it
  set(annulus_catch_main annulus_catch_main)
  set(annulus_catch_arguments --use-colour no)
endif()
# A fixed seed makes all ranks generate the same values. Durations are printed for test cases of a second or more.
list(APPEND annulus_catch_arguments --rng-seed 1 --min-duration 1)

# Include folders of every test: the library, tests/ and, for the tests of the command, examples/.
add_library(annulus_test_support INTERFACE)
target_link_libraries(annulus_test_support INTERFACE annulus::cpu annulus_build_options Catch2::Catch2)
target_include_directories(annulus_test_support INTERFACE "${PROJECT_SOURCE_DIR}/tests")
# -O1 halves the compile time of -O3. The kernels of annulus::cpu are optimised in every configuration, and the command
# and the benchmarks compile the rest with the flags of the build type, as users do.
target_compile_options(annulus_test_support INTERFACE $<$<CONFIG:Release>:-O1>)

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

# Unity-build groups: templates are instantiated once per group. Names in the files of a group must not collide.
function(annulus_join_sources target words)
  if(ANNULUS_JOIN_TESTS AND words)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    foreach(source IN LISTS ARGN)
      cmake_path(GET source STEM name)
      string(REGEX MATCH "^[^_]+" word "${name}")
      if(word IN_LIST words)
        set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${word}")
      endif()
    endforeach()
  endif()
endfunction()

# Sets <result> to whether a test case in the files has a tag that matches; a change of a file configures again.
function(annulus_find_tag result tag)
  set(${result} FALSE PARENT_SCOPE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  foreach(source IN LISTS ARGN)
    file(STRINGS "${source}" tagged REGEX "${tag}" LIMIT_COUNT 1)
    if(tagged)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

function(annulus_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "" "SOURCES;JOIN;LABELS;LIBRARIES")
  set(executable annulus_${name}_tests)
  add_executable(${executable} ${test_SOURCES})
  target_link_libraries(${executable} PRIVATE ${annulus_catch_main} annulus_test_support ${test_LIBRARIES})
  annulus_reuse_precompiled(${executable})
  annulus_join_sources(${executable} "${test_JOIN}" ${test_SOURCES})

  annulus_find_tag(has_slow "\\[slow\\]" ${test_SOURCES})
  annulus_find_tag(has_long "\\[[.]long\\]" ${test_SOURCES})
  add_test(NAME unit.${name} COMMAND ${executable} "~[slow]~[long]" ${annulus_catch_arguments})
  set_tests_properties(unit.${name} PROPERTIES TIMEOUT ${ANNULUS_TEST_TIMEOUT} LABELS "unit;quick;${test_LABELS}")
  if(has_slow)
    add_test(NAME unit.${name}.slow COMMAND ${executable} "[slow]" ${annulus_catch_arguments})
    math(EXPR seconds "3 * ${ANNULUS_TEST_TIMEOUT}")
    # COST: ctest starts the longest tests first.
    set_tests_properties(unit.${name}.slow PROPERTIES TIMEOUT ${seconds} LABELS "unit;slow;${test_LABELS}" COST 1000)
  endif()
  if(has_long)
    add_test(NAME unit.${name}.long COMMAND ${executable} "[long]" ${annulus_catch_arguments} CONFIGURATIONS long)
    math(EXPR seconds "24 * ${ANNULUS_TEST_TIMEOUT}")
    set_tests_properties(unit.${name}.long PROPERTIES TIMEOUT ${seconds} LABELS "unit;long;${test_LABELS}")
  endif()
endfunction()

function(annulus_add_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "" "SOURCES;RANKS;LIBRARIES")
  set(executable annulus_mpi_${name}_tests)
  add_executable(${executable} ${test_SOURCES} "${PROJECT_SOURCE_DIR}/tests/mpi/main.cpp")
  set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/mpi/main.cpp" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  target_link_libraries(${executable} PRIVATE Catch2::Catch2 annulus_test_support annulus::mpi ${test_LIBRARIES})

  foreach(ranks IN LISTS test_RANKS)
    set(test mpi.${name}.${ranks})
    set(program $<TARGET_FILE:${executable}> ${annulus_catch_arguments})
    annulus_mpi_command(command ${ranks} ${ANNULUS_TEST_TIMEOUT} ${program})
    add_test(NAME ${test} COMMAND ${command})
    set(speed slow)
    if(ranks LESS 4)
      set(speed quick)
    endif()
    set_tests_properties(${test} PROPERTIES TIMEOUT ${ANNULUS_TEST_TIMEOUT} LABELS "mpi;${speed}")
    annulus_mpi_test_properties(${test} ${ranks})
  endforeach()

  annulus_find_tag(has_long "\\[[.]long\\]" ${test_SOURCES})
  if(has_long)
    math(EXPR seconds "24 * ${ANNULUS_TEST_TIMEOUT}")
    foreach(ranks IN LISTS test_RANKS)
      set(test mpi.${name}.${ranks}.long)
      annulus_mpi_command(command ${ranks} ${seconds} $<TARGET_FILE:${executable}> "[long]" ${annulus_catch_arguments})
      add_test(NAME ${test} COMMAND ${command} CONFIGURATIONS long)
      set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds} LABELS "mpi;long")
      annulus_mpi_test_properties(${test} ${ranks})
    endforeach()
  endif()
endfunction()
