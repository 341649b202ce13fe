// All schedules relative to the ring, on ranks of one thread, by messages; those with groups also on a wire of
// bfloat16. Before anything is timed, the results of each schedule are compared with those of the ring on the same
// wire.
//
//   annulus_schedule_bench [ROUNDS [TOKENS]]               8 simulated ranks
//   mpirun -np 4 annulus_schedule_bench [ROUNDS [TOKENS]]  the ranks of MPI
//
//   speed   time of the ring over that of the schedule, until the last rank ends
//   cpu     the same by CPU time of all ranks, on which other load on the machine has little effect
//   bytes   sent by all ranks, relative to the ring
//
// Speeds are medians over rounds of all schedules.

#include <mpi.h>

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/comm/mpi.hpp>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "support/larger_error.hpp"
#include "timing.hpp"

namespace {

using annulus::Index;
using annulus::Pass;
using annulus::Schedule;
using annulus::Wire;
using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

constexpr Index heads = 8, head_dim = 64;
constexpr double error_bound = 1e-5;

struct Choice {
  Schedule schedule = Schedule::ring;
  int group = 0;
  Wire wire = Wire::as_stored;
};

/// Those that the number of ranks accepts; of a double ring the groups have two ranks. Then the ring and
/// the schedules with groups, on a wire of bfloat16.
std::vector<Choice> choices(int ranks) {
  std::vector<Choice> all{
      {Schedule::ring}, {Schedule::both_directions}, {Schedule::two_levels}, {Schedule::tiles}, {Schedule::all_gather}};
  bool const has_double_ring = ranks > 2 && ranks % 2 == 0;
  if (has_double_ring) all.push_back({Schedule::double_ring, 2});
  for (Schedule schedule : {Schedule::ring, Schedule::two_levels, Schedule::tiles})
    all.push_back({schedule, 0, Wire::bfloat16});
  if (has_double_ring) all.push_back({Schedule::double_ring, 2, Wire::bfloat16});
  return all;
}

struct Times {
  double wall = 0, cpu = 0;
};

/// Largest wall time and sum of the CPU times of all ranks.
template <class Ring>
Times of_all(Ring& ring, Times mine) {
  std::vector<Times> all(static_cast<std::size_t>(ring.size()));
  ring.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  Times sum;
  for (Times const& one : all) sum = {std::max(sum.wall, one.wall), sum.cpu + one.cpu};
  return sum;
}

double thread_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A pass in a schedule on one rank, repeated with the same operands.
template <class Ring>
class Timed {
 public:
  Timed(Ring& ring, Choice choice, Pass pass, Index tokens)
      : ring_(ring),
        pass_(pass),
        attention_(ring, backend_,
                   {.mask = annulus::causal(),
                    .sharding = annulus::Zigzag{},
                    .schedule = choice.schedule,
                    .ranks_per_group = choice.group,
                    .wire = choice.wire}) {
    for (Tensor* x : {&q_, &k_, &v_, &dout_}) {
      x->resize(1, tokens / ring.size(), heads, head_dim);
      for (Index i = 0; i < x->size(); ++i)
        x->data()[i] = std::sin(static_cast<float>(i % 1013 + 17 * ring.rank()) + static_cast<float>(x - &q_));
    }
    forward_.emplace(attention_.forward(q_, k_, v_));
    run();
  }

  Times measure() {
    of_all(ring_, {});  // all ranks begin together
    annulus_bench::Stopwatch const stopwatch;
    double const cpu = thread_seconds();
    run();
    return of_all(ring_, {stopwatch.elapsed().wall, thread_seconds() - cpu});
  }

  annulus::RingPlan const& plan() const { return *attention_.plan(pass_); }
  std::vector<Tensor> results() const {
    if (pass_ == Pass::forward) return {forward_->output};
    return {gradients_->dq, gradients_->dk, gradients_->dv};
  }

 private:
  void run() {
    if (pass_ == Pass::forward)
      forward_.emplace(attention_.forward(q_, k_, v_));
    else
      gradients_.emplace(attention_.backward(dout_, *forward_, q_, k_, v_));
  }

  Ring& ring_;
  Pass pass_;
  annulus::CpuBackend backend_{.threads = 1};
  annulus::RingAttention<Ring, annulus::CpuBackend> attention_;
  Tensor q_, k_, v_, dout_;
  std::optional<annulus::Forward<Tensor>> forward_;
  std::optional<annulus::Gradients<Tensor>> gradients_;
};

/// Largest difference relative to the largest element.
double difference(std::vector<Tensor> const& found, std::vector<Tensor> const& expected) {
  double worst = 0;
  for (std::size_t t = 0; t < found.size(); ++t) {
    double apart = 0, largest = 0;
    for (Index i = 0; i < found[t].size(); ++i) {
      apart =
          annulus_test::larger_error(apart, std::abs(static_cast<double>(found[t].data()[i]) - expected[t].data()[i]));
      largest = std::max(largest, std::abs(static_cast<double>(expected[t].data()[i])));
    }
    worst = annulus_test::larger_error(worst, apart / largest);
  }
  return worst;
}

/// Prints the table of a pass on rank 0. False, on all ranks, if results differ from the ring's.
template <class Ring>
bool compare(Ring& ring, Pass pass, int rounds, Index tokens) {
  std::deque<Timed<Ring>> all;
  std::vector<Choice> const chosen = choices(ring.size());
  for (Choice const& choice : chosen) all.emplace_back(ring, choice, pass, tokens);
  Times worst;
  std::size_t ring_on_wire = 0;  // the ring whose operands are rounded alike
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (chosen[i].schedule == Schedule::ring) ring_on_wire = i;
    worst.wall = annulus_test::larger_error(worst.wall, difference(all[i].results(), all[ring_on_wire].results()));
  }
  if (double const error = of_all(ring, worst).wall; !(error <= error_bound)) {
    if (ring.rank() == 0) std::fprintf(stderr, "a schedule differs from the ring by %g\n", error);
    return false;
  }
  std::vector<std::vector<double>> speeds(all.size()), cpu_speeds(all.size());
  for (int round = 0; round < rounds; ++round) {
    Times of_ring;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Times const times = all[i].measure();
      if (i == 0) of_ring = times;
      speeds[i].push_back(of_ring.wall / times.wall);
      cpu_speeds[i].push_back(of_ring.cpu / times.cpu);
    }
  }
  if (ring.rank() > 0) return true;
  auto const bytes_of_ring = static_cast<double>(all[0].plan().total_bytes_sent());
  std::printf("%s, %d ranks, %lld tokens\n  %-16s %-10s %6s %6s %6s %6s\n", std::string(name_of(pass)).c_str(),
              ring.size(), static_cast<long long>(tokens), "schedule", "wire", "group", "speed", "cpu", "bytes");
  for (std::size_t i = 0; i < all.size(); ++i)
    std::printf("  %-16s %-10s %6d %6.2f %6.2f %6.2f\n", std::string(name_of(chosen[i].schedule)).c_str(),
                std::string(name_of(chosen[i].wire)).c_str(), std::max(all[i].plan().groups().size(), chosen[i].group),
                annulus_bench::median(speeds[i]), annulus_bench::median(cpu_speeds[i]),
                static_cast<double>(all[i].plan().total_bytes_sent()) / bytes_of_ring);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int const rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  Index const unit = 16, tokens = std::max<Index>(unit, argc > 2 ? std::atoll(argv[2]) / unit * unit : 4096);
  int processes = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  auto const both_passes = [&](auto& ring) {
    return compare(ring, Pass::forward, rounds, tokens) && compare(ring, Pass::backward, rounds, tokens);
  };
  bool good = true;
  if (processes == 1) {
    for (bool const one : annulus::run_ring(8, both_passes, {.zero_copy = annulus::ZeroCopy::never}))
      good = good && one;
  } else {
    annulus::MpiRing ring(MPI_COMM_WORLD, {.zero_copy = annulus::ZeroCopy::never});
    good = both_passes(ring);
  }
  MPI_Finalize();
  return good ? 0 : 1;
}
