# cmake -DFROM=<object> -DTO=<object> -DLINKER=<ld> -DOBJCOPY=<objcopy> -DNM=<nm> -P LocalFunctions.cmake
#
# Copies an object file and makes its functions and virtual tables local: no other file can call them. Data stays global,
# so that variables of inline functions and of templates are shared with the rest of the program.

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${error}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

get_filename_component(folder "${TO}" DIRECTORY)
file(MAKE_DIRECTORY "${folder}")
# Linkers keep one copy of a section group, by name, local or not: so the groups are dissolved first.
run("${LINKER}" -r --force-group-allocation -o "${TO}.joined" "${FROM}")
run("${NM}" --defined-only --format=sysv "${TO}.joined")
# Name|Value|Class|Type|Size|Line|Section
string(REGEX MATCHALL "[^|\n]+[|][^|\n]*[|][^|\n]*[|] *FUNC[|]|_ZT[VT][^|\n]* *[|]" lines "${output}")
set(functions)
foreach(line IN LISTS lines)
  string(REGEX REPLACE " *[|].*" "" name "${line}")
  string(APPEND functions "${name}\n")
endforeach()
file(WRITE "${TO}.functions" "${functions}")
run("${OBJCOPY}" "--localize-symbols=${TO}.functions" "${TO}.joined" "${TO}")
file(REMOVE "${TO}.joined" "${TO}.functions")
