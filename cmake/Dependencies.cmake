# annulus_require(<dependency>): finds an installed package, else (with ANNULUS_FETCH_DEPENDENCIES) uses the source that
# the user names, else fails with the package to install. A macro, so that targets and variables reach the caller.

set(annulus_Eigen_package Eigen3)
set(annulus_Eigen_target Eigen3::Eigen)
set(annulus_Eigen_debian libeigen3-dev)
set(annulus_Eigen_least 3.4)
set(annulus_Catch2_package Catch2)
set(annulus_Catch2_target Catch2::Catch2)
set(annulus_Catch2_debian catch2)
set(annulus_Catch2_least 2.13)
set(annulus_CLI11_package CLI11)
set(annulus_CLI11_target CLI11::CLI11)
set(annulus_CLI11_debian libcli11-dev)
set(annulus_JSON_package nlohmann_json)
set(annulus_JSON_target nlohmann_json::nlohmann_json)
set(annulus_JSON_debian nlohmann-json3-dev)
set(annulus_benchmark_package benchmark)
set(annulus_benchmark_target benchmark::benchmark)
set(annulus_benchmark_debian libbenchmark-dev)

macro(annulus_require name)
  if("${name}" STREQUAL "MPI")
    find_package(MPI QUIET COMPONENTS CXX)
    if(NOT MPI_CXX_FOUND)
      message(FATAL_ERROR "ANNULUS_WITH_MPI is ON, but no MPI for C++ was found. Install one (Debian, Ubuntu: "
                          "libopenmpi-dev openmpi-bin) or configure with -DANNULUS_WITH_MPI=OFF.")
    endif()
  else()
    if(NOT TARGET ${annulus_${name}_target})
      find_package(${annulus_${name}_package} QUIET CONFIG)
    endif()
    if(NOT TARGET ${annulus_${name}_target} AND ANNULUS_FETCH_DEPENDENCIES AND ANNULUS_${name}_SOURCE)
      include(FetchDependency)
      annulus_fetch(${name} "${ANNULUS_${name}_SOURCE}")
    endif()
    if(NOT TARGET ${annulus_${name}_target})
      message(FATAL_ERROR
        "${name} was not found. Install it (Debian, Ubuntu: ${annulus_${name}_debian}), or say where it is with "
        "-D${annulus_${name}_package}_DIR=<folder of its CMake package>, or let CMake take its source: "
        "-DANNULUS_FETCH_DEPENDENCIES=ON -DANNULUS_${name}_SOURCE=<folder or URL of an archive>.")
    elseif(annulus_${name}_least AND ${annulus_${name}_package}_VERSION VERSION_LESS annulus_${name}_least AND
           ${annulus_${name}_package}_FOUND)
      message(FATAL_ERROR "${name} ${${annulus_${name}_package}_VERSION} was found in "
                          "${${annulus_${name}_package}_DIR}; annulus requires ${annulus_${name}_least} or newer.")
    endif()
  endif()
endmacro()

# Benchmarks are on by default only if their library is found; requesting them without it is an error, as for MPI.
macro(annulus_benchmarks_default result)
  set(${result} OFF)
  if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED ANNULUS_BUILD_BENCHMARKS)
    find_package(benchmark QUIET CONFIG)
    if(TARGET benchmark::benchmark OR (ANNULUS_FETCH_DEPENDENCIES AND ANNULUS_benchmark_SOURCE))
      set(${result} ON)
    endif()
  endif()
endmacro()
