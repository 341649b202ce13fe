# annulus_reference: the reference of the public headers with the guide as its pages, made by Doxygen in
# reference/html of the build folder. Only if Doxygen and Python are found; not part of the default target.

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
find_package(Doxygen 1.9.4 QUIET)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(DOXYGEN_FOUND AND Python3_FOUND)
  set(annulus_reference_folder "${PROJECT_BINARY_DIR}/reference")
  set(annulus_reference_python "${Python3_EXECUTABLE}")
  # Other versions warn about other things.
  set(annulus_reference_warnings NO)
  if(DOXYGEN_VERSION MATCHES "^1\\.9\\.4")
    set(annulus_reference_warnings FAIL_ON_WARNINGS)
  endif()
  configure_file(cmake/reference/Doxyfile.in "${annulus_reference_folder}/Doxyfile" @ONLY)
  add_custom_target(annulus_reference
                    COMMAND "${CMAKE_COMMAND}" -E rm -rf "${annulus_reference_folder}/html" "${annulus_reference_folder}/xml"
                    COMMAND Doxygen::doxygen "${annulus_reference_folder}/Doxyfile"
                    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
                    COMMENT "Making the reference in ${annulus_reference_folder}/html"
                    VERBATIM)
endif()
