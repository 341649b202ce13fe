# annulus_sanitizers: flags of ANNULUS_SANITIZE, for tests, examples, benchmarks and annulus::cpu.

set(ANNULUS_SANITIZE "" CACHE STRING "Sanitizers: \"address,undefined\" or \"thread\"; empty for none")
if(ANNULUS_SANITIZE)
  add_library(annulus_sanitizers INTERFACE)
  set(flags -fsanitize=${ANNULUS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(annulus_sanitizers INTERFACE ${flags})
  target_compile_definitions(annulus_sanitizers INTERFACE ANNULUS_SANITIZED=1)
  target_link_options(annulus_sanitizers INTERFACE ${flags})
endif()
