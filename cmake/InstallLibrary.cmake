# Installation of headers, targets and package files. annulus::mpi has a separate export file, so that a consumer
# without MPI can use annulus::annulus of an installation that has both, and so has annulus::conformance, for consumers
# without Catch2; annulus::cpu, annulus::nki and annulus::cuda have one each so that they may be omitted.

include(CMakePackageConfigHelpers)
set(annulus_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/annulus")

# The first rule of the component: an installation without a built library fails before it writes anything.
if(PROJECT_IS_TOP_LEVEL)
  foreach(library IN ITEMS annulus_cpu annulus_nki annulus_cuda annulus_c annulus_c_mpi)
    if(TARGET ${library})
      install(CODE "if(NOT EXISTS \"$<TARGET_FILE:${library}>\")
  message(FATAL_ERROR \"${library} is not built: build it before the installation\")
endif()" COMPONENT annulus_development)
    endif()
  endforeach()
endif()

# annulus_install(<targets> <export>): <targets> is a list.
function(annulus_install targets export)
  set(headers)
  if(NOT CMAKE_VERSION VERSION_LESS 3.23)
    set(headers FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT annulus_development)
  endif()
  install(TARGETS ${targets} EXPORT ${export} ${headers})
  install(EXPORT ${export} NAMESPACE annulus:: DESTINATION "${annulus_package_dir}" COMPONENT annulus_development)
endfunction()

annulus_install(annulus annulusTargets)
if(PROJECT_IS_TOP_LEVEL)
  foreach(library IN ITEMS Cpu Nki)
    string(TOLOWER "annulus_${library}" target)
    install(TARGETS ${target} EXPORT annulus${library}Targets COMPONENT annulus_development)
    install(EXPORT annulus${library}Targets NAMESPACE annulus:: DESTINATION "${annulus_package_dir}"
            COMPONENT annulus_development)
  endforeach()
endif()
if(ANNULUS_WITH_MPI)
  annulus_install(annulus_mpi annulusMpiTargets)
endif()
if(ANNULUS_WITH_CUDA AND PROJECT_IS_TOP_LEVEL)
  annulus_install("annulus_cuda;${annulus_ring_targets}" annulusCudaTargets)
endif()
if(ANNULUS_BUILD_C)
  include(InstallBindings)
endif()
annulus_install(annulus_conformance annulusConformanceTargets)
if(CMAKE_VERSION VERSION_LESS 3.23)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" "${annulus_conformance_folder}/"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT annulus_development)
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/annulusConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/annulusConfig.cmake"
                              INSTALL_DESTINATION "${annulus_package_dir}" NO_SET_AND_CHECK_MACRO
                              NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/annulusConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/annulusConfig.cmake" "${PROJECT_BINARY_DIR}/annulusConfigVersion.cmake"
        DESTINATION "${annulus_package_dir}" COMPONENT annulus_development)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT annulus_development)
