# annulus_headers_alone, annulus_headers_alone_mpi: object libraries with one source per header, which includes that
# header alone. ctest (headers.alone) builds them, not the default target; only changed headers are compiled again.

function(annulus_add_headers_alone target library)
  set(sources)
  foreach(header IN LISTS ARGN)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/include" OUTPUT_VARIABLE name)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${target}/${name}.cpp")
    # Included twice, to test the include guard.
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${name}\"\n#include \"${name}\"\n")
    list(APPEND sources "${source}")
  endforeach()
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(${target} PRIVATE ${library} annulus_build_options)
  target_compile_options(${target} PRIVATE -O0 -g0)
endfunction()

annulus_add_headers_alone(annulus_headers_alone annulus::annulus ${annulus_headers})
set(targets annulus_headers_alone)
if(ANNULUS_WITH_MPI)
  # The umbrella header is compiled again, as it has a part for MPI.
  annulus_add_headers_alone(annulus_headers_alone_mpi annulus::mpi ${annulus_mpi_headers}
                            "${PROJECT_SOURCE_DIR}/include/annulus/annulus.hpp")
  list(APPEND targets annulus_headers_alone_mpi)
endif()
add_test(NAME headers.alone
         COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --config $<CONFIG> --target ${targets})
set_tests_properties(headers.alone PROPERTIES TIMEOUT 900 LABELS "build;slow" PROCESSORS 2 COST 500
                     RESOURCE_LOCK build_folder)
