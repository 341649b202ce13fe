#pragma once
// Main function of benchmark programs whose results are checked: the program fails if a check has failed.

#include <atomic>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include <benchmark/benchmark.h>
#include <annulus/backend/cpu/kernels.hpp>

namespace annulus_bench {

inline std::atomic<int> failed_checks = 0;

/// `number` with two significant digits.
inline std::string two_digits(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", number);
  return text;
}

/// Ends the case with a message, and later the program with status 1.
inline void fail(benchmark::State& state, std::string const& message) {
  ++failed_checks;
  state.SkipWithError(message.c_str());
}

/// Removes the program's own option --name=value from the arguments and returns its value; `value` if it is not given.
inline std::string take_option(int& argc, char** argv, std::string const& name, std::string const& value) {
  std::string const start = "--" + name + "=";
  for (int i = 1; i < argc; ++i)
    if (std::strncmp(argv[i], start.c_str(), start.size()) == 0) {
      std::string const found = argv[i] + start.size();
      for (int j = i; j + 1 < argc; ++j) argv[j] = argv[j + 1];
      --argc;
      return found;
    }
  return value;
}

/// Runs the registered benchmarks and returns the exit status. `reporter` null: the one that the command line selects.
inline int run_benchmarks(int& argc, char** argv, benchmark::BenchmarkReporter* reporter = nullptr) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("annulus_cpu_target", std::string(annulus::cpu_target_name()));
  std::string targets;
  for (std::string_view const target : annulus::cpu_target_names()) targets.append(targets.empty() ? "" : " ").append(target);
  benchmark::AddCustomContext("annulus_cpu_targets", targets);
  std::size_t const count =
      reporter ? benchmark::RunSpecifiedBenchmarks(reporter) : benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (count == 0) std::cerr << "no benchmark matches the filter\n";
  return failed_checks == 0 && count > 0 ? 0 : 1;
}

}  // namespace annulus_bench
