# Header-only targets annulus::annulus and annulus::mpi, each with the headers that need only its dependencies.
# annulus::cpu (CpuLibrary.cmake) adds compiled kernels, annulus::nki (NkiLibrary.cmake) compiled tile programs,
# annulus::cuda (CudaLibrary.cmake) kernels for GPUs, annulus::peer and annulus::nccl (CudaRings.cmake) rings of GPUs,
# annulus::conformance (Conformance.cmake) test suites.

include(GNUInstallDirs)

file(GLOB_RECURSE annulus_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/annulus/*.hpp")
# Headers of the sources of annulus::c, which is compiled.
list(FILTER annulus_headers EXCLUDE REGEX "/include/annulus/bindings/")
set(annulus_mpi_headers ${annulus_headers})
list(FILTER annulus_mpi_headers INCLUDE REGEX "/include/annulus/comm/mpi(/.*)?\\.hpp$")
# Those that need the CUDA toolkit; .cuh need its compiler too, and of the rings (CudaRings.cmake) some NCCL or MPI.
set(annulus_cuda_headers ${annulus_headers})
list(FILTER annulus_cuda_headers INCLUDE REGEX "/include/annulus/((core|tensor|backend)/cuda/|comm/(peer|nccl|cuda_staging|mpi_cuda))")
list(REMOVE_ITEM annulus_headers ${annulus_mpi_headers} ${annulus_cuda_headers})
set(annulus_peer_headers ${annulus_cuda_headers})
list(FILTER annulus_peer_headers INCLUDE REGEX "/include/annulus/(core/cuda|comm)/")
list(FILTER annulus_cuda_headers EXCLUDE REGEX "/include/annulus/comm/")
set(annulus_nccl_headers ${annulus_peer_headers})
list(FILTER annulus_nccl_headers INCLUDE REGEX "/comm/nccl")
list(REMOVE_ITEM annulus_peer_headers ${annulus_nccl_headers})
set(annulus_cuda_headers_alone ${annulus_cuda_headers})
file(GLOB_RECURSE found CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/annulus/*.cuh")
list(APPEND annulus_cuda_headers ${found})

# annulus_add_headers(<target> <folder> <header>...): headers of an include directory. File sets require CMake 3.23; with
# older versions the target has the whole directory.
function(annulus_add_headers target folder)
  if(CMAKE_VERSION VERSION_LESS 3.23)
    target_include_directories(${target} INTERFACE "$<BUILD_INTERFACE:${folder}>"
                                                   "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  else()
    target_sources(${target} INTERFACE FILE_SET HEADERS BASE_DIRS "${folder}" FILES ${ARGN})
  endif()
endfunction()

add_library(annulus INTERFACE)
add_library(annulus::annulus ALIAS annulus)
target_compile_features(annulus INTERFACE cxx_std_20)
target_link_libraries(annulus INTERFACE Eigen3::Eigen Threads::Threads)
annulus_add_headers(annulus "${PROJECT_SOURCE_DIR}/include" ${annulus_headers})

if(ANNULUS_WITH_MPI)
  add_library(annulus_mpi INTERFACE)
  add_library(annulus::mpi ALIAS annulus_mpi)
  set_target_properties(annulus_mpi PROPERTIES EXPORT_NAME mpi)
  target_link_libraries(annulus_mpi INTERFACE annulus MPI::MPI_CXX)
  # The umbrella header then includes the MPI ring.
  target_compile_definitions(annulus_mpi INTERFACE ANNULUS_WITH_MPI=1)
  annulus_add_headers(annulus_mpi "${PROJECT_SOURCE_DIR}/include" ${annulus_mpi_headers})
endif()
