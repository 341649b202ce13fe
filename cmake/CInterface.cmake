# annulus::c: the C interface (include/annulus/annulus.h) as a shared library, which exports the functions of that header
# alone; and annulus::c_mpi, which adds rings over MPI. They are two libraries, so that a program without MPI runs where
# none is installed, and with one header, so that it is the same interface.

set(annulus_bindings "${PROJECT_SOURCE_DIR}/include/annulus/bindings")
set(annulus_c_header "${PROJECT_SOURCE_DIR}/include/annulus/annulus.h")

# The functions that the header declares; those with mpi in their name belong to annulus_c_mpi.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${annulus_c_header}")
file(READ "${annulus_c_header}" annulus_c_text)
string(REGEX MATCHALL "ANNULUS_API [^;(]+\\(" annulus_c_functions "${annulus_c_text}")
list(TRANSFORM annulus_c_functions REPLACE "^.*[ *]([a-z_]+)\\($" "\\1")
set(annulus_c_mpi_functions ${annulus_c_functions})
list(FILTER annulus_c_mpi_functions INCLUDE REGEX "_mpi$")
list(REMOVE_ITEM annulus_c_functions ${annulus_c_mpi_functions})

# annulus_add_c_library(<target> <function>... SOURCES <file>...): a shared library that exports these functions.
function(annulus_add_c_library target)
  cmake_parse_arguments(PARSE_ARGV 1 library "" "" "SOURCES")
  add_library(${target} SHARED ${library_SOURCES})
  # A minor version may change the interface while the major version is 0.
  set_target_properties(${target} PROPERTIES VERSION "${PROJECT_VERSION}"
                        SOVERSION "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}"
                        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON INSTALL_RPATH "$ORIGIN")
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:annulus_cpu>)
  if(ANNULUS_SANITIZE)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:annulus_sanitizers>)
  endif()
  if(CMAKE_EXECUTABLE_FORMAT STREQUAL "ELF")
    # Also exported: the thread pool, which all libraries of a process share (core/process.hpp).
    set(map "${PROJECT_BINARY_DIR}/${target}.map")
    list(JOIN library_UNPARSED_ARGUMENTS ";\n    " names)
    file(CONFIGURE OUTPUT "${map}"
         CONTENT "ANNULUS_@PROJECT_VERSION_MAJOR@.@PROJECT_VERSION_MINOR@ {\n  global:\n    @names@;\n    _ZN7annulus10PerProcess*;\n  local:\n    *;\n};\n")
    target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${map}")
  endif()
endfunction()

annulus_add_c_library(annulus_c ${annulus_c_functions} SOURCES
                      "${annulus_bindings}/c/attention.cpp" "${annulus_bindings}/c/errors.cpp"
                      "${annulus_bindings}/c/options.cpp" "${annulus_bindings}/c/plan.cpp"
                      "${annulus_bindings}/c/rings.cpp" "${annulus_bindings}/c/sharding.cpp")
add_library(annulus::c ALIAS annulus_c)
set_target_properties(annulus_c PROPERTIES EXPORT_NAME c)
target_include_directories(annulus_c INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
                                               "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
if(ANNULUS_WITH_MPI)
  annulus_add_c_library(annulus_c_mpi ${annulus_c_mpi_functions} SOURCES "${annulus_bindings}/c/mpi_ring.cpp")
  add_library(annulus::c_mpi ALIAS annulus_c_mpi)
  set_target_properties(annulus_c_mpi PROPERTIES EXPORT_NAME c_mpi)
  target_link_libraries(annulus_c_mpi PUBLIC annulus_c PRIVATE $<BUILD_INTERFACE:annulus_mpi>)
endif()
