# annulus_enable_warnings(<target>): enables the warnings of which the code is free, under GCC and Clang.

option(ANNULUS_WARNINGS_AS_ERRORS "Treat compiler warnings as errors" OFF)

function(annulus_enable_warnings target)
  target_compile_options(${target} INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wshadow
                                             $<$<BOOL:${ANNULUS_WARNINGS_AS_ERRORS}>:-Werror>)
endfunction()
