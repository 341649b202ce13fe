# Launch of test programs on several ranks of this machine, whatever its number of cores, also as root.

set(annulus_mpi_flags)
set(annulus_mpi_environment)
if(ANNULUS_WITH_MPI)
  execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE launcher ERROR_VARIABLE launcher)
  if(launcher MATCHES "Open ?MPI|Open MPI|OpenRTE|prterun")
    set(annulus_mpi_flags --oversubscribe --bind-to none)
    # Containers often forbid the system call that copies between processes, so copies go through shared memory. Waiting
    # ranks yield their core.
    set(annulus_mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl_sm_single_copy_mechanism=none
        OMPI_MCA_mpi_yield_when_idle=1)
  else()
    # Ranks that leave a ring leave messages to MPI, about which the UCX below Debian's MPICH warns when MPI ends.
    set(annulus_mpi_environment UCX_LOG_LEVEL=error)
  endif()
endif()

# annulus_mpi_command(<result> <ranks> <seconds> <program and arguments>...)
# Sets <result> to the launch command. The launcher times out before ctest does, as it also ends the ranks.
function(annulus_mpi_command result ranks seconds)
  set(limit)
  if(annulus_mpi_flags)
    math(EXPR seconds "${seconds} - 10")
    set(limit --timeout ${seconds})
  endif()
  set(${result} "${MPIEXEC_EXECUTABLE}" ${annulus_mpi_flags} ${limit} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${ARGN}
      PARENT_SCOPE)
endfunction()

# annulus_mpi_waits(<test>...)
# These jobs mostly wait for deadlines, and waiting ranks yield their core. On few cores such a job takes one slot of
# ctest's, while a test that computes takes the other, and one runs at a time, from the start. Jobs that exchange many
# messages get a slot for each rank: next to a busy process each message takes milliseconds.
cmake_host_system_information(RESULT annulus_cores QUERY NUMBER_OF_LOGICAL_CORES)
function(annulus_mpi_waits)
  if(annulus_cores LESS 8)
    set_tests_properties(${ARGV} PROPERTIES PROCESSORS 1 RESOURCE_LOCK mpi_deadlines COST 600)
  endif()
endfunction()

# Leak detection is off, as Open MPI leaks memory; all other tests detect leaks.
function(annulus_mpi_test_properties test ranks)
  set_tests_properties(${test} PROPERTIES PROCESSORS ${ranks}
                       ENVIRONMENT "${annulus_mpi_environment};ASAN_OPTIONS=detect_leaks=0")
endfunction()
