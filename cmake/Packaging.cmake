# Packages made from the installation: pkg-config files, a Debian package by cpack, a description in CPS; and all headers
# in one file.

include(GNUInstallDirs)

# annulus_add_pkg_config(<name> REQUIRES <modules> LIBS <flags> DESCRIPTION <text> [CFLAGS <flags>]): installs <name>.pc.
function(annulus_add_pkg_config name)
  cmake_parse_arguments(PARSE_ARGV 1 pc "" "REQUIRES;LIBS;DESCRIPTION;CFLAGS" "")
  # Relative to the file, so that an installation can be moved.
  file(RELATIVE_PATH prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" prefix "${prefix}")
  set(file "${PROJECT_BINARY_DIR}/${name}.pc")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/packaging/annulus.pc.in" "${file}" @ONLY)
  install(FILES "${file}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT annulus_development)
endfunction()

# Compilers ignore the -I of the module eigen3 for a folder that is given as a system folder too, and then do not warn of
# Eigen. An Eigen in another place is still found by that -I.
get_target_property(annulus_eigen_folder Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
set(annulus_eigen_flags "")
if(annulus_eigen_folder AND IS_DIRECTORY "${annulus_eigen_folder}")
  set(annulus_eigen_flags "-isystem ${annulus_eigen_folder}")
endif()
annulus_add_pkg_config(annulus REQUIRES eigen3 LIBS -pthread CFLAGS "${annulus_eigen_flags}"
                       DESCRIPTION "${PROJECT_DESCRIPTION}, headers only")
annulus_add_pkg_config(annulus_cpu REQUIRES annulus LIBS "-L\${libdir} -lannulus_cpu" CFLAGS -DANNULUS_CPU_COMPILED=1
                       DESCRIPTION "${PROJECT_DESCRIPTION}, kernels selected at run time")
annulus_add_pkg_config(annulus_nki REQUIRES annulus LIBS "-L\${libdir} -lannulus_nki" CFLAGS -DANNULUS_NKI_COMPILED=1
                       DESCRIPTION "${PROJECT_DESCRIPTION}, Trainium tile programs")
if(ANNULUS_WITH_CUDA)
  annulus_add_pkg_config(annulus_cuda REQUIRES annulus LIBS "-L\${libdir} -lannulus_cuda -lcudart"
                         DESCRIPTION "${PROJECT_DESCRIPTION}, kernels for GPUs; the toolkit's folders are the caller's")
endif()
if(ANNULUS_WITH_MPI)
  # The headers and libraries of MPI come from its compiler, mpicxx.
  annulus_add_pkg_config(annulus_mpi REQUIRES annulus CFLAGS -DANNULUS_WITH_MPI=1
                         DESCRIPTION "${PROJECT_DESCRIPTION}, rings over MPI, compiled with mpicxx")
endif()
if(ANNULUS_BUILD_C)
  annulus_add_pkg_config(annulus_c LIBS "-L\${libdir} -lannulus_c" DESCRIPTION "${PROJECT_DESCRIPTION}, C interface")
  if(ANNULUS_WITH_MPI)
    annulus_add_pkg_config(annulus_c_mpi REQUIRES annulus_c LIBS "-L\${libdir} -lannulus_c_mpi"
                           DESCRIPTION "${PROJECT_DESCRIPTION}, C interface with rings over MPI")
  endif()
endif()

find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  set(annulus_single_header "${PROJECT_BINARY_DIR}/single/annulus/annulus.hpp")
  add_custom_target(annulus_single_header
                    COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/cmake/packaging/single_header.py"
                            "${PROJECT_SOURCE_DIR}/include" "${annulus_single_header}"
                    VERBATIM)
endif()

# A description of the package for other build systems (Common Package Specification), which CMake 4.3 and later write.
# CMake itself would then prefer it to annulusConfig.cmake, and fail: it names no components, and requires a package
# Threads, which is a find module.
option(ANNULUS_INSTALL_CPS "Install a description of the package in CPS, for build systems other than CMake" OFF)
if(ANNULUS_INSTALL_CPS)
  if(CMAKE_VERSION VERSION_LESS 4.3)
    message(FATAL_ERROR "ANNULUS_INSTALL_CPS with CMake ${CMAKE_VERSION}; accepted: 4.3 or later, which writes CPS files")
  endif()
  install(PACKAGE_INFO annulus EXPORT annulusTargets VERSION "${PROJECT_VERSION}" COMPAT_VERSION
          "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}" COMPONENT annulus_development)
endif()

# In the folders of the repository, with the headers and recipes that pages name, so that their links hold.
foreach(folder IN ITEMS examples include cmake/packaging)
  cmake_path(GET folder PARENT_PATH parent)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}" DESTINATION "${CMAKE_INSTALL_DOCDIR}/${parent}"
          COMPONENT annulus_development PATTERN __pycache__ EXCLUDE PATTERN bindings EXCLUDE PATTERN compiled EXCLUDE)
endforeach()
foreach(page IN ITEMS README.md CHANGELOG.md CONTRIBUTING.md benchmarks/README.md tests/README.md)
  cmake_path(GET page PARENT_PATH folder)
  install(FILES "${PROJECT_SOURCE_DIR}/${page}" DESTINATION "${CMAKE_INSTALL_DOCDIR}/${folder}"
          COMPONENT annulus_development)
endforeach()

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME annulus)
  set(CPACK_PACKAGE_CONTACT "The Annulus developers")
  set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libeigen3-dev (>= 3.4)")
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenmpi-dev, catch2, python3-numpy")
  # One package with all components.
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
  set(CPACK_DEB_COMPONENT_INSTALL OFF)
  include(CPack)
endif()
