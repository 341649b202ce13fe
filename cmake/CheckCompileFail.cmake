# Compile-fail check, run by ctest. Variables: COMPILER, FILE, INCLUDES (separated by |), SECTION and EXPECT. With an
# empty SECTION the file must compile; otherwise the compiler must reject it with an error line that matches EXPECT.

string(REPLACE "|" ";" folders "${INCLUDES}")
set(command "${COMPILER}" -std=c++20 -fsyntax-only)
foreach(folder IN LISTS folders)
  list(APPEND command -isystem "${folder}")
endforeach()
if(SECTION)
  list(APPEND command -D${SECTION})
endif()
execute_process(COMMAND ${command} "${FILE}" RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)

if(NOT SECTION)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${FILE} must compile when no section is on, but:\n${output}")
  endif()
elseif(status EQUAL 0)
  message(FATAL_ERROR "${FILE} compiles with ${SECTION} defined, but must be refused with: ${EXPECT}")
elseif(NOT output MATCHES "${EXPECT}")
  message(FATAL_ERROR "${FILE} with ${SECTION} defined is refused, but not with: ${EXPECT}\n"
                      "The compiler said:\n${output}")
endif()
