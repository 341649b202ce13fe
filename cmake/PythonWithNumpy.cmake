# ANNULUS_PYTHON: a python3 that can import numpy. The first one on PATH may belong to a version manager and lack numpy,
# while the system's has it. If there is none, ANNULUS_PYTHON is any python3 and ANNULUS_PYTHON_HAS_NUMPY is off.

if(NOT ANNULUS_PYTHON OR NOT ANNULUS_PYTHON_HAS_NUMPY)
  set(ANNULUS_PYTHON_HAS_NUMPY OFF)
  find_program(annulus_python_on_path python3)
  foreach(candidate IN ITEMS "${ANNULUS_PYTHON}" "${annulus_python_on_path}" /usr/bin/python3 /usr/local/bin/python3)
    if(candidate AND EXISTS "${candidate}")
      execute_process(COMMAND "${candidate}" -c "import numpy" RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
      if(status EQUAL 0)
        set(ANNULUS_PYTHON "${candidate}" CACHE FILEPATH "Python 3 for tests of the annulus command" FORCE)
        set(ANNULUS_PYTHON_HAS_NUMPY ON)
        break()
      endif()
    endif()
  endforeach()
  set(ANNULUS_PYTHON "${annulus_python_on_path}" CACHE FILEPATH "Python 3 for tests of the annulus command")
  set(ANNULUS_PYTHON_HAS_NUMPY ${ANNULUS_PYTHON_HAS_NUMPY} CACHE INTERNAL "whether ANNULUS_PYTHON imports numpy")
endif()

# annulus_add_python_test(<entry> SCRIPT <script> SPEED quick|slow|hosted [NUMPY] [ARGUMENTS <argument>...] [LABELS <label>...]
#                         [ENVIRONMENT <variable>=<value>...])
#     A ctest entry that runs a script. NUMPY: it imports numpy, and is skipped if no python3 here can.
function(annulus_add_python_test entry)
  cmake_parse_arguments(PARSE_ARGV 1 test "NUMPY" "SCRIPT;SPEED" "ARGUMENTS;LABELS;ENVIRONMENT")
  if(test_NUMPY AND NOT ANNULUS_PYTHON_HAS_NUMPY)
    set(command sh -c "echo no python3 here can import numpy, install python3-numpy; exit 77")
  else()
    set(command "${ANNULUS_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/${test_SCRIPT}" ${test_ARGUMENTS})
  endif()
  add_test(NAME ${entry} COMMAND ${command})
  set_tests_properties(${entry} PROPERTIES TIMEOUT ${ANNULUS_TEST_TIMEOUT} LABELS "${test_LABELS};${test_SPEED}"
                       SKIP_RETURN_CODE 77 ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;${test_ENVIRONMENT}")
endfunction()
