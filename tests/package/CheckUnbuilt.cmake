# Run by ctest: SOURCE, BUILD, GENERATOR, OPTIONS (cache entries). An installation of what is configured and not built
# must fail and write nothing.

file(REMOVE_RECURSE "${BUILD}")
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${BUILD}" -G "${GENERATOR}" ${OPTIONS}
                        -DANNULUS_BUILD_TESTS=OFF -DANNULUS_BUILD_EXAMPLES=OFF -DANNULUS_BUILD_BENCHMARKS=OFF
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${BUILD}/prefix"
                        --component annulus_development
                RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(status EQUAL 0 OR NOT text MATCHES "annulus_cpu is not built" OR EXISTS "${BUILD}/prefix")
  message(FATAL_ERROR "expected a refusal and no files, got status ${status}:\n${text}")
endif()
