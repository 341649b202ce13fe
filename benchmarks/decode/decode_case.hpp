#pragma once
// Cases of one or a few query rows against many keys: the time of reading the keys, and the error of a result.

#include <benchmark/benchmark.h>
#include <annulus/core/scalar.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/larger_error.hpp"
#include "timing.hpp"

namespace annulus_bench {

using annulus::Index;

/// Shapes of a case: one batch item, q [queries, query_heads, dim], k and v [keys, kv_heads, dim].
struct DecodeCase {
  Index queries, query_heads, kv_heads, keys, dim;
  int threads;
};

/// Sum of the bits of `bytes` bytes, a multiple of 512: reads them in order, as fast as the memory allows. Without the
/// prefetches some processors read half as fast.
[[gnu::noinline]] inline std::uint64_t read_all(std::byte const* data, Index bytes) {
  typedef std::uint64_t Words __attribute__((vector_size(64)));
  Words sums[8] = {};
  for (Index at = 0; at + 512 <= bytes; at += 512)
    for (int i = 0; i < 8; ++i) {
      constexpr Index ahead = 32768;
      if (at + ahead < bytes) __builtin_prefetch(data + at + ahead + 64 * i, 0, 2);
      Words words;
      std::memcpy(&words, data + at + 64 * i, sizeof words);
      sums[i] += words;
    }
  std::uint64_t sum = 0;
  for (Words const& words : sums)
    for (int i = 0; i < 8; ++i) sum += words[i];
  return sum;
}

/// Seconds of reading two arrays on `threads` threads, which have started before.
inline double seconds_of_reading(std::byte const* k, std::byte const* v, Index bytes, int threads) {
  auto const read_part = [&](int thread) {
    Index const piece = bytes / threads / 512 * 512;
    benchmark::DoNotOptimize(read_all(k + thread * piece, piece) + read_all(v + thread * piece, piece));
  };
  return elapsed_on(threads, read_part).seconds(threads);
}

/// Largest error of the first head of `output` against attention in double.
template <class T>
double error_of(DecodeCase const& shape, T const* q, T const* k, T const* v, T const* output) {
  std::vector<double> logits(static_cast<std::size_t>(shape.keys)), sums(static_cast<std::size_t>(shape.dim));
  double largest = -1e300, sum = 0, error = 0;
  auto const value = [](T const& x) { return static_cast<double>(static_cast<annulus::Accumulator<T>>(x)); };
  Index const stride = shape.kv_heads * shape.dim;
  for (Index j = 0; j < shape.keys; ++j) {
    double logit = 0;
    for (Index d = 0; d < shape.dim; ++d) logit += value(q[d]) * value(k[j * stride + d]);
    logits[static_cast<std::size_t>(j)] = logit / std::sqrt(static_cast<double>(shape.dim));
    largest = std::max(largest, logits[static_cast<std::size_t>(j)]);
  }
  for (Index j = 0; j < shape.keys; ++j) {
    double const weight = std::exp(logits[static_cast<std::size_t>(j)] - largest);
    sum += weight;
    for (Index d = 0; d < shape.dim; ++d) sums[static_cast<std::size_t>(d)] += weight * value(v[j * stride + d]);
  }
  for (Index d = 0; d < shape.dim; ++d)
    error = annulus_test::larger_error(error, std::abs(value(output[d]) - sums[static_cast<std::size_t>(d)] / sum));
  return error;
}

}  // namespace annulus_bench
