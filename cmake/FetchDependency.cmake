# annulus_fetch(<dependency> <folder or URL>): creates the dependency's target from source.

include(FetchContent)

macro(annulus_fetch name source)
  if(IS_DIRECTORY "${source}")
    set(annulus_fetch_origin SOURCE_DIR "${source}")
  else()
    set(annulus_fetch_origin URL "${source}")
  endif()
  if("${name}" MATCHES "^(Eigen|CLI11|JSON)$")
    # Headers only: the project's build files would add its tests, and a target that cannot be exported with this one.
    # A subfolder that does not exist excludes them.
    FetchContent_Declare(annulus_${name} ${annulus_fetch_origin} SOURCE_SUBDIR no_build_files)
  else()
    FetchContent_Declare(annulus_${name} ${annulus_fetch_origin})
  endif()
  # CMP0077 keeps option() calls of the dependencies from resetting these variables.
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_GTEST_TESTS OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  set(CATCH_INSTALL_DOCS OFF)
  set(CATCH_INSTALL_EXTRAS OFF)
  FetchContent_MakeAvailable(annulus_${name})

  string(TOLOWER "annulus_${name}" annulus_fetched)
  if("${name}" STREQUAL "Eigen")
    annulus_header_target(Eigen3::Eigen "${${annulus_fetched}_SOURCE_DIR}" Eigen/Core)
  elseif("${name}" STREQUAL "CLI11")
    annulus_header_target(CLI11::CLI11 "${${annulus_fetched}_SOURCE_DIR}/include" CLI/CLI.hpp)
  elseif("${name}" STREQUAL "JSON")
    annulus_header_target(nlohmann_json::nlohmann_json "${${annulus_fetched}_SOURCE_DIR}/include" nlohmann/json.hpp)
  endif()
endmacro()

function(annulus_header_target target folder header)
  if(NOT EXISTS "${folder}/${header}")
    message(FATAL_ERROR "The source given for ${target} has no ${header}: looked in ${folder}")
  endif()
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} INTERFACE "${folder}")
endfunction()
