# annulus_headers_alone, and with the suffixes _mpi, _cuda, _peer and _nccl: object libraries with one source per header,
# which includes that header alone. ctest (headers.alone) builds them, not the default target; only changed headers are
# compiled again.
#
# Headers that include one of these, directly or through others, form a library for which it is compiled once. As includes
# stand first, it hides nothing that is missing in them. Those that include most are listed first.
set(annulus_shared_headers annulus/schedule/ring_plan.hpp annulus/nki/program/program.hpp annulus/backend/step.hpp
                           annulus/mask/attention_rules.hpp)

# Sets <result> to all headers of the library that a header includes.
function(annulus_all_includes header result)
  get_property(known GLOBAL PROPERTY "annulus_includes_of_${header}" SET)
  if(NOT known)
    set_property(GLOBAL PROPERTY "annulus_includes_of_${header}" "")  # ends cycles
    file(STRINGS "${PROJECT_SOURCE_DIR}/include/${header}" lines REGEX "^#include [<\"]annulus/")
    set(all)
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^[^<\"]*[<\"]([^>\"]+)[>\"].*$" "\\1" included "${line}")
      annulus_all_includes("${included}" further)
      list(APPEND all "${included}" ${further})
    endforeach()
    list(REMOVE_DUPLICATES all)
    set_property(GLOBAL PROPERTY "annulus_includes_of_${header}" "${all}")
  endif()
  get_property(all GLOBAL PROPERTY "annulus_includes_of_${header}")
  set(${result} "${all}" PARENT_SCOPE)
endfunction()

# Adds the libraries, and their names to <targets>.
function(annulus_add_headers_alone target library)
  set(groups)
  foreach(header IN LISTS ARGN)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/include" OUTPUT_VARIABLE name)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${target}/${name}.cpp")
    # Included twice, to test the include guard.
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${name}\"\n#include \"${name}\"\n")
    annulus_all_includes("${name}" includes)
    set(group others)
    foreach(shared IN LISTS annulus_shared_headers)
      annulus_all_includes("${shared}" included_by_shared)
      if("${shared}" IN_LIST includes AND NOT "${name}" IN_LIST included_by_shared)
        cmake_path(GET shared STEM group)
        set(shared_of_${group} "${PROJECT_SOURCE_DIR}/include/${shared}")
        break()
      endif()
    endforeach()
    list(APPEND groups ${group})
    list(APPEND sources_of_${group} "${source}")
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    set(part ${target}_${group})
    add_library(${part} OBJECT EXCLUDE_FROM_ALL ${sources_of_${group}})
    target_link_libraries(${part} PRIVATE ${library} annulus_build_options)
    target_compile_options(${part} PRIVATE -O0 -g0)
    if(DEFINED shared_of_${group})
      target_precompile_headers(${part} PRIVATE "${shared_of_${group}}")
    endif()
    list(APPEND targets ${part})
  endforeach()
  set(targets ${targets} PARENT_SCOPE)
endfunction()

set(targets)
annulus_add_headers_alone(annulus_headers_alone annulus::annulus ${annulus_headers})
if(ANNULUS_WITH_MPI)
  # The umbrella header is compiled again, as it has a part for MPI.
  annulus_add_headers_alone(annulus_headers_alone_mpi annulus::mpi ${annulus_mpi_headers}
                            "${PROJECT_SOURCE_DIR}/include/annulus/annulus.hpp")
endif()
if(ANNULUS_WITH_CUDA)
  # Without annulus::cuda, whose kernels would be compiled before.
  annulus_add_headers_alone(annulus_headers_alone_cuda annulus::peer ${annulus_cuda_headers_alone})
  set(alone ${annulus_peer_headers})
  list(FILTER alone EXCLUDE REGEX "/(core/cuda|comm/mpi_cuda)")
  annulus_add_headers_alone(annulus_headers_alone_peer annulus::peer ${alone})
  if(TARGET annulus_nccl)
    annulus_add_headers_alone(annulus_headers_alone_nccl annulus::nccl ${annulus_nccl_headers})
  endif()
endif()
if(ANNULUS_WITH_CUDA)
  # Compiles every header that needs CUDA in minutes: those of kernels for one element type and shape. For a machine
  # without a GPU.
  set(alone_with_cuda ${targets})
  list(FILTER alone_with_cuda INCLUDE REGEX "_alone_(cuda|peer|nccl)")
  set(kernels annulus_cuda_rows annulus_cuda_decode annulus_cuda_complete_bfloat16)
  if(TARGET annulus_hopper)
    list(APPEND kernels annulus_hopper annulus_hopper_bfloat16_128_128)
  endif()
  add_custom_target(annulus_cuda_compiles DEPENDS ${alone_with_cuda} ${kernels})
endif()
add_test(NAME headers.alone
         COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --config $<CONFIG> --target ${targets})
set_tests_properties(headers.alone PROPERTIES TIMEOUT 900 LABELS "build;hosted" PROCESSORS 2 COST 500
                     RESOURCE_LOCK build_folder)
