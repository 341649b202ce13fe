# cmake -DOBJECTS=<object>;... -DNM=<nm> -DOBJDUMP=<objdump> -P CheckLocalFunctions.cmake
#
# Fails if an object file of annulus::cpu would let instructions of its level run elsewhere: through a function or virtual
# table that another file may be linked to, or through code that runs when the program starts.

foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" --defined-only --extern-only --format=sysv "${object}" OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^|\n]+[|][^|\n]*[|][^|\n]*[|] *FUNC[|]|_ZT[VT][^|\n]* *[|]" reachable "${symbols}")
  execute_process(COMMAND "${OBJDUMP}" -h "${object}" OUTPUT_VARIABLE sections COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "\\.(init_array|ctors)[^ ]*" at_start "${sections}")
  if(reachable OR at_start)
    message(SEND_ERROR "${object}: reachable from elsewhere: ${reachable} ${at_start}")
  endif()
endforeach()
