#pragma once
// Rings of GPUs whose ranks are processes that a test forks, and how they end. The parent must not use CUDA, which does
// not survive a fork.

#include "support/forks.hpp"

#if defined(ANNULUS_TEST_FORKS)

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "annulus/comm/peer_process_ring.hpp"
#include "conformance/communicator_ranks.hpp"
#include "support/cuda_space.hpp"

namespace annulus_test {

using annulus::PeerProcessRing;

struct ForkedRing {
  int ranks;
  int ranks_a_gpu = 1;
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
};

/// A name that no other ring of the node has. Called by the process that forks.
inline std::string new_ring_name() {
  static int made = 0;
  return annulus::detail::message_of("test-ring-", getpid(), "-", ++made);
}

/// How a process ended: the outcome of its rank, unless a signal ended it.
struct ForkedEnd {
  RankOutcome outcome{};
  std::chrono::milliseconds after{};  ///< since the ring was made
  int signal = 0;
};

/// Outcome of a rank, in memory that its process shares with its parent.
struct SharedOutcome {
  RankOutcome::Kind kind;
  annulus::detail::FixedText<2000> text;
  annulus::Rank rank, neighbour;
  std::chrono::milliseconds after;

  void set(RankOutcome const& outcome) {
    kind = outcome.kind;
    text = annulus::detail::FixedText<2000>(outcome.text);
    rank = outcome.rank;
    neighbour = outcome.neighbour;
  }
};

/// What a rank whose ring is destroyed has left; empty if that is nothing.
inline std::string left_by_rank() {
#if !defined(CUDART_VERSION)
  auto const& machine = cuda_on_threads::Machine::instance();
  if (machine.opened != 0 || machine.events != 0 || machine.streams != 0 || machine.allocations != 0)
    return annulus::detail::message_of("left: ", machine.opened.load(), " opened allocations, ", machine.events.load(),
                                       " events, ", machine.streams.load(), " streams, ", machine.allocations.load(),
                                       " allocations");
#endif
  return {};
}

/// Runs a rank in a process of its own, which has forked for it.
template <class Function>
RankOutcome outcome_of_rank(annulus::PeerMeeting const& meeting, int gpu, SharedOutcome& shared, Function& function) {
  RankOutcome outcome;
  try {
    annulus::cuda::detail::CurrentDevice const current(gpu);
    PeerProcessRing ring(meeting);
    auto const start = std::chrono::steady_clock::now();
    try {
      outcome.text = annulus::or_abandon(ring, [&]() -> std::string { return function(ring); });
    } catch (...) {
      outcome = outcome_of_current_exception();
    }
    shared.after = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  } catch (...) {
    outcome = outcome_of_current_exception();
  }
  outcome.text += left_by_rank();
  return outcome;
}

constexpr int no_gpu = 77;  ///< status of a process that has found none

template <class Function>
[[noreturn]] void run_child(ForkedRing const& forked, annulus::PeerMeeting const& meeting, SharedOutcome& shared,
                            Function& function) {
  alarm(60);  // ends a rank that hangs
  if (number_of_gpus() == 0) _exit(no_gpu);
  int const gpu = gpus_of(forked.ranks, forked.ranks_a_gpu)[static_cast<std::size_t>(meeting.rank)];
  shared.set(outcome_of_rank(meeting, gpu, shared, function));
  std::fflush(stdout);
  _exit(0);
}

/// Calls function(ring) in a process for each rank, and returns how they have ended; nothing where there is no GPU. The
/// function returns a complaint, or an empty string; a rank on which it throws abandons the ring.
template <class Function>
std::vector<ForkedEnd> run_forked_ranks(ForkedRing const& forked, Function function) {
#if !defined(CUDART_VERSION)
  cuda_on_threads::SharedWithForks const memory;
#endif
  std::string const name = new_ring_name();
  auto const ranks = static_cast<std::size_t>(forked.ranks);
  std::size_t const bytes = ranks * sizeof(SharedOutcome);
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) std::abort();
  auto* const shared = static_cast<SharedOutcome*>(data);
  std::vector<pid_t> children;
  std::fflush(stdout);  // or a child prints it again
  for (annulus::Rank rank = 0; rank < forked.ranks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) run_child(forked, {name, rank, forked.ranks, forked.timeout}, shared[rank], function);
  }
  std::vector<ForkedEnd> ends(ranks);
  bool has_gpu = true;
  for (std::size_t r = 0; r < ranks; ++r) {
    int status = 0;
    waitpid(children[r], &status, 0);
    SharedOutcome const& one = shared[r];
    ends[r] = {{one.kind, std::string(one.text.view()), one.rank, one.neighbour},
               one.after,
               WIFSIGNALED(status) ? WTERMSIG(status) : 0};
    has_gpu = has_gpu && !(WIFEXITED(status) && WEXITSTATUS(status) == no_gpu);
  }
  munmap(data, bytes);
  CHECK(access(annulus::detail::message_of("/dev/shm/annulus-", name, "-", forked.ranks).c_str(), F_OK) != 0);
  if (has_gpu) return ends;
  std::puts("skipped: there is no GPU");
  return {};
}

}  // namespace annulus_test

#endif
