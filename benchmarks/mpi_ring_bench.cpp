// Benchmark of a ring over MPI relative to one rank: one thread per rank, run under mpirun. Rank 0 prints, and in its
// part of each round solves the whole problem alone while the others sleep. Results of both are compared before timing.
//
//   mpirun -np 2 annulus_mpi_ring_bench     --cases=table: 16384 tokens (the default)     --cases=tiny: negligible time
//
//   speed_of_one_rank   speedup over one rank with one thread; at best the number of ranks
//   exposed_%           share of the ring's time that is saved without communication; about 2 % is noise
//   cpu_of_one_rank_%   CPU time of one rank over that of the ring; exposed_cpu_% is as above, by CPU time. Other load
//                       on the machine has little effect on both; they exclude the time in which a core is idle
//   balance_%           work over the capacity of the ranks if each step takes as long as its busiest rank
//
// All are medians over rounds of one rank, the ring, and the ring without transfers.

#include <benchmark/benchmark.h>
#include <annulus/comm/mpi.hpp>
#include <annulus/comm/self.hpp>

#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench_main.hpp"
#include "ring/ring_rank.hpp"
#include "ring/ring_report.hpp"
#include "timing.hpp"

namespace annulus_bench {
namespace {

/// Barrier whose waiting ranks leave their cores to the others.
void meet(MPI_Comm communicator) {
  MPI_Request barrier = MPI_REQUEST_NULL;
  MPI_Ibarrier(communicator, &barrier);
  for (int arrived = 0; arrived == 0;) {
    MPI_Test(&barrier, &arrived, MPI_STATUS_IGNORE);
    if (arrived == 0) std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
}

/// This rank's wall time, and the CPU time of all ranks.
Elapsed of_all_ranks(MPI_Comm communicator, Elapsed mine) {
  MPI_Allreduce(MPI_IN_PLACE, &mine.cpu, 1, MPI_DOUBLE, MPI_SUM, communicator);
  return mine;
}

/// Gathers the shards of all ranks on rank 0, in global order; empty on other ranks.
FloatTensor join(MPI_Comm communicator, FloatTensor const& mine, RingCase const& c, int rank, int ranks) {
  auto const bytes = static_cast<int>(mine.size() * static_cast<Index>(sizeof(float)));
  if (rank > 0) {
    MPI_Send(mine.data(), bytes, MPI_BYTE, 0, 0, communicator);
    return {};
  }
  FloatTensor global(1, mine.dimension(1) * ranks, mine.dimension(2), mine.dimension(3)), shard = mine;
  for (int r = 0; r < ranks; ++r) {
    if (r > 0) MPI_Recv(shard.data(), bytes, MPI_BYTE, r, 0, communicator, MPI_STATUS_IGNORE);
    annulus::gather(shard, c.sharding, r, ranks, global);
  }
  return global;
}

void mpi_ring(benchmark::State& state, RingCase const& c) {
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &communicator);
  {
    annulus::MpiRing ring(MPI_COMM_WORLD);
    bool const leads = ring.rank() == 0;
    Operands const operands(c.attention);
    annulus::SelfRing self;
    std::unique_ptr<RingRank<annulus::SelfRing>> alone;
    if (leads) alone = std::make_unique<RingRank<annulus::SelfRing>>(self, c, operands);
    meet(communicator);
    RingRank<annulus::MpiRing> rank(ring, c, operands);

    RingResults const results = rank.results();
    int differs = 0;
    for (std::size_t i = 0; i < results.size(); ++i) {
      FloatTensor const joined = join(communicator, results[i], c, ring.rank(), ring.size());
      if (leads && !(relative_difference(joined, alone->results()[i]) <= ring_error_bound)) differs = 1;
    }
    MPI_Bcast(&differs, 1, MPI_INT, 0, communicator);
    if (differs) {
      fail(state, "the ring differs from one rank");
    } else {
      auto const timed = [&](auto&& work) {
        meet(communicator);
        Stopwatch const stopwatch;
        work();
        meet(communicator);
        return of_all_ranks(communicator, stopwatch.elapsed());
      };
      RingReport report;
      for (auto _ : state) {
        Elapsed const one = timed([&] {
          if (leads) alone->run();
        });
        Elapsed const together = timed([&] { rank.run(); });
        Elapsed const without = timed([&] { rank.run_without_transfers(); });
        report.add_round(one, together, without);
        state.SetIterationTime(together.wall);
      }
      report.write(state, c, rank.plan());
    }
  }
  MPI_Comm_free(&communicator);
}

class SilentReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(Context const&) override { return true; }
  void ReportRuns(std::vector<Run> const&) override {}
};

int run(int argc, char** argv, int ranks, bool leads) {
  std::string const cases = take_option(argc, argv, "cases", "table");
  if (cases != "table" && cases != "tiny") {
    if (leads) std::cerr << "--cases=" << cases << " is unknown; accepted: table, tiny\n";
    return 2;
  }
  bool const tiny = cases == "tiny";
  for (Pass pass : {Pass::forward, Pass::backward})
    for (RingCase c : {RingCase{{.mask = MaskKind::full}, annulus::Contiguous{}, "contiguous"},
                       RingCase{{.mask = MaskKind::causal}, annulus::Zigzag{}, "zigzag"}}) {
      c.attention.pass = pass;
      Index const unit = 2 * ranks;  // so that all zigzag shards have the same length
      c.attention.tokens = (tiny ? 96 : 16384) / unit * unit;
      if (tiny) c.attention.head_dim = 16;
      // The number of rounds is fixed, as it must be the same on all ranks.
      benchmark::RegisterBenchmark(("mpi/ranks:" + std::to_string(ranks) + "/" + c.name()).c_str(),
                                   [=](benchmark::State& state) { mpi_ring(state, c); })
          ->UseManualTime()
          ->Iterations(tiny ? 1 : 3)
          ->Unit(benchmark::kMillisecond);
    }
  if (leads) return run_benchmarks(argc, argv);
  // Only rank 0 writes files.
  take_option(argc, argv, "benchmark_out", "");
  SilentReporter reporter;
  return run_benchmarks(argc, argv, &reporter);
}

}  // namespace
}  // namespace annulus_bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int const status = annulus_bench::run(argc, argv, ranks, rank == 0);
  MPI_Finalize();
  return status;
}
