#pragma once
// What the cores can do at most: multiply-adds on registers alone, and products of pairs of bfloat16 where the target
// has an instruction for them. Measured beside each result, because clocks change and cores are shared.

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include <annulus/backend/cpu/instruction_set.hpp>
#include <annulus/core/scalar.hpp>

#include "timing.hpp"

namespace annulus_bench {

namespace detail {

/// Does a loop for about `seconds` on each of the threads at once; operations per second of all.
template <class Loop>
double rate_of(Loop const& loop, int threads, double seconds) {
  long turns = 1000;
  double taken = 0;
  for (; taken < seconds / 8; turns *= 2) taken = elapsed_in([&] { loop(turns); }).wall;
  turns = static_cast<long>(static_cast<double>(turns) / 2 * seconds / taken);
  double operations = 0;
  if (threads == 1) {
    Elapsed const elapsed = elapsed_in([&] { operations = loop(turns); });
    return operations / elapsed.seconds(1);
  }
  std::atomic<int> missing = threads;
  std::vector<double> rates(static_cast<std::size_t>(threads));
  auto const run = [&](int thread) {
    for (--missing; missing.load() > 0;) std::this_thread::yield();
    double done = 0;
    double const wall = elapsed_in([&] { done = loop(turns); }).wall;
    rates[static_cast<std::size_t>(thread)] = done / wall;
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
  }
  // One thread that others keep from its core says little of the rest.
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace detail

/// Operations per second of the fastest instructions that multiply elements of this type, sums in float (double for
/// double), on so many threads at once. half has none of its own: it is widened to float.
inline double peak_rate(annulus::DataType type, int threads, double seconds = 4e-3) {
  return detail::rate_of(annulus::cpu::peak_loop_of(type).run, threads, seconds);
}

/// What peak_rate measures.
inline char const* peak_name(annulus::DataType type) { return annulus::cpu::peak_loop_of(type).name; }

}  // namespace annulus_bench
