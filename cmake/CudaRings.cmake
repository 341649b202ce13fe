# Rings of GPUs (ANNULUS_WITH_CUDA), which are headers alone: annulus::peer, with comm/peer_ring.hpp,
# comm/peer_process_ring.hpp and, for a program that links annulus::mpi too, comm/mpi_cuda.hpp; and, where NCCL 2.22 or
# later is found, annulus::nccl.

add_library(annulus_peer INTERFACE)
add_library(annulus::peer ALIAS annulus_peer)
set_target_properties(annulus_peer PROPERTIES EXPORT_NAME peer)
target_link_libraries(annulus_peer INTERFACE annulus CUDA::cudart)
annulus_add_headers(annulus_peer "${PROJECT_SOURCE_DIR}/include" ${annulus_peer_headers})
set(annulus_ring_targets annulus_peer)

find_path(ANNULUS_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} DOC "Folder of nccl.h")
find_library(ANNULUS_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} DOC "NCCL")
set(annulus_nccl_version 0.0)
if(ANNULUS_NCCL_INCLUDE)
  file(STRINGS "${ANNULUS_NCCL_INCLUDE}/nccl.h" lines REGEX "^#define NCCL_(MAJOR|MINOR) [0-9]+")
  list(TRANSFORM lines REPLACE "^.* " "")
  list(JOIN lines "." annulus_nccl_version)
endif()
if(ANNULUS_NCCL_LIBRARY AND annulus_nccl_version VERSION_GREATER_EQUAL 2.22)
  add_library(annulus_nccl INTERFACE)
  add_library(annulus::nccl ALIAS annulus_nccl)
  set_target_properties(annulus_nccl PROPERTIES EXPORT_NAME nccl)
  # An installation names the library alone: it need not be in the same folder there.
  target_link_libraries(annulus_nccl INTERFACE annulus_peer $<BUILD_INTERFACE:${ANNULUS_NCCL_LIBRARY}>
                                               $<INSTALL_INTERFACE:nccl>)
  target_include_directories(annulus_nccl SYSTEM INTERFACE $<BUILD_INTERFACE:${ANNULUS_NCCL_INCLUDE}>)
  annulus_add_headers(annulus_nccl "${PROJECT_SOURCE_DIR}/include" ${annulus_nccl_headers})
  list(APPEND annulus_ring_targets annulus_nccl)
else()
  message(STATUS "annulus::nccl: omitted, as NCCL 2.22 or later was not found (ANNULUS_NCCL_INCLUDE, ANNULUS_NCCL_LIBRARY)")
endif()
