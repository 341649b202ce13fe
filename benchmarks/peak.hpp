#pragma once
// Peak arithmetic rate of the cores: multiply-adds on registers alone, and products of pairs of bfloat16 where the
// target has an instruction for them. Measured next to each result, because clocks change and cores are shared.

#include <numeric>
#include <vector>

#include <annulus/backend/cpu/kernels.hpp>
#include <annulus/core/scalar.hpp>

#include "timing.hpp"

namespace annulus_bench {

namespace detail {

/// Runs `loop` for about `seconds` on each of `threads` threads at once; returns the operations per second of all.
template <class Loop>
double rate_of(Loop const& loop, int threads, double seconds) {
  long repetitions = 1000;
  double taken = 0;
  for (; taken < seconds / 8; repetitions *= 2) taken = elapsed_in([&] { loop(repetitions); }).wall;
  repetitions = static_cast<long>(static_cast<double>(repetitions) / 2 * seconds / taken);
  double operations = 0;
  if (threads == 1) {
    Elapsed const elapsed = elapsed_in([&] { operations = loop(repetitions); });
    return operations / elapsed.seconds(1);
  }
  std::vector<double> rates(static_cast<std::size_t>(threads));
  auto const measure = [&](int thread) {
    Stopwatch const stopwatch;
    double const done = loop(repetitions);
    rates[static_cast<std::size_t>(thread)] = done / stopwatch.elapsed().wall;
  };
  elapsed_on(threads, measure);
  // Rates are summed per thread, as a thread that other load delays says little about the rest.
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace detail

/// Operations per second of the fastest instructions that multiply elements of this type, sums in float (double for
/// double), on `threads` threads at once. half has no such instructions: it is widened to float.
inline double peak_rate(annulus::DataType type, int threads, double seconds = 4e-3) {
  return detail::rate_of(annulus::cpu::detail::peak_loop_of(type).run, threads, seconds);
}

/// Name of the instructions that peak_rate() measures.
inline char const* peak_name(annulus::DataType type) { return annulus::cpu::detail::peak_loop_of(type).name; }

}  // namespace annulus_bench
