# cmake -DNM=<nm> -DFROM=<object> -DTO=<object> -DLINKER=<ld> -DOBJCOPY=<objcopy> -P LocalFunctions.cmake
#   Copies an object file and makes its functions and virtual tables local, so that no other file can use them. Data
#   stays global, so that variables of inline functions and of templates are shared with the rest of the program.
# cmake -DNM=<nm> -DOBJECTS=<object>;... -DOBJDUMP=<objdump> -P LocalFunctions.cmake
#   Fails if one of the object files has a function or virtual table that is not local, or code that runs at program
#   start.

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${error}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Sets `code` to the names of an object file's functions and virtual tables.
function(find_code object)
  run("${NM}" --defined-only --format=sysv ${ARGN} "${object}")
  # Name|Value|Class|Type|Size|Line|Section
  string(REGEX MATCHALL "[^|\n]+[|][^|\n]*[|][^|\n]*[|] *FUNC[|]|_ZT[VT][^|\n]* *[|]" lines "${output}")
  list(TRANSFORM lines REPLACE " *[|].*" "")
  set(code "${lines}" PARENT_SCOPE)
endfunction()

if(OBJECTS)
  foreach(object IN LISTS OBJECTS)
    find_code("${object}" --extern-only)
    run("${OBJDUMP}" -h "${object}")
    string(REGEX MATCHALL "\\.(init_array|ctors)[^ ]*" at_start "${output}")
    if(code OR at_start)
      message(SEND_ERROR "${object}: functions that are not local, or code that runs at program start: ${code} ${at_start}")
    endif()
  endforeach()
  return()
endif()

get_filename_component(folder "${TO}" DIRECTORY)
file(MAKE_DIRECTORY "${folder}")
# Linkers keep one copy of each section group, by name, even of local symbols, so the groups are dissolved first.
run("${LINKER}" -r --force-group-allocation -o "${TO}.joined" "${FROM}")
find_code("${TO}.joined")
list(JOIN code "\n" lines)
file(WRITE "${TO}.functions" "${lines}\n")
run("${OBJCOPY}" "--localize-symbols=${TO}.functions" "${TO}.joined" "${TO}")
file(REMOVE "${TO}.joined" "${TO}.functions")
