#pragma once
// Measured multiply-add peak of the machine, the reference for GFLOP/s.

#include <annulus/backend/cpu/instruction_set.hpp>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace annulus_command {

/// Total floating-point operations per second of `threads` threads on registers alone, in float, with the instruction
/// set of CpuBackend. Takes about 50 ms.
inline double multiply_add_peak(int threads) {
  auto const loop = annulus::cpu::peak_loop_of(annulus::DataType::float32).run;
  std::vector<double> rates(static_cast<std::size_t>(threads));
  auto const measure = [&](double& rate) {
    using Clock = std::chrono::steady_clock;
    auto const begin = Clock::now();
    double operations = 0, seconds = 0;
    for (; seconds < 0.05; seconds = std::chrono::duration<double>(Clock::now() - begin).count())
      operations += loop(20'000);
    rate = operations / seconds;
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t thread = 1; thread < rates.size(); ++thread)
      others.emplace_back([&measure, &rate = rates[thread]] { measure(rate); });
    measure(rates[0]);
  }
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace annulus_command
