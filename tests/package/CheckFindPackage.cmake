# Run by ctest: SOURCE, BUILD, GENERATOR, OPTIONS (cache entries), EXPECT (see annulus_add_find_package_check).

file(REMOVE_RECURSE "${BUILD}")
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${BUILD}" -G "${GENERATOR}" ${OPTIONS}
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " one_line "${output}")
if(EXPECT AND status EQUAL 0)
  message(FATAL_ERROR "find_package must fail with: ${EXPECT}\nIt succeeds:\n${output}")
elseif(EXPECT AND NOT one_line MATCHES "${EXPECT}")
  message(FATAL_ERROR "find_package must fail with: ${EXPECT}\nIt says:\n${output}")
elseif(NOT EXPECT AND NOT status EQUAL 0)
  message(FATAL_ERROR "find_package fails:\n${output}")
endif()
