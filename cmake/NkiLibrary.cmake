# annulus::nki: the tile programs of nki/, which are no templates (nki/definitions.hpp), compiled once. It does not need
# annulus::cpu. A program that uses their headers without it compiles them itself.

set(annulus_nki_in_all)
if(NOT PROJECT_IS_TOP_LEVEL)
  set(annulus_nki_in_all EXCLUDE_FROM_ALL)
endif()
add_library(annulus_nki ${annulus_nki_in_all} "${PROJECT_SOURCE_DIR}/include/annulus/nki/compiled/definitions.cpp")
add_library(annulus::nki ALIAS annulus_nki)
# A shared library exports what programs use, whatever the default of the build.
set_target_properties(annulus_nki PROPERTIES EXPORT_NAME nki POSITION_INDEPENDENT_CODE ON
                                             CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN OFF)
target_link_libraries(annulus_nki PUBLIC annulus)
target_compile_definitions(annulus_nki PUBLIC ANNULUS_NKI_COMPILED=1)
# The lowest level of annulus::cpu: a simulation gives the same numbers on every machine.
target_compile_options(annulus_nki PRIVATE ${annulus_cpu_flags_baseline})
if(ANNULUS_SANITIZE)
  target_link_libraries(annulus_nki PRIVATE $<BUILD_INTERFACE:annulus_sanitizers>)
endif()
