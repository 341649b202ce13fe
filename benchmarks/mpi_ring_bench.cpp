// What a ring over MPI costs beside one rank: one thread a rank, run under mpirun. Rank 0 prints, and does the whole
// problem alone in its turns while the others sleep. The ring's results are compared with it before anything is timed.
//
//   mpirun -np 2 annulus_mpi_ring_bench     --cases=table: 16384 tokens (the default)     --cases=tiny: no time at all
//
//   speed_of_one_rank   times the speed of one rank with one thread; at best the number of ranks
//   exposed_%           of the ring's time, gone when the ranks pass nothing on; about 2 % is noise
//   cpu_of_one_rank_%   CPU time of one rank over that of the ring, and exposed_cpu_% as above by CPU time: what others on
//                       the machine change little, but which leaves out the time in which a core has nothing to do
//   balance_%           the work over what the ranks could do while each step takes as long as its busiest rank
//
// All are medians over rounds of one rank, ring, silent ring.

#include <benchmark/benchmark.h>
#include <annulus/comm/mpi.hpp>
#include <annulus/comm/mpi/run_mpi_ring.hpp>
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

/// A barrier in which those who wait leave their cores to the others.
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

/// Brings the shards of all ranks to rank 0; its result is in global order, that of other ranks empty.
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
      auto const turn = [&](auto&& work) {
        meet(communicator);
        Stopwatch const stopwatch;
        work();
        meet(communicator);
        return of_all_ranks(communicator, stopwatch.elapsed());
      };
      RingReport report;
      for (auto _ : state) {
        Elapsed const one = turn([&] {
          if (leads) alone->run();
        });
        Elapsed const together = turn([&] { rank.run(); });
        Elapsed const silent = turn([&] { rank.run_silently(); });
        report.add_round(one, together, silent);
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
      Index const unit = 2 * ranks;  // zigzag shards are of one length
      c.attention.tokens = (tiny ? 96 : 16384) / unit * unit;
      if (tiny) c.attention.head_dim = 16;
      // All ranks make the same number of rounds, so it is fixed.
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
