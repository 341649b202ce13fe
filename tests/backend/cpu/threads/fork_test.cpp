// Calls in processes forked while other threads of the parent compute, and calls when no thread can be created.

#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>

#include "support/catch.hpp"
#include "support/forks.hpp"

#if defined(ANNULUS_TEST_FORKS)

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;

namespace {

/// Long enough for several work items in each call, and for buffers that grow.
RingProblem problem_of(int ranks, std::int64_t length = 160) {
  RingProblem problem = small_ring_problem(
      {.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = length, .head_dim = 8}, ranks, annulus::Zigzag{});
  problem.dense.causal = true;
  settle(problem);
  return problem;
}

RingResult run_alone(RingProblem const& problem, int threads) {
  annulus::SelfRing ring;
  annulus::CpuBackend backend{.threads = threads};
  return run_rank<float>(problem, ring, backend);
}

std::vector<RingResult> run_together(RingProblem const& problem, int threads) {
  return results_of_ranks<float>(problem, annulus::CpuBackend{.threads = threads});
}

bool same_bits_everywhere(std::vector<RingResult> const& a, std::vector<RingResult> const& b) {
  for (std::size_t rank = 0; rank < b.size(); ++rank)
    if (!same_bits(a[rank], b[rank])) return false;
  return a.size() == b.size();
}

enum Outcome { right, wrong, threw };
constexpr unsigned deadline_seconds = 30;

/// Forks a process that runs `is_right` and exits with an Outcome; a signal ends it at the deadline if it hangs.
template <class Function>
pid_t forked(Function&& is_right) {
  pid_t const child = fork();
  if (child != 0) return child;
  alarm(deadline_seconds);
  try {
    _exit(is_right() ? right : wrong);
  } catch (...) {
    _exit(threw);
  }
}

/// Number of children by kind of failure.
struct Failures {
  int wrong = 0, threw = 0, hung = 0;
  bool operator==(Failures const&) const = default;
};

Failures failures_of(std::vector<pid_t> const& children) {
  Failures failures;
  for (pid_t const child : children) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
      ++failures.hung;
    else if (WEXITSTATUS(status) == wrong)
      ++failures.wrong;
    else if (WEXITSTATUS(status) != right)
      ++failures.threw;
  }
  return failures;
}

}  // namespace

TEST_CASE("children forked while other threads compute can compute", "[cpu][fork]") {
  RingProblem const one = problem_of(1), three = problem_of(3);
  RingResult const alone = run_alone(one, 1);
  auto const together = run_together(three, 1);

  std::atomic<bool> ended{false};
  std::atomic<int> wrong_in_parent{0};
  std::vector<pid_t> children;
  {
    std::vector<std::jthread> busy;
    for (int threads : {0, 2, 3})
      busy.emplace_back([&, threads] {
        // Lengths differ, so that the store searches and enlarges buffers all the time.
        for (std::int64_t length = 16; !ended; length = length % 300 + 71) run_alone(problem_of(1, length), threads);
      });
    busy.emplace_back([&] {
      while (!ended) wrong_in_parent += same_bits_everywhere(run_together(three, 0), together) ? 0 : 1;
    });
    for (int child = 0; child < 150; ++child) {
      children.push_back(forked([&] {
        int const threads = child % 3;
        return child % 2 == 0 ? same_bits(run_alone(one, threads), alone)
                              : same_bits_everywhere(run_together(three, threads), together);
      }));
      REQUIRE(children.back() > 0);
      // A grandchild, forked after the child has used its threads.
      if (child % 10 == 0)
        children.push_back(forked([&] {
          if (!same_bits(run_alone(one, 2), alone)) return false;
          return failures_of({forked([&] { return same_bits(run_alone(one, 2), alone); })}) == Failures{};
        }));
      std::this_thread::sleep_for(std::chrono::microseconds(100 * (child % 7)));
    }
    ended = true;
  }
  Failures const failures = failures_of(children);
  INFO(failures.wrong << " wrong, " << failures.threw << " threw, " << failures.hung << " hung of " << children.size());
  CHECK(failures == Failures{});
  CHECK(wrong_in_parent == 0);
}

TEST_CASE("objects created before the fork work in the child", "[cpu][fork]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Tensor q(1, 150, 2, 8);
  q.setRandom();
  annulus::SelfRing ring;
  annulus::CpuBackend backend{.threads = 2};
  annulus::RingAttention attention(ring, backend, {.mask = annulus::causal()});
  auto const before = attention.forward(q, q, q);
  auto const is_same = [&] {
    auto const again = attention.forward(q, q, q);
    return std::equal(again.output.data(), again.output.data() + again.output.size(), before.output.data());
  };
  CHECK(failures_of({forked(is_same)}) == Failures{});
  CHECK(is_same());
}

#if defined(__GLIBC__)

namespace {

/// For its lifetime no thread can be created: the default stack size exceeds the address space.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t too_large = before_;
    pthread_attr_setstacksize(&too_large, std::size_t{1} << 60);
    pthread_setattr_default_np(&too_large);
  }
  NoMoreThreads(NoMoreThreads const&) = delete;
  NoMoreThreads& operator=(NoMoreThreads const&) = delete;
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

}  // namespace

TEST_CASE("a call runs on the threads that could be created, and later calls on more when there are more", "[cpu]") {
  annulus::cpu::detail::ThreadPool pool;
  // A thread that has finished may join again. The expected number may be late on a busy machine; more would join soon.
  auto const threads_of_run = [&pool](int threads, int expected) {
    std::atomic<int> joined{0};
    std::mutex mutex;
    std::set<std::thread::id> members;
    annulus::cpu::detail::ThreadPool::Call(pool, threads).run(threads, [&](annulus::cpu::detail::Team const&, int) {
      {
        std::lock_guard const lock(mutex);
        members.insert(std::this_thread::get_id());
        joined = static_cast<int>(members.size());
      }
      using std::chrono::steady_clock;
      auto const end = steady_clock::now() + std::chrono::seconds(20);
      while (joined < expected && steady_clock::now() < end) std::this_thread::yield();
      auto const until = steady_clock::now() + std::chrono::milliseconds(200);
      while (joined < threads && steady_clock::now() < until) std::this_thread::yield();
    });
    return joined.load();
  };
  {
    NoMoreThreads const none;
    CHECK_THROWS_AS(std::thread([] {}), std::system_error);
    CHECK(threads_of_run(4, 1) == 1);
  }
  CHECK(threads_of_run(2, 2) == 2);
  {
    NoMoreThreads const none;
    CHECK(threads_of_run(4, 2) == 2);  // with the one that was created before
  }
  CHECK(threads_of_run(3, 3) == 3);
}

TEST_CASE("without any further thread the CPU backend gives the same bits", "[cpu][fork]") {
  RingProblem const problem = problem_of(1, 700);
  RingResult const expected = run_alone(problem, 1);
  for (int threads : {0, 2, 5}) {
    INFO(threads << " threads");
    // A forked child has no threads of the backend yet.
    CHECK(failures_of({forked([&] {
            NoMoreThreads const none;
            return same_bits(run_alone(problem, threads), expected);
          })}) == Failures{});
  }
}

TEST_CASE("a simulated ring whose ranks get no thread fails at once with the reason", "[cpu]") {
  NoMoreThreads const none;
  CHECK_THROWS_WITH(annulus::run_ring(3,
                                      [](annulus::SimulatedRing& ring) {
                                        std::byte const mine{};
                                        std::array<std::byte, 3> all;
                                        ring.all_gather({&mine, 1}, all);
                                      }),
                    Catch::Matchers::ContainsSubstring(
                        "run_ring over 3 ranks needs 2 threads; the system refuses the thread of rank 1: "));
}

#endif
#endif
