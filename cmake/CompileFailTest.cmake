# annulus_add_compile_fail_test(<name> FILE <file> SECTION <macro> EXPECT <regex>)
#     Adds two slow ctest entries. <name>.<macro>: with the macro defined, the compiler must reject the file with a
#     message that matches. <name>.compiles, once per file: without macros it must compile, to exclude other reasons.
# annulus_add_compile_fail_file(<file>)
#     Calls annulus_add_compile_fail_test for each line of the file of the form
#         // expect MACRO: regex of the message

set(annulus_compile_fail_script "${CMAKE_CURRENT_LIST_DIR}/CheckCompileFail.cmake")

function(annulus_add_compile_check name file section expect)
  set(includes $<TARGET_PROPERTY:annulus::annulus,INTERFACE_INCLUDE_DIRECTORIES>)
  add_test(NAME ${name}
           COMMAND "${CMAKE_COMMAND}" "-DCOMPILER=${CMAKE_CXX_COMPILER}" "-DFILE=${file}" "-DSECTION=${section}"
                   "-DEXPECT=${expect}" "-DINCLUDES=$<JOIN:${includes},|>|${PROJECT_SOURCE_DIR}/tests"
                   -P "${annulus_compile_fail_script}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 LABELS "build;slow")
endfunction()

function(annulus_add_compile_fail_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "FILE;SECTION;EXPECT" "")
  if(NOT test_FILE OR NOT test_SECTION OR NOT test_EXPECT)
    message(FATAL_ERROR "annulus_add_compile_fail_test(${name}): FILE, SECTION and EXPECT are required")
  endif()
  file(READ "${test_FILE}" text)
  if(NOT text MATCHES "#[ \t]*(el)?if[^\n]*[ \t(]${test_SECTION}[ \t)\n]")
    message(FATAL_ERROR "${test_FILE} has no section #ifdef ${test_SECTION}")
  endif()
  if(NOT TEST ${name}.compiles)
    annulus_add_compile_check(${name}.compiles "${test_FILE}" "" "")
  endif()
  annulus_add_compile_check(${name}.${test_SECTION} "${test_FILE}" "${test_SECTION}" "${test_EXPECT}")
endfunction()

function(annulus_add_compile_fail_file file)
  cmake_path(ABSOLUTE_PATH file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  cmake_path(GET file STEM stem)
  file(STRINGS "${file}" expectations REGEX "^// expect [A-Za-z0-9_]+: ")
  if(NOT expectations)
    message(FATAL_ERROR "${file} has no line of the form: // expect MACRO: regex of the message")
  endif()
  foreach(expectation IN LISTS expectations)
    string(REGEX MATCH "^// expect ([A-Za-z0-9_]+): (.*)$" matched "${expectation}")
    set(section "${CMAKE_MATCH_1}")
    set(expect "${CMAKE_MATCH_2}")
    annulus_add_compile_fail_test(compile_fail.${stem} FILE "${file}" SECTION ${section} EXPECT "${expect}")
  endforeach()
endfunction()
