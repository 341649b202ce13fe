# annulus_enable_warnings(<target>): the warnings that the code is kept free of, under GCC and Clang.

option(ANNULUS_WARNINGS_AS_ERRORS "Compiler warnings end the build" OFF)

function(annulus_enable_warnings target)
  target_compile_options(${target} INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wshadow
                                             $<$<BOOL:${ANNULUS_WARNINGS_AS_ERRORS}>:-Werror>)
endfunction()
