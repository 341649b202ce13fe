// Benchmark of the CPU backend against the peak of the cores and against two programs of Eigen expressions. Sampled
// rows of every result are compared with dense attention in double before it is timed.
//
//   --cases=table   the cases that benchmarks/table.py prints (the default)
//   --cases=options soft cap, bias, dropout, masks and predicates, each with the plain case that it is compared with
//   --cases=short   sequences of 256 tokens, alone and as documents, each with the long one that it is compared with
//   --cases=all     every combination: select with --benchmark_filter
//   --cases=tiny    small cases that run each program; with --benchmark_min_time=0 in negligible time
//
//   GFLOP/s           4 * visible pairs * dim per head forward, 10 backward
//   peak_GFLOP/s      rate of the fastest instructions on registers alone, measured before every pass
//   peak_%            the ratio of the two, for each pass
//   ps_per_pair_dim   picoseconds per visible pair and dimension of a head
//   busy_%            CPU time / (wall time * threads): below 100 with one thread, other programs used the core
//   error             relative error of the sampled rows
//
// All are medians. With one thread, time is CPU time, on which other load on the machine has little effect.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <annulus/core/default_threads.hpp>

#include "attention/program.hpp"
#include "attention/sampled_check.hpp"
#include "bench_main.hpp"
#include "peak.hpp"
#include "timing.hpp"

namespace annulus_bench {
namespace {

enum class ProgramKind { cpu, plain_eigen, blocked_eigen };

std::string name_of(ProgramKind kind) {
  return kind == ProgramKind::cpu ? "cpu" : kind == ProgramKind::plain_eigen ? "plain_eigen" : "blocked_eigen";
}

std::unique_ptr<AttentionProgram> make_program(ProgramKind kind, AttentionCase const& c, Operands const& operands) {
  if (kind == ProgramKind::plain_eigen) return plain_eigen_program(c, operands);
  if (kind == ProgramKind::blocked_eigen) return blocked_eigen_program(c, operands);
  switch (c.type) {
    case DataType::float64:
      return cpu_program<double>(c, operands);
    case DataType::float32:
      return cpu_program<float>(c, operands);
    case DataType::float16:
      return cpu_program<Eigen::half>(c, operands);
    case DataType::bfloat16:
      return cpu_program<Eigen::bfloat16>(c, operands);
  }
  return nullptr;
}

/// A program whose first results have been checked.
struct Prepared {
  std::string name;
  std::unique_ptr<AttentionProgram> program;
  double error = 0;
};

/// The program of a case, reused by the next call of the same benchmark, which has another number of iterations.
Prepared const& prepared(ProgramKind kind, AttentionCase const& c) {
  static Prepared last;
  std::string const name = name_of(kind) + "/" + c.name();
  if (last.name == name) return last;
  last = {};
  Operands const operands(c);
  auto program = make_program(kind, c, operands);
  program->forward();
  if (c.pass == Pass::backward) program->backward();
  double const error = sampled_rows(c, operands).error(c.pass, [&](Quantity quantity, Index head, Index row) {
    return program->row(quantity, head, row);
  });
  last = {name, std::move(program), error};
  return last;
}

void measure(benchmark::State& state, ProgramKind kind, AttentionCase const& c) {
  Prepared const& ready = prepared(kind, c);
  if (!(ready.error <= error_bound(c))) {
    fail(state,
         "sampled rows have a relative error of " + two_digits(ready.error) + ", above " + two_digits(error_bound(c)));
    return;
  }
  std::vector<double> seconds, peaks, shares, busy;
  for (auto _ : state) {
    double const peak_seconds = seconds.empty() ? 4e-3 : std::clamp(seconds.back() / 4, 2e-4, 4e-3);
    double const peak = peak_rate(c.type, c.threads, peak_seconds);
    Elapsed const elapsed =
        elapsed_in([&] { c.pass == Pass::forward ? ready.program->forward() : ready.program->backward(); });
    seconds.push_back(elapsed.seconds(c.threads));
    peaks.push_back(peak);
    shares.push_back(operations(c) / seconds.back() / peak);
    busy.push_back(elapsed.cpu / elapsed.wall / c.threads);
    state.SetIterationTime(seconds.back());
  }
  double const time = median(seconds);
  state.counters["GFLOP/s"] = operations(c) / time * 1e-9;
  state.counters["peak_GFLOP/s"] = median(peaks) * 1e-9;
  state.counters["peak_%"] = 100 * median(shares);
  state.counters["ps_per_pair_dim"] = 1e12 * time / (counted_pairs(c) * static_cast<double>(c.heads * c.head_dim));
  state.counters["busy_%"] = 100 * median(busy);
  state.counters["error"] = ready.error;
  state.SetLabel(peak_name(c.type));
}

/// Registers a case unless it is registered already.
void add(ProgramKind kind, AttentionCase const& c) {
  static std::set<std::string> known;
  std::string const name = name_of(kind) + "/" + c.name();
  if (!known.insert(name).second) return;
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { measure(state, kind, c); })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void add_eigen(AttentionCase const& c) {
  // The plain program stores all probabilities of all heads: 1 GiB at 8192 tokens.
  if (c.tokens < 8192) add(ProgramKind::plain_eigen, c);
  if (c.tokens <= 8192) add(ProgramKind::blocked_eigen, c);
}

constexpr std::array passes{Pass::forward, Pass::backward};
constexpr std::array masks{MaskKind::full,   MaskKind::causal,    MaskKind::window,
                           MaskKind::packed, MaskKind::documents, MaskKind::causal_documents};
constexpr std::array types{DataType::float32, DataType::float64, DataType::bfloat16, DataType::float16};

/// 1, 2 and powers of two up to all cores that the process may use.
std::vector<int> thread_counts() {
  int const cores = std::max(2, annulus::default_threads());
  std::vector<int> counts;
  for (int threads = 1; threads < cores; threads *= 2) counts.push_back(threads);
  counts.push_back(cores);
  return counts;
}

void add_table_cases() {
  std::vector<int> const threads{1, thread_counts().back()};
  for (Pass pass : passes) {
    auto const base = [&](MaskKind mask, Index tokens, Index dim) {
      return AttentionCase{.pass = pass, .mask = mask, .tokens = tokens, .head_dim = dim};
    };
    for (MaskKind mask : {MaskKind::full, MaskKind::causal})
      for (Index dim : {64, 128}) {
        for (Index tokens : {4096, 8192})
          for (int count : threads) {
            AttentionCase c = base(mask, tokens, dim);
            c.threads = count;
            add(ProgramKind::cpu, c);
          }
        add_eigen(base(mask, 4096, dim));
      }
    for (Index dim : {64, 128})
      for (Index tokens : {4095, 4097}) add(ProgramKind::cpu, base(MaskKind::full, tokens, dim));
    for (Index dim : {80, 96}) add(ProgramKind::cpu, base(MaskKind::full, 4096, dim));
    add(ProgramKind::cpu, base(MaskKind::window, 32768, 64));
    add(ProgramKind::cpu, base(MaskKind::packed, 16384, 64));
    for (DataType type : {DataType::bfloat16, DataType::float16, DataType::float64})
      for (MaskKind mask : {MaskKind::full, MaskKind::causal})
        for (Index dim : {64, 128}) {
          AttentionCase c = base(mask, 4096, dim);
          c.type = type;
          add(ProgramKind::cpu, c);
        }
  }
}

/// The case with each option, and the plain case that they are compared with.
void add_options(AttentionCase c) {
  auto const with = [&](MaskKind mask, OptionKind option) {
    c.mask = mask;
    c.option = option;
    add(ProgramKind::cpu, c);
  };
  for (MaskKind mask : {MaskKind::full, MaskKind::causal})
    for (OptionKind option : {OptionKind::none, OptionKind::soft_cap, OptionKind::bias, OptionKind::bias_row,
                              OptionKind::bias_gradient, OptionKind::dropout})
      if (option != OptionKind::bias_gradient || c.pass == Pass::backward) with(mask, option);
  for (OptionKind option :
       {OptionKind::mask_true, OptionKind::mask_random, OptionKind::mask_blocks, OptionKind::predicate})
    with(MaskKind::full, option);
}

void add_option_cases() {
  for (DataType type : {DataType::float32, DataType::bfloat16})
    for (Pass pass : passes) add_options({.pass = pass, .type = type, .tokens = 2048});
}

void add_short_cases() {
  for (DataType type : {DataType::float32, DataType::bfloat16})
    for (Pass pass : passes)
      for (Index dim : {64, 128}) {
        AttentionCase c{.pass = pass, .type = type, .head_dim = dim};
        for (MaskKind mask : {MaskKind::full, MaskKind::causal})
          for (Index tokens : {4096, 256}) {
            c.mask = mask;
            c.tokens = tokens;
            add(ProgramKind::cpu, c);
          }
        c.tokens = 4096;
        for (MaskKind mask : {MaskKind::documents, MaskKind::causal_documents})
          for (int threads : {1, thread_counts().back()}) {
            c.mask = mask;
            c.threads = threads;
            add(ProgramKind::cpu, c);
          }
      }
}

void add_all_cases() {
  for (Pass pass : passes)
    for (MaskKind mask : masks)
      for (DataType type : types)
        for (Index tokens : {256, 512, 1024, 2048, 4095, 4096, 4097, 8192, 16384, 32768})
          for (Index dim : {32, 64, 80, 96, 128, 192, 256})
            for (int threads : thread_counts()) {
              AttentionCase const c{
                  .pass = pass, .mask = mask, .type = type, .tokens = tokens, .head_dim = dim, .threads = threads};
              add(ProgramKind::cpu, c);
              if (type == DataType::float32 && (mask == MaskKind::full || mask == MaskKind::causal)) add_eigen(c);
            }
}

void add_tiny_cases() {
  for (Pass pass : passes)
    for (MaskKind mask : masks)
      for (DataType type : types) {
        AttentionCase const c{
            .pass = pass, .mask = mask, .type = type, .tokens = 97, .head_dim = 24, .heads = 2, .threads = 2};
        add(ProgramKind::cpu, c);
        if (type == DataType::float32 && (mask == MaskKind::full || mask == MaskKind::causal)) add_eigen(c);
        if (mask == MaskKind::full) add_options(c);
      }
}

}  // namespace
}  // namespace annulus_bench

int main(int argc, char** argv) {
  using namespace annulus_bench;
  std::string const cases = take_option(argc, argv, "cases", "table");
  if (cases == "table") {
    add_table_cases();
  } else if (cases == "options") {
    add_option_cases();
  } else if (cases == "short") {
    add_short_cases();
  } else if (cases == "all") {
    add_all_cases();
  } else if (cases == "tiny") {
    add_tiny_cases();
  } else {
    std::cerr << "--cases=" << cases << " is unknown; accepted: table, options, short, all, tiny\n";
    return 2;
  }
  return run_benchmarks(argc, argv);
}
