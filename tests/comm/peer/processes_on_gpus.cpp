// PeerProcessRing in the memory of GPUs, by forked processes: large runs, and processes that fail, are late or die.
// Prints times of shifts. Needs CUDA's own runtime.

#include "comm/peer/forked_ranks.hpp"

#if defined(ANNULUS_TEST_FORKS)

#include <signal.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/peer/forwarded_buffers.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Buffers of a rank that end with its process, as the others have them open as long as they have the ring.
ForwardedBuffers const& buffers_of_process(std::size_t size, std::size_t rounds) {
  static std::vector<std::unique_ptr<ForwardedBuffers>> kept;
  return *kept.emplace_back(std::make_unique<ForwardedBuffers>(size, rounds));
}

/// Empty if what the ranks forward arrives in order.
std::string complaint_of_rounds(PeerProcessRing& ring, std::size_t size, std::size_t rounds) {
  ForwardedBuffers const& buffers = buffers_of_process(size, rounds);
  buffers.fill(buffers.here(1), ring.rank() + 1);
  for (std::size_t round = 1; round <= rounds; ++round) buffers.shift(ring, round);
  ring.finish(buffers.queue);
  int const wrong = buffers.wrong(ring, rounds);
  return wrong == 0 ? std::string() : detail::message_of(wrong, " rounds are wrong");
}

constexpr auto timeout = 2s;
constexpr int ranks = 4;

/// The same for a ring that ends before an exception of another one goes on, which would end it.
std::string complaint_of_new_ring(PeerMeeting const& meeting) {
  PeerProcessRing ring(meeting);
  return complaint_of_rounds(ring, 1 << 16, 10);
}

/// Runs shifts on four ranks, before each of which misbehave(rank, round, queue) is called. A rank whose ring fails
/// then makes a new one of `survivors` ranks.
template <class Misbehave>
std::vector<ForkedEnd> ends_of(int survivors, Misbehave misbehave) {
  std::string const next = new_ring_name();
  return run_forked_ranks({ranks, 2, timeout}, [&](PeerProcessRing& ring) -> std::string {
    constexpr std::size_t rounds = 6;
    ForwardedBuffers const& buffers = buffers_of_process(std::size_t{16} << 20, rounds);
    auto const run = [&] {
      for (std::size_t round = 1; round <= rounds; ++round) {
        misbehave(ring.rank(), round, buffers.queue);
        buffers.shift(ring, round);
      }
      ring.finish(buffers.queue);
    };
    try {
      or_abandon(ring, run);
    } catch (...) {
      if (std::string const complaint = complaint_of_new_ring({next, ring.rank(), survivors, 20s}); !complaint.empty())
        return complaint;
      throw;
    }
    return "a ring that should fail has not";
  });
}

void check_blame(std::vector<ForkedEnd> const& ends, std::string const& words) {
  for (std::size_t r = 0; r < ends.size(); ++r) {
    INFO("rank " << r << ": " << ends[r].outcome.text << ", after " << ends[r].after.count() << " ms");
    if (r == ranks - 1 && (ends[r].signal == SIGKILL || ends[r].outcome.kind == RankOutcome::own_failure)) continue;
    CHECK(ends[r].signal == 0);
    CHECK(ends[r].outcome.neighbour == ranks - 1);
    CHECK_THAT(ends[r].outcome.text, ContainsSubstring(words));
  }
}

}  // namespace

TEST_CASE("runs in GPU memory of other processes arrive in order", "[peer][processes][gpu]") {
  for (int const size : {1, 2, 3, 4})
    for (int const ranks_a_gpu : {1, 2})
      for (std::size_t const bytes : {std::size_t{2}, std::size_t{1} << 16, std::size_t{16} << 20}) {
        CAPTURE(size, ranks_a_gpu, bytes);
        auto const ends = run_forked_ranks({size, ranks_a_gpu},
                                           [=](PeerProcessRing& ring) { return complaint_of_rounds(ring, bytes, 40); });
        for (ForkedEnd const& end : ends) {
          CHECK(end.outcome.text == "");
          CHECK(end.signal == 0);
        }
      }
}

TEST_CASE("processes on GPUs that throw or are late are named, and a new ring works", "[peer][processes][gpu]") {
  check_blame(ends_of(ranks,
                      [](Rank rank, std::size_t round, CudaQueue const&) {
                        if (rank == ranks - 1 && round == 3) throw OwnFailure();
                      }),
              "a failure of this rank's own");
  check_blame(ends_of(ranks,
                      [](Rank rank, std::size_t round, CudaQueue const& queue) {
                        if (rank == ranks - 1 && round == 2)
                          put(queue, [] { std::this_thread::sleep_for(2 * timeout); });
                      }),
              "work of its GPU");
}

TEST_CASE("a process on a GPU that dies between shifts is named, and a new ring works", "[peer][processes][gpu]") {
  check_blame(ends_of(ranks - 1,
                      [](Rank rank, std::size_t round, CudaQueue const& queue) {
                        if (rank != ranks - 1 || round != 3) return;
                        queue.wait();
                        raise(SIGKILL);
                      }),
              "whose process has died");
}

TEST_CASE("a process that dies while its GPU copies is named, and a new ring works", "[peer][processes][gpu]") {
  check_blame(ends_of(ranks - 1,
                      [](Rank rank, std::size_t round, CudaQueue const&) {
                        if (rank == ranks - 1 && round == 4) raise(SIGKILL);
                      }),
              "whose process has died");
}

TEST_CASE("times of shifts of processes", "[peer][processes][gpu]") {
  for (int const size : {1, 2, 4})
    for (int const ranks_a_gpu : {1, 2})
      for (std::size_t const bytes : {std::size_t{1} << 10, std::size_t{64} << 20}) {
        constexpr std::size_t rounds = 50;
        auto const ends = run_forked_ranks({size, ranks_a_gpu}, [=](PeerProcessRing& ring) -> std::string {
          auto const [host, all] = seconds_of_shifts(ring, buffers_of_process(bytes, rounds), rounds);
          if (ring.rank() == 0)
            std::printf(
                "%d processes, %d a GPU, %zu bytes: %.1f us of the host and %.1f us a shift, %.1f GB/s each way\n",
                ring.size(), ranks_a_gpu, bytes, 1e6 * host / rounds, 1e6 * all / rounds,
                1e-9 * static_cast<double>(bytes * rounds) / all);
          return {};
        });
        for (ForkedEnd const& end : ends) CHECK(end.outcome.text == "");
      }
}

#endif
