// Estimated and measured times of rings over MPI, side by side, one thread per rank. The rates that the estimates take
// are measured in the same rounds as the problems; the table has the medians of the rounds.
//
//   mpirun -np 2 annulus_estimate_bench [ROUNDS]
//
//   rates: a pass of one rank alone, on all ranks at the same time; shifts of 4 KiB and 4 MiB
//   estimate/measured: 1 is exact. Ranks copy messages themselves, so messages and work do not overlap

#include <mpi.h>

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/comm/mpi.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using annulus::Index;
using annulus::Pass;
using annulus::Rotation;
using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

struct Problem {
  Pass pass;
  bool causal;
  Rotation rotation;
  Index tokens = 4096, heads = 4, kv_heads = 4, head_dim = 64;

  std::string name() const {
    return std::string(annulus::name_of(pass)) + (causal ? " causal zigzag" : " full contiguous") + ", " +
           std::string(annulus::name_of(rotation)) + " travel, " + std::to_string(tokens) + " tokens, " +
           std::to_string(heads) + ":" + std::to_string(kv_heads) + " heads of " + std::to_string(head_dim);
  }
  annulus::Options options() const {
    return {.mask = {.causal = causal},
            .sharding = causal ? annulus::Sharding(annulus::Zigzag{}) : annulus::Sharding(annulus::Contiguous{}),
            .rotation = rotation};
  }
};

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (Pass pass : {Pass::forward, Pass::backward})
    for (bool causal : {false, true})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) all.push_back({pass, causal, rotation});
  for (Pass pass : {Pass::forward, Pass::backward}) {
    all.push_back(
        {.pass = pass, .causal = true, .rotation = Rotation::keys, .heads = 2, .kv_heads = 2, .head_dim = 128});
    all.push_back({.pass = pass, .causal = true, .rotation = Rotation::keys, .kv_heads = 1});
    all.push_back({.pass = pass, .causal = false, .rotation = Rotation::keys, .tokens = 512});
  }
  return all;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Seconds until the last rank has done work(), begun by all at the same time.
template <class Work>
double timed(Work&& work) {
  MPI_Barrier(MPI_COMM_WORLD);
  auto const begin = std::chrono::steady_clock::now();
  work();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

/// A pass of a problem on a ring, repeated with the same operands.
template <class Ring>
class Timed {
 public:
  Timed(Ring& ring, Problem const& problem)
      : problem_(problem), attention_(ring, backend_, problem.options()), rows_(problem.tokens / ring.size()) {
    for (Tensor* x : {&q_, &k_, &v_, &dout_}) {
      Index const heads = x == &k_ || x == &v_ ? problem.kv_heads : problem.heads;
      x->resize(1, rows_, heads, problem.head_dim);
      x->setRandom();
    }
    forward_.emplace(attention_.forward(q_, k_, v_));
    if (problem.pass == Pass::backward) run();
  }

  double seconds() {
    return timed([&] { run(); });
  }
  annulus::RingPlan const& plan() const { return *attention_.plan(problem_.pass); }

 private:
  void run() {
    if (problem_.pass == Pass::forward)
      attention_.forward(q_, k_, v_);
    else
      attention_.backward(dout_, *forward_, q_, k_, v_);
  }

  Problem problem_;
  annulus::CpuBackend backend_{.threads = 1};
  annulus::RingAttention<Ring, annulus::CpuBackend> attention_;
  Index rows_;
  Tensor q_, k_, v_, dout_;
  std::optional<annulus::Forward<Tensor>> forward_;
};

/// Seconds of a shift of this many bytes by all ranks.
double shift_seconds(annulus::MpiRing& ring, std::size_t bytes) {
  std::vector<std::byte> out(bytes), in(bytes);
  std::span<std::byte const> const sent(out);
  std::span<std::byte> const received(in);
  return timed(
      [&] { ring.start_shift(annulus::Channel::prefetched, 1, std::span(&sent, 1), std::span(&received, 1)).wait(); });
}

annulus::LinkRates link_rates(annulus::MpiRing& ring) {
  constexpr std::size_t small = 4096, large = 4 << 20;
  std::vector<double> of_small, of_large;
  for (int i = 0; i < 9; ++i) {
    of_small.push_back(shift_seconds(ring, small));
    of_large.push_back(shift_seconds(ring, large));
  }
  double const latency = median(of_small), rest = std::max(median(of_large) - latency, 1e-9);
  return {.latency = latency, .bandwidth = static_cast<double>(large - small) / rest};
}

void compare(annulus::MpiRing& ring, int rounds) {
  annulus::SelfRing self;
  struct Row {
    Problem problem;
    Timed<annulus::MpiRing> ring;
    Timed<annulus::SelfRing> alone;
    std::vector<double> estimated{}, measured{}, ratio{};

    Row(annulus::MpiRing& all, annulus::SelfRing& self, Problem const& given)
        : problem(given),
          ring(all, given),
          alone(self, {.pass = given.pass,
                       .causal = false,
                       .rotation = Rotation::keys,
                       .tokens = 1024,
                       .heads = given.heads,
                       .kv_heads = given.kv_heads,
                       .head_dim = given.head_dim}) {}
  };
  std::vector<std::unique_ptr<Row>> rows;
  for (Problem const& problem : problems()) rows.push_back(std::make_unique<Row>(ring, self, problem));
  std::vector<double> latencies, bandwidths;
  for (int round = 0; round < rounds; ++round)
    for (auto& row : rows) {
      annulus::Rates rates{.near = link_rates(ring), .overlap = 0};
      double const work = 2 * static_cast<double>(row->alone.plan().multiply_adds(0));
      double const before = row->alone.seconds();
      double const measured = row->ring.seconds();
      rates.flops = work / ((before + row->alone.seconds()) / 2);
      double const estimated = row->ring.plan().estimate(rates).seconds;
      row->estimated.push_back(estimated);
      row->measured.push_back(measured);
      row->ratio.push_back(estimated / measured);
      latencies.push_back(rates.near.latency);
      bandwidths.push_back(rates.near.bandwidth);
    }
  if (ring.rank() > 0) return;
  std::printf("%d ranks, medians of %d rounds; latency %.1f us, bandwidth %.2f GB/s\n", ring.size(), rounds,
              1e6 * median(latencies), 1e-9 * median(bandwidths));
  std::printf("%12s  %12s  %18s  %s\n", "estimated ms", "measured ms", "estimate/measured", "problem");
  int within = 0;
  for (auto const& row : rows) {
    double const ratio = median(row->ratio);
    within += ratio > 1 / 1.15 && ratio < 1.15;
    std::printf("%12.2f  %12.2f  %18.2f  %s\n", 1e3 * median(row->estimated), 1e3 * median(row->measured), ratio,
                row->problem.name().c_str());
  }
  std::printf("within 15 %%: %d of %zu\n", within, rows.size());
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int const rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  int status = 0;
  if (rounds < 1) {
    std::fprintf(stderr, "ROUNDS is '%s'; accepted: 1 or more\n", argv[1]);
    status = 2;
  } else {
    annulus::MpiRing ring(MPI_COMM_WORLD, {.zero_copy = annulus::ZeroCopy::never});
    compare(ring, rounds);
  }
  MPI_Finalize();
  return status;
}
