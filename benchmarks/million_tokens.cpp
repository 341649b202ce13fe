// Exact causal attention over a very long sequence on a ring of simulated ranks: time, memory, and the error of sampled
// rows against dense attention in double.
//
//   annulus_million_tokens [--tokens=1048576] [--ranks=64] [--dim=64] [--threads=0] [--samples=16]
//
// Forward, one head, float, zigzag sharding. --threads: per rank; 0: the ranks share all cores. The default case takes
// 1.4e14 floating-point operations. Exit status 1 if an error exceeds the rounding of long sums in float.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/comm/simulated_ring.hpp>
#include <annulus/core/default_threads.hpp>
#include <annulus/sharding/scatter_gather.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/operands.hpp"
#include "bench_main.hpp"
#include "peak.hpp"
#include "support/larger_error.hpp"
#include "support/oracle.hpp"
#include "timing.hpp"

namespace annulus_bench {
namespace {

constexpr double mebi = 1 << 20;

/// Peak memory of the process so far, in bytes.
double peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

struct Settings {
  Index tokens, dim, samples;
  int ranks, threads;
};

/// Time and memory of one rank.
struct RankReport {
  double seconds = 0;
  double operand_bytes = 0, buffer_bytes = 0;  ///< q, k, v, output, lse; buffers of the ring
};

/// Fills a shard of q, k or v (streams 0, 1, 2). A row depends on its global position alone, so no rank holds them all.
void fill(FloatTensor& shard, std::uint64_t stream, std::vector<annulus::Segment> const& segments) {
  Index const dim = shard.dimension(3);
  for (annulus::Segment const& segment : segments)
    for (Index i = 0; i < segment.length; ++i)
      for (Index d = 0; d < dim; ++d)
        shard(0, segment.local_begin + i, 0, d) =
            value_at(stream, static_cast<std::uint64_t>((segment.global_begin + i * segment.global_stride) * dim + d));
}

struct Sample {
  Index position;
  std::vector<double> output;
  double lse;
};

/// Positions at both ends and evenly spaced between.
std::vector<Index> sampled_positions(Settings const& s) {
  std::vector<Index> positions{0, 1, s.tokens - 1};
  for (Index i = 1; i + 2 < s.samples; ++i) positions.push_back(s.tokens * i / (s.samples - 2) - i);
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

RankReport attend(annulus::SimulatedRing& ring, Settings const& s, std::vector<Index> const& wanted,
                  std::vector<Sample>& samples, std::mutex& samples_mutex) {
  annulus::Options const options{.mask = annulus::causal(), .sharding = annulus::Zigzag{}};
  auto const lengths = options.sharding.lengths(annulus::Side::query, s.ranks, s.tokens);
  auto const segments = options.sharding.segments(annulus::Side::query, ring.rank(), lengths);
  Index const rows = lengths[static_cast<std::size_t>(ring.rank())];
  FloatTensor q(1, rows, 1, s.dim), k(1, rows, 1, s.dim), v(1, rows, 1, s.dim), output(1, rows, 1, s.dim);
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse(1, 1, rows);
  fill(q, 0, segments);
  fill(k, 1, segments);
  fill(v, 2, segments);
  annulus::CpuBackend backend{.threads = s.threads};
  annulus::RingAttention attention(ring, backend, options);
  Stopwatch const stopwatch;
  attention.forward_into(q, k, v, output, lse);
  RankReport report{stopwatch.elapsed().wall,
                    static_cast<double>((4 * q.size() + lse.size()) * static_cast<Index>(sizeof(float))),
                    static_cast<double>(attention.buffer_bytes(Pass::forward))};
  for (Index position : wanted)
    for (annulus::Segment const& segment : segments) {
      Index const i = position - segment.global_begin;  // zigzag segments have stride 1
      if (i < 0 || i >= segment.length) continue;
      Sample sample{position, {}, static_cast<double>(lse(0, 0, segment.local_begin + i))};
      for (Index d = 0; d < s.dim; ++d)
        sample.output.push_back(static_cast<double>(output(0, segment.local_begin + i, 0, d)));
      std::lock_guard const lock(samples_mutex);
      samples.push_back(std::move(sample));
    }
  return report;
}

struct Errors {
  double output;  ///< of the worst row: norm of the error relative to that of the exact row
  double lse;     ///< of the worst row: absolute
};

Errors errors(Settings const& s, std::vector<Sample> const& samples) {
  annulus_test::OracleProblem problem;
  problem.key_length = s.tokens;
  problem.head_dim = problem.value_dim = s.dim;
  problem.causal = true;
  auto const row = [&](std::uint64_t stream, Index begin, Index count) {
    std::vector<double> values(static_cast<std::size_t>(count * s.dim));
    for (Index i = 0; i < count * s.dim; ++i)
      values[static_cast<std::size_t>(i)] =
          static_cast<double>(value_at(stream, static_cast<std::uint64_t>(begin * s.dim + i)));
    return values;
  };
  problem.k = row(1, 0, s.tokens);
  problem.v = row(2, 0, s.tokens);
  Errors worst{0, 0};
  for (Sample const& sample : samples) {
    problem.q = row(0, sample.position, 1);
    problem.query_offset = sample.position;
    annulus_test::OracleRow const exact = annulus_test::oracle_row(problem, 0, 0, 0);
    double difference = 0, size = 0;
    for (std::size_t d = 0; d < exact.output.size(); ++d) {
      difference += std::pow(exact.output[d] - sample.output[d], 2);
      size += std::pow(exact.output[d], 2);
    }
    worst.output = annulus_test::larger_error(worst.output, std::sqrt(difference / size));
    worst.lse = annulus_test::larger_error(worst.lse, std::abs(exact.lse - sample.lse));
  }
  return worst;
}

/// Removes option --name=value from the arguments; throws std::invalid_argument unless it is an integer >= least.
Index number(int& argc, char** argv, char const* name, Index value, Index least) {
  std::string const text = take_option(argc, argv, name, std::to_string(value));
  std::size_t used = 0;
  long long found = 0;
  try {
    found = std::stoll(text, &used);
  } catch (std::exception const&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || found < least)
    throw std::invalid_argument(std::string("--") + name + "=" + text + ": a whole number of at least " +
                                std::to_string(least) + " is accepted");
  return static_cast<Index>(found);
}

int run(int argc, char** argv) {
  Settings s{};
  s.tokens = number(argc, argv, "tokens", 1 << 20, 4);
  s.ranks = static_cast<int>(number(argc, argv, "ranks", 64, 1));
  s.dim = number(argc, argv, "dim", 64, 1);
  s.threads = static_cast<int>(number(argc, argv, "threads", 0, 0));
  s.samples = number(argc, argv, "samples", 16, 4);
  if (argc > 1)
    throw std::invalid_argument(std::string(argv[1]) +
                                " is unknown; accepted: --tokens --ranks --dim --threads --samples");

  AttentionCase const whole{.mask = MaskKind::causal, .tokens = s.tokens, .head_dim = s.dim, .heads = 1};
  int const cores = annulus::default_threads();  // those that the process may use, as the ranks do
  double const peak = peak_rate(DataType::float32, 1, 0.1);
  std::vector<Index> const positions = sampled_positions(s);
  std::vector<Sample> samples;
  std::mutex samples_mutex;
  Stopwatch const stopwatch;
  std::vector<RankReport> const reports = annulus::run_ring(
      s.ranks, [&](annulus::SimulatedRing& ring) { return attend(ring, s, positions, samples, samples_mutex); });
  double const cpu = stopwatch.elapsed().cpu, memory = peak_memory();

  RankReport largest;
  for (RankReport const& report : reports) {
    largest.seconds = std::max(largest.seconds, report.seconds);
    largest.operand_bytes = std::max(largest.operand_bytes, report.operand_bytes);
    largest.buffer_bytes = std::max(largest.buffer_bytes, report.buffer_bytes);
  }
  double const rate = operations(whole) / largest.seconds;
  auto const tokens = static_cast<double>(s.tokens);
  std::printf("%lld tokens, causal, head_dim %lld, one head, forward, float; %d simulated ranks on %d %s (%s)\n",
              static_cast<long long>(s.tokens), static_cast<long long>(s.dim), s.ranks, cores,
              cores == 1 ? "core" : "cores", std::string(annulus::cpu_target_name()).c_str());
  std::printf("time                    %.1f s, %.1f GFLOP/s, %.0f %% of %d times the multiply-add peak of one core\n",
              largest.seconds, rate * 1e-9, 100 * rate / peak / cores, cores);
  std::printf("CPU time                %.1f s, %.0f %% of that peak\n", cpu, 100 * operations(whole) / cpu / peak);
  std::printf("memory of a rank        %.1f MiB of operands and results, %.1f MiB of buffers\n",
              largest.operand_bytes / mebi, largest.buffer_bytes / mebi);
  std::printf("peak memory of all      %.2f GiB; the scores alone would take %.0f GiB\n", memory / mebi / 1024,
              4 * tokens * tokens / mebi / 1024);
  std::fflush(stdout);
  Errors const error = errors(s, samples);
  std::printf("worst of %zu sampled rows %.1e of the row's output, %.1e in its lse\n", samples.size(), error.output,
              error.lse);
  // Two roundings of the terms of a sum over n keys: they have either sign and are about sqrt(n) times larger than it.
  double const bound = 2 * std::sqrt(tokens) * 0x1p-24;
  return samples.size() == positions.size() && error.output <= bound && error.lse <= bound ? 0 : 1;
}

}  // namespace
}  // namespace annulus_bench

int main(int argc, char** argv) {
  try {
    return annulus_bench::run(argc, argv);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
