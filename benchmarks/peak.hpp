#pragma once
// What the cores can do at most: multiply-adds on registers alone, and products of pairs of bfloat16 where the target
// has an instruction for them. Measured beside each result, because clocks change and cores are shared.

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>
#include <annulus/backend/cpu/simd/vector.hpp>
#include <annulus/core/scalar.hpp>

#include "amx_peak.hpp"
#include "timing.hpp"

namespace annulus_bench {

namespace detail {

inline constexpr int running_sums = annulus::cpu::vector_registers == 32 ? 24 : 12;

/// Floating-point operations done.
template <class A>
[[gnu::noinline]] double multiply_adds(long turns) {
  using V = annulus::cpu::Vector<A>;
  // Read once, unknown to the compiler; sums stay normal numbers, as others take some cores a hundred times as long.
  A const volatile factor = A(0.999), term = A(1e-4);
  V const x = V::of(factor), y = V::of(term);
  V sums[running_sums];
  for (V& sum : sums) sum = y;
  for (long turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 32
    for (int i = 0; i < running_sums; ++i) sums[i] = annulus::cpu::multiply_add(sums[i], x, y);
  }
  V total = V::zero();
  for (V const& sum : sums) total = total + sum;
  A lanes[V::lanes];
  total.store(lanes);
  benchmark::DoNotOptimize(lanes[0]);
  return 2.0 * V::lanes * running_sums * static_cast<double>(turns);
}

#if defined(__AVX512BF16__)
[[gnu::noinline]] inline double pair_products(long turns) {
  int const volatile pair = 0x3c003c00;  // 2^-7 twice
  auto const x = (__m512bh)_mm512_set1_epi32(pair);
  __m512 sums[running_sums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (long turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 32
    for (int i = 0; i < running_sums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], x, x);
  }
  __m512 total = _mm512_setzero_ps();
  for (__m512 const& sum : sums) total = _mm512_add_ps(total, sum);
  float lanes[16];
  _mm512_storeu_ps(lanes, total);
  benchmark::DoNotOptimize(lanes[0]);
  return 64.0 * running_sums * static_cast<double>(turns);
}
#endif

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
  if (type == annulus::DataType::float64) return detail::rate_of(detail::multiply_adds<double>, threads, seconds);
#if defined(ANNULUS_CPU_HAS_TILES)
  if (type == annulus::DataType::bfloat16 && annulus::cpu::tiles_are_permitted())
    return detail::rate_of(tile_products, threads, seconds);
#endif
#if defined(__AVX512BF16__)
  if (type == annulus::DataType::bfloat16) return detail::rate_of(detail::pair_products, threads, seconds);
#endif
  return detail::rate_of(detail::multiply_adds<float>, threads, seconds);
}

/// What peak_rate measures.
inline char const* peak_name(annulus::DataType type) {
  if (type != annulus::DataType::bfloat16) return "multiply-add";
#if defined(ANNULUS_CPU_HAS_TILES)
  if (annulus::cpu::tiles_are_permitted()) return "AMX tile product";
#endif
#if defined(__AVX512BF16__)
  return "bfloat16 pair product";
#else
  return "multiply-add";
#endif
}

}  // namespace annulus_bench
