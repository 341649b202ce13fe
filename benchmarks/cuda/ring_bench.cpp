// ring_bench [--tokens 65536,262144] [--heads 16:16,32:8] [--sharding zigzag,striped] [--ranks N] [--seconds S]
//            [--schedule NAME] [--rotation NAME]
//
// Causal attention over the GPUs of a machine, head_dim 128, bfloat16, by the calls of a program: forward_into, and
// both passes with gradients in bfloat16. In the same process, before and after, each GPU does all of the work alone,
// all of them at once. The share is (time of one GPU) / (GPUs * time of the ring), in percent: 100 is a ring that costs
// nothing. Times are medians over calls of the mean over ranks, each call until its results are there; a measurement
// takes about --seconds. TFLOP/s counts 2 S S D heads for a forward pass, 3.5 times that for both. Sampled rows of the
// output and of each gradient are compared with those of one GPU, and with those of the ring's own first call. GB:
// memory in use on the first GPU in all. Exits with 1 if a case fails, rows are wrong, or bits differ.

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "annulus/annulus.hpp"
#include "annulus/backend/cuda/cuda.hpp"
#include "annulus/comm/peer_ring.hpp"
#include "annulus/tensor/cuda/device_tensor.hpp"

namespace {

using annulus::Index;
using T = Eigen::bfloat16;
using Clock = std::chrono::steady_clock;
using annulus::cuda::detail::check;

constexpr Index dim = 128, pattern_rows = 4096, sampled_rows = 61;

struct Problem {
  Index tokens, heads, kv_heads;
  annulus::Options options;

  double flops() const { return 2. * static_cast<double>(tokens) * static_cast<double>(tokens * dim * heads); }
};

/// Random rows, repeated along the sequence, so that every rank makes its own.
std::vector<T> const& pattern() {
  static std::vector<T> const rows = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<T> values(static_cast<std::size_t>(pattern_rows * dim));
    for (T& x : values) x = T(normal(random));
    return values;
  }();
  return rows;
}

/// Where a row of an operand is in the pattern. Each repetition shifts keys and values by different amounts: with equal
/// repetitions a wrong shard would have the rows of the right one, and attention does not depend on the order of keys.
Index pattern_row(Index position, Index head, Index seed) {
  Index const shift = position / pattern_rows * (2 * seed + 1) * 577;
  return (position * 31 + shift + head * 577 + seed * 1291) % pattern_rows;
}

/// Rows at these positions, [1, rows, heads, dim].
annulus::DeviceTensor<T> operand(std::vector<Index> const& positions, Index heads, Index seed) {
  std::vector<T> host(positions.size() * static_cast<std::size_t>(heads * dim));
  for (std::size_t i = 0; i < positions.size(); ++i)
    for (Index h = 0; h < heads; ++h)
      std::copy_n(pattern().data() + pattern_row(positions[i], h, seed) * dim, dim,
                  host.data() + (static_cast<Index>(i) * heads + h) * dim);
  annulus::DeviceTensor<T> tensor(Index{1}, std::ssize(positions), heads, dim);
  check(cudaMemcpy(tensor.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return tensor;
}

/// Rows of output, dq, dk and dv by their position.
using Samples = std::map<Index, std::array<std::vector<T>, 4>>;

/// One rank: its operands and results, and the calls.
class Rank {
 public:
  Rank(annulus::PeerRing& ring, Problem const& problem)
      : problem_(problem),
        attention_(ring, backend_, problem.options),
        positions_(annulus::positions(ring, problem.options.sharding, problem.tokens)),
        q_(operand(positions_, problem.heads, 0)),
        k_(operand(positions_, problem.kv_heads, 1)),
        v_(operand(positions_, problem.kv_heads, 2)),
        dout_(operand(positions_, problem.heads, 3)),
        output_(q_.extents()),
        dq_(q_.extents()),
        dk_(k_.extents()),
        dv_(v_.extents()),
        lse_(Index{1}, problem.heads, std::ssize(positions_)) {}

  void forward() { attention_.forward_into(q_, k_, v_, output_, lse_); }
  void both() {
    forward();
    attention_.backward_into(dout_, output_, lse_, q_, k_, v_,
                             annulus::GradientViews<T, annulus::CudaMemory>{dq_.view(), dk_.view(), dv_.view()});
  }

  Samples samples() const {
    Samples found;
    Index const every = std::max<Index>(1, problem_.tokens / sampled_rows);
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      if (positions_[i] % every != 0) continue;
      std::array const results{&output_, &dq_, &dk_, &dv_};
      for (std::size_t n = 0; n < results.size(); ++n) {
        Index const count = results[n]->extent(2) * dim;
        std::vector<T>& row = found[positions_[i]][n];
        row.resize(static_cast<std::size_t>(count));
        check(cudaMemcpy(row.data(), results[n]->data() + static_cast<Index>(i) * count, row.size() * sizeof(T),
                         cudaMemcpyDeviceToHost),
              "cudaMemcpy");
      }
    }
    return found;
  }

 private:
  Problem problem_;
  annulus::CudaBackend backend_;
  annulus::RingAttention<annulus::PeerRing, annulus::CudaBackend> attention_;
  std::vector<Index> positions_;
  annulus::DeviceTensor<T> q_, k_, v_, dout_, output_, dq_, dk_, dv_;
  annulus::DeviceTensor<float, 3> lse_;
};

/// Seconds of each call of a rank.
struct Times {
  std::vector<double> forward, both;
};

/// A run of several rings at once, each on some GPUs.
class Run {
 public:
  Run(Problem const& problem, std::vector<std::vector<int>> const& rings, double seconds)
      : problem_(problem), seconds_(seconds), ranks_(number_of_ranks(rings)), begin_(ranks_), times_(ranks_) {
    std::vector<std::thread> threads;
    std::size_t first = 0;
    for (std::vector<int> const& gpus : rings) {
      threads.emplace_back([this, gpus, first] { run_ring(gpus, first); });
      first += gpus.size();
    }
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

  double forward() const { return median(&Times::forward); }
  double both() const { return median(&Times::both); }
  Samples const& samples() const { return samples_; }  ///< of the first ring
  bool same_bits() const { return same_bits_; }        ///< of two calls
  double gigabytes() const { return gigabytes_; }      ///< of the first GPU, in all

 private:
  static std::ptrdiff_t number_of_ranks(std::vector<std::vector<int>> const& rings) {
    std::ptrdiff_t count = 0;
    for (std::vector<int> const& gpus : rings) count += std::ssize(gpus);
    return count;
  }

  void run_ring(std::vector<int> const& gpus, std::size_t first) {
    try {
      annulus::run_peer_ring(gpus, [&](annulus::PeerRing& ring) {
        try {
          measure(ring, first + static_cast<std::size_t>(ring.rank()), first == 0);
        } catch (...) {
          begin_.arrive_and_drop();  // the others do not wait for this rank
          throw;
        }
      });
    } catch (...) {
      std::scoped_lock const lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void measure(annulus::PeerRing& ring, std::size_t number, bool judged) {
    Rank rank(ring, problem_);
    rank.both();
    Samples const once = judged ? rank.samples() : Samples{};
    begin_.arrive_and_wait();
    times_[number].forward = repeat([&] { rank.forward(); }, problem_.flops() / ring.size());
    begin_.arrive_and_wait();
    times_[number].both = repeat([&] { rank.both(); }, 3.5 * problem_.flops() / ring.size());
    begin_.arrive_and_wait();
    if (!judged) return;
    Samples const again = rank.samples();
    std::scoped_lock const lock(mutex_);
    same_bits_ = same_bits_ && equal_bits(once, again);
    samples_.insert(again.begin(), again.end());
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (ring.rank() == 0) gigabytes_ = static_cast<double>(total - free) / 1e9;
  }
  static bool equal_bits(Samples const& a, Samples const& b) {
    auto const same = [](std::vector<T> const& x, std::vector<T> const& y) {
      return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
    };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](auto const& x, auto const& y) {
      return x.first == y.first && std::equal(x.second.begin(), x.second.end(), y.second.begin(), same);
    });
  }

  /// As many calls as fill the time at 500 TFLOP/s: a number on which all ranks of a ring agree.
  template <class Call>
  std::vector<double> repeat(Call&& call, double flops) const {
    std::vector<double> seconds(static_cast<std::size_t>(std::clamp(seconds_ * 500e12 / flops, 3., 200.)));
    for (double& one : seconds) {
      auto const begin = Clock::now();
      call();
      one = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    return seconds;
  }

  /// The median over calls of the mean over ranks: those of a ring end together.
  double median(std::vector<double> Times::*pass) const {
    std::vector<double> calls(static_cast<std::size_t>((times_[0].*pass).size()), 0.);
    for (std::size_t i = 0; i < calls.size(); ++i)
      for (Times const& times : times_) calls[i] += (times.*pass)[i] / static_cast<double>(times_.size());
    std::nth_element(calls.begin(), calls.begin() + std::ssize(calls) / 2, calls.end());
    return calls[calls.size() / 2];
  }

  Problem problem_;
  double seconds_;
  std::ptrdiff_t ranks_;
  std::barrier<> begin_;
  std::vector<Times> times_;
  std::mutex mutex_;
  std::exception_ptr error_;
  Samples samples_;
  bool same_bits_ = true;
  double gigabytes_ = 0;
};

/// Distance of the sampled rows, relative to the second: the largest of the four results.
double difference(Samples const& got, Samples const& want) {
  double largest = 0;
  for (std::size_t n = 0; n < 4; ++n) {
    double error = 0, size = 0;
    for (auto const& [position, rows] : want)
      for (std::size_t i = 0; i < rows[n].size(); ++i) {
        double const right = static_cast<double>(rows[n][i]), seen = static_cast<double>(got.at(position)[n][i]);
        error += (seen - right) * (seen - right);
        size += right * right;
      }
    double const relative = std::sqrt(error / size);
    if (!(relative <= largest)) largest = relative;
  }
  return largest;
}

/// Measures a case and prints its line. False if results are wrong.
bool report(Problem const& problem, std::string const& title, std::vector<int> const& gpus, int count, double seconds) {
  std::vector<std::vector<int>> each;
  for (int gpu = 0; gpu < count; ++gpu) each.push_back({gpu});
  Run const before(problem, each, seconds), ring(problem, {gpus}, seconds), after(problem, each, seconds);
  // GPUs, not ranks: two ranks of one GPU share its time.
  auto const line = [&](double one, double of_ring, double flops) {
    std::printf(" %6.1f ms %6.0f TFLOP/s %5.1f %%", 1e3 * of_ring, flops / of_ring / 1e12,
                100 * one / (count * of_ring));
  };
  double const forward = (before.forward() + after.forward()) / 2, both = (before.both() + after.both()) / 2;
  double const error = difference(ring.samples(), before.samples());
  bool const right = error < 1. / 128;  // each of the two is rounded to bfloat16, by at most 1/256
  std::printf("%s:", title.c_str());
  line(forward, ring.forward(), problem.flops());
  line(both, ring.both(), 3.5 * problem.flops());
  std::printf("  one GPU %4.0f %4.0f TFLOP/s, %.1f GB, rows %.0e%s%s\n", problem.flops() / forward / 1e12,
              3.5 * problem.flops() / both / 1e12, ring.gigabytes(), error, right ? "" : " WRONG",
              ring.same_bits() ? ", same bits" : ", OTHER BITS");
  std::fflush(stdout);
  return right && ring.same_bits();
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts(1);
  for (char const c : text)
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

/// The value of an option, or what is given for it.
std::string option(int argc, char** argv, std::string_view name, std::string_view otherwise) {
  for (int i = 1; i + 1 < argc; i += 2)
    if (argv[i] == name) return argv[i + 1];
  return std::string(otherwise);
}

/// The one of `all` with a name.
template <class Name, std::size_t N>
Name named(std::array<Name, N> const& all, std::string const& name) {
  for (Name const one : all)
    if (annulus::name_of(one) == name) return one;
  throw std::invalid_argument(name + " is not known");
}

annulus::Options options_of(int argc, char** argv, std::string const& sharding) {
  using annulus::Rotation, annulus::Schedule;
  annulus::Options options{.mask = annulus::causal()};
  if (sharding == "zigzag")
    options.sharding = annulus::Zigzag{};
  else if (sharding == "striped")
    options.sharding = annulus::Striped{};
  else
    throw std::invalid_argument(sharding + " is not known");
  options.schedule = named(std::array{Schedule::ring, Schedule::both_directions, Schedule::all_gather},
                           option(argc, argv, "--schedule", "ring"));
  options.rotation = named(std::array{Rotation::automatic, Rotation::keys, Rotation::queries},
                           option(argc, argv, "--rotation", "automatic"));
  return options;
}

/// Throws for names that are no option.
void require_options(int argc, char** argv) {
  std::array<std::string_view, 7> const known{"--tokens",  "--heads",    "--sharding", "--ranks",
                                              "--seconds", "--schedule", "--rotation"};
  for (int i = 1; i < argc; i += 2)
    if (std::find(known.begin(), known.end(), argv[i]) == known.end() || i + 1 == argc)
      throw std::invalid_argument(std::string(argv[i]) + " is not known, or has no value");
}

/// Measures all cases that are asked for. False if one failed.
bool run(int argc, char** argv, int count) {
  require_options(argc, argv);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int const ranks = std::atoi(option(argc, argv, "--ranks", std::to_string(std::max(count, 2))).c_str());
  if (ranks < 1) throw std::invalid_argument("--ranks requires a number from 1 on");
  double const seconds = std::atof(option(argc, argv, "--seconds", "0.5").c_str());
  std::vector<int> gpus;
  for (int rank = 0; rank < ranks; ++rank) gpus.push_back(rank % count);
  std::printf("%d ranks on %d %s; forward, then both passes: time, rate in all, share of %d GPUs alone\n", ranks, count,
              properties.name, count);
  bool good = true;
  for (std::string const& heads : split(option(argc, argv, "--heads", "16:16,32:8"), ','))
    for (std::string const& tokens : split(option(argc, argv, "--tokens", "65536,262144"), ','))
      for (std::string const& sharding : split(option(argc, argv, "--sharding", "zigzag,striped"), ',')) {
        auto const of = split(heads, ':');
        Problem const problem{std::atoll(tokens.c_str()), std::atoll(of.front().c_str()), std::atoll(of.back().c_str()),
                              options_of(argc, argv, sharding)};
        std::string const title = heads + " heads, " + tokens + " tokens, " + sharding;
        try {
          good = report(problem, title, gpus, count, seconds) && good;
        } catch (std::exception const& error) {
          good = false;
          std::printf("%s: %s\n", title.c_str(), error.what());
        }
      }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("skipped: this benchmark needs a GPU, and there is none");
    return 77;
  }
  try {
    return run(argc, argv, count) ? 0 : 1;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
