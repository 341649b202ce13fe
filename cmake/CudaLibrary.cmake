# annulus::cuda: the kernels of CudaBackend (ANNULUS_WITH_CUDA). Few instances by design: for each element type one file
# of kernels, which serves every option, extent and stride.

include(CheckLanguage)
# Kernels of the complete path are those of 80; those for Hopper alone need 90a.
set(CMAKE_CUDA_ARCHITECTURES "80;90a" CACHE STRING "Architectures of the kernels of annulus::cuda")
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "ANNULUS_WITH_CUDA is ON, but no CUDA compiler was found; accepted: nvcc of CUDA 12.4 or later")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
  message(FATAL_ERROR "ANNULUS_WITH_CUDA with CUDA ${CMAKE_CUDA_COMPILER_VERSION}; accepted: 12.4 or later")
endif()
find_package(CUDAToolkit 12.4 REQUIRED)
# As options, because CMake before 3.26 does not know C++20 of nvcc.
set(annulus_cuda_flags -std=c++20 --expt-relaxed-constexpr)

set(annulus_cuda_folder "${PROJECT_SOURCE_DIR}/include/annulus/backend/cuda/compiled")
set(annulus_cuda_in_all)
if(NOT PROJECT_IS_TOP_LEVEL)
  set(annulus_cuda_in_all EXCLUDE_FROM_ALL)
endif()

add_library(annulus_cuda STATIC ${annulus_cuda_in_all})
add_library(annulus::cuda ALIAS annulus_cuda)
# With a runtime of its own a library would have another current GPU than the program.
set_target_properties(annulus_cuda PROPERTIES EXPORT_NAME cuda LINKER_LANGUAGE CUDA CUDA_RUNTIME_LIBRARY Shared)
target_link_libraries(annulus_cuda PUBLIC annulus CUDA::cudart)
# For files of a program that add a predicate.
target_compile_options(annulus_cuda PUBLIC "$<$<COMPILE_LANGUAGE:CUDA>:${annulus_cuda_flags}>")
annulus_add_headers(annulus_cuda "${PROJECT_SOURCE_DIR}/include" ${annulus_cuda_headers})

# Adds a part of annulus::cuda. Warnings of the host compiler are those of the headers; -Wpedantic would warn of what
# nvcc generates.
function(annulus_add_kernels name)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${name} PRIVATE annulus CUDA::cudart)
  target_compile_options(${name} PRIVATE ${annulus_cuda_flags} -Xcompiler=-Wall,-Wextra)
  target_sources(annulus_cuda PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()

annulus_add_kernels(annulus_cuda_rows "${annulus_cuda_folder}/row_operations.cu" "${annulus_cuda_folder}/row_ranges.cu")
annulus_add_kernels(annulus_cuda_decode "${annulus_cuda_folder}/decode.cu")

set(annulus_cuda_float float)
set(annulus_cuda_double double)
set(annulus_cuda_half __half)
set(annulus_cuda_bfloat16 __nv_bfloat16)
foreach(type IN ITEMS float double half bfloat16)
  annulus_add_kernels(annulus_cuda_complete_${type} "${annulus_cuda_folder}/complete_path.cu")
  target_compile_definitions(annulus_cuda_complete_${type} PRIVATE ANNULUS_CUDA_ELEMENT=${annulus_cuda_${type}})
endforeach()

# The Hopper kernels: an object file for each element type and shape of hopper/hopper.hpp.
set(annulus_hopper_folder "${PROJECT_SOURCE_DIR}/include/annulus/backend/cuda/hopper/compiled")
if("90a" IN_LIST CMAKE_CUDA_ARCHITECTURES)
  annulus_add_kernels(annulus_hopper "${annulus_hopper_folder}/dispatch.cu")
  set(hopper_targets annulus_hopper)
  foreach(type IN ITEMS half bfloat16)
    foreach(shape IN ITEMS 64_64 96_96 128_128 192_192 256_256 192_128 128_64)
      string(REPLACE "_" ";" dims ${shape})
      list(GET dims 0 head_dim)
      list(GET dims 1 value_dim)
      set(kernels annulus_hopper_${type}_${shape})
      annulus_add_kernels(${kernels} "${annulus_hopper_folder}/shape.cu")
      target_compile_definitions(${kernels} PRIVATE ANNULUS_HOPPER_ELEMENT=${annulus_cuda_${type}}
                                                    ANNULUS_HOPPER_HEAD_DIM=${head_dim} ANNULUS_HOPPER_VALUE_DIM=${value_dim})
      list(APPEND hopper_targets ${kernels})
    endforeach()
  endforeach()
  set_target_properties(${hopper_targets} PROPERTIES CUDA_ARCHITECTURES 90a)
else()
  target_sources(annulus_cuda PRIVATE "${annulus_hopper_folder}/absent.cpp")
  set_target_properties(annulus_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()
