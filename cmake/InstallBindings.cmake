# Installation of annulus::c and annulus::c_mpi, each with an export file of its own, of the modules for Python and Fortran
# that stand on them; and the target annulus_wheel, which makes a Python wheel of an installation.

install(FILES "${annulus_c_header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/annulus" COMPONENT annulus_development)
set(annulus_c_libraries annulus_c)
if(ANNULUS_WITH_MPI)
  list(APPEND annulus_c_libraries annulus_c_mpi)
endif()
foreach(library IN LISTS annulus_c_libraries)
  set(export annulusCTargets)
  if(library STREQUAL "annulus_c_mpi")
    set(export annulusCMpiTargets)
  endif()
  install(TARGETS ${library} EXPORT ${export} COMPONENT annulus_development)
  install(EXPORT ${export} NAMESPACE annulus:: DESTINATION "${annulus_package_dir}" COMPONENT annulus_development)
endforeach()

# Next to the libraries, so that the module finds them: <prefix>/lib/annulus/python is to be on PYTHONPATH.
install(DIRECTORY "${annulus_bindings}/python/annulus" DESTINATION "${CMAKE_INSTALL_LIBDIR}/annulus/python"
        COMPONENT annulus_development FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
# Compiled with the program, as module files differ between compilers.
install(FILES "${annulus_bindings}/fortran/annulus.f90" DESTINATION "${CMAKE_INSTALL_DATADIR}/annulus"
        COMPONENT annulus_development)

find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND AND PROJECT_IS_TOP_LEVEL)
  set(prefix "${PROJECT_BINARY_DIR}/wheel/prefix")
  add_custom_target(annulus_wheel
                    COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${prefix}" --config $<CONFIG>
                            --component annulus_development
                    COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/cmake/make_wheel.py"
                            "${prefix}/${CMAKE_INSTALL_LIBDIR}" "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_VERSION}"
                            "${PROJECT_BINARY_DIR}/wheel"
                    VERBATIM)
  add_dependencies(annulus_wheel annulus_cpu annulus_nki ${annulus_c_libraries})
endif()
