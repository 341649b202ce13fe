# annulus_headers_alone: an object library with one source per header, which includes nothing but it. Built by ctest
# (headers.alone) and not with the rest: only what changed is compiled again.

function(annulus_add_headers_alone)
  set(headers ${annulus_headers})
  set(libraries annulus::annulus)
  if(ANNULUS_WITH_MPI)
    list(APPEND headers ${annulus_mpi_headers})
    list(APPEND libraries annulus::mpi)
  endif()
  set(sources)
  foreach(header IN LISTS headers)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/include" OUTPUT_VARIABLE name)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/headers_alone/${name}.cpp")
    # Twice, for the guard.
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${name}\"\n#include \"${name}\"\n")
    list(APPEND sources "${source}")
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_library(annulus_headers_alone OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(annulus_headers_alone PRIVATE ${libraries} annulus_build_options)
  target_compile_options(annulus_headers_alone PRIVATE -O0 -g0)
  add_test(NAME headers.alone
           COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --config $<CONFIG> --target annulus_headers_alone)
  set_tests_properties(headers.alone PROPERTIES TIMEOUT 900 LABELS build PROCESSORS 2 RESOURCE_LOCK build_tree COST 500)
endfunction()
