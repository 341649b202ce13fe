# annulus_enable_warnings(<target>): enables the warnings of which the code is free, under GCC and Clang.

option(ANNULUS_WARNINGS_AS_ERRORS "Treat compiler warnings as errors" OFF)

function(annulus_enable_warnings target)
  # In a unity build Clang would warn of local names that other files declare.
  set(clang_unity $<AND:$<CXX_COMPILER_ID:Clang,AppleClang>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>)
  target_compile_options(${target} INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion
                                             $<$<NOT:${clang_unity}>:-Wshadow>
                                             $<$<BOOL:${ANNULUS_WARNINGS_AS_ERRORS}>:-Werror>)
endfunction()
