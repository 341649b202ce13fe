// Failures of a ring of GPUs whose ranks are processes, on the CUDA runtime of threads: ranks that throw, return, are
// late or die; what the ring refuses; and a new ring after each.

#include "comm/peer/forked_ranks.hpp"

#if defined(ANNULUS_TEST_FORKS)

#include <signal.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using cuda_on_threads::Machine;

namespace {

/// A buffer to send and one to receive, on a queue of the current GPU.
struct Shifted {
  ManagedBytes from{4096}, to{4096};
  SpaceQueue<CudaMemory> space;
  CudaQueue const& queue = space.queue;

  auto start(PeerProcessRing& ring, Channel channel = Channel::prefetched) const {
    std::array const out{std::span<std::byte const>(from.bytes())};
    std::array const in{to.bytes()};
    return ring.start_shift(channel, 1, out, in, queue);
  }
  void shift(PeerProcessRing& ring) const { start(ring).wait(queue); }
};

/// Empty if a new ring of the same ranks works; `name` is of this ring alone.
std::string complaint_of_new_ring(std::string const& name, Rank rank, int size) {
  PeerProcessRing ring({name, rank, size, 20s});
  Shifted const shifted;
  shifted.from.data()[0] = static_cast<std::byte>(rank + 1);
  shifted.shift(ring);
  ring.finish(shifted.queue);
  bool const right = shifted.to.data()[0] == static_cast<std::byte>(ring_neighbour(rank, -1, size) + 1);
  return right ? "" : "the new ring does not work";
}

constexpr auto timeout = 1000ms;
constexpr int ranks = 4, steps = 4;

/// Runs shifts on four ranks, before each of which misbehave(rank, step, queue) is called. A rank whose ring fails then
/// makes a new one of the `survivors` ranks that live: a dead one is the last.
template <class Misbehave>
std::vector<ForkedEnd> ends_of(int survivors, Misbehave misbehave) {
  std::string const next = new_ring_name();
  return run_forked_ranks({ranks, 2, timeout}, [&](PeerProcessRing& ring) -> std::string {
    pid_t const own = getpid();
    std::array<pid_t, ranks> processes{};
    ring.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(processes)));
    Shifted const shifted;
    auto const run = [&] {
      for (int step = 0; step <= steps; ++step) {
        misbehave(ring.rank(), step, shifted.queue);
        if (step < steps) shifted.shift(ring);
      }
      ring.finish(shifted.queue);
    };
    try {
      or_abandon(ring, run);
    } catch (...) {
      if (survivors < ranks) Machine::instance().dead = processes.back();
      shifted.queue.wait();
      if (std::string const complaint = complaint_of_new_ring(next, ring.rank(), survivors); !complaint.empty())
        return complaint;
      throw;
    }
    return {};
  });
}

/// All ranks blame `culprit` and have left in time, and the text of the others has `words`.
void check_ends(std::vector<ForkedEnd> const& ends, Rank culprit, std::string const& words) {
  for (std::size_t r = 0; r < ends.size(); ++r) {
    RankOutcome const& outcome = ends[r].outcome;
    INFO("rank " << r << ": " << outcome.text);
    if (static_cast<Rank>(r) == culprit && outcome.kind != RankOutcome::communication_error) continue;
    CHECK(outcome.kind == RankOutcome::communication_error);
    CHECK(outcome.neighbour == culprit);
    if (static_cast<Rank>(r) != culprit) CHECK_THAT(outcome.text, ContainsSubstring(words));
    CHECK(ends[r].after < 3 * timeout + 2s);
  }
}

}  // namespace

TEST_CASE("a process that fails or is late ends the ring of GPUs, and all ranks name it", "[peer][processes]") {
  for (auto const& [culprit, failing_step] : {std::pair<Rank, int>{1, 0}, {3, 2}}) {
    CAPTURE(culprit, failing_step);
    auto const strikes = [culprit = culprit, failing_step = failing_step](Rank rank, int step) {
      return rank == culprit && step == failing_step;
    };
    auto const thrown = ends_of(ranks, [&](Rank rank, int step, CudaQueue const&) {
      if (strikes(rank, step)) throw OwnFailure();
    });
    check_ends(thrown, culprit, "a failure of this rank's own");
    CHECK(thrown[static_cast<std::size_t>(culprit)].outcome.kind == RankOutcome::own_failure);
    // Its thread is late.
    check_ends(ends_of(ranks,
                       [&](Rank rank, int step, CudaQueue const&) {
                         if (!strikes(rank, step)) return;
                         std::this_thread::sleep_for(timeout + 1s);
                         throw OwnFailure();
                       }),
               culprit, detail::message_of("rank ", culprit, " does not wait (last seen"));
    // Work of its GPU is late, and all threads are in finish().
    check_ends(ends_of(ranks,
                       [&](Rank rank, int step, CudaQueue const& queue) {
                         if (strikes(rank, step)) put(queue, [] { std::this_thread::sleep_for(3 * timeout); });
                       }),
               culprit, "work of its GPU");
  }
}

TEST_CASE("a process that dies ends the ring of GPUs before the deadline, and all ranks name it", "[peer][processes]") {
  constexpr Rank dead = ranks - 1;
  // Early enough that all ranks need more of it, or of its neighbours.
  for (int const failing_step : {0, 1})
    for (bool const copies : {false, true}) {
      CAPTURE(failing_step, copies);
      auto const ends = ends_of(ranks - 1, [&](Rank rank, int step, CudaQueue const& queue) {
        if (rank != dead || step != failing_step + (copies ? 1 : 0)) return;
        if (!copies) queue.wait();
        raise(SIGKILL);
      });
      CHECK(ends[dead].signal == SIGKILL);
      for (Rank rank = 0; rank < dead; ++rank) {
        ForkedEnd const& end = ends[static_cast<std::size_t>(rank)];
        INFO("rank " << rank << ": " << end.outcome.text);
        CHECK(end.outcome.neighbour == dead);
        CHECK_THAT(end.outcome.text, ContainsSubstring("waits for rank 3, whose process has died ("));
        CHECK(end.signal == 0);
      }
    }
}

TEST_CASE("a process that dies while its GPU works is named by those that wait for it", "[peer][processes]") {
  auto const ends = ends_of(ranks - 1, [&](Rank rank, int step, CudaQueue const& queue) {
    if (rank != ranks - 1) return;
    if (step == 0) put(queue, [] { std::this_thread::sleep_for(20s); });
    if (step == steps) raise(SIGKILL);
  });
  check_ends(ends, ranks - 1, "waits for rank 3, whose process has died (work of its GPU)");
}

TEST_CASE("work that is late after the last shift of a process is late for its own rank alone", "[peer][processes]") {
  auto const ends = ends_of(1, [&](Rank rank, int step, CudaQueue const& queue) {
    if (rank == 0 && step == steps) put(queue, [] { std::this_thread::sleep_for(2 * timeout); });
  });
  CHECK_THAT(ends[0].outcome.text, ContainsSubstring("rank 0 waited 1000 ms for rank 0 (work of its GPU)"));
  for (std::size_t r : {1u, 2u, 3u}) CHECK(ends[r].outcome.text == "");
}

TEST_CASE("processes that send and expect different lengths are both named", "[peer][processes]") {
  auto const ends = run_forked_ranks({3}, [](PeerProcessRing& ring) -> std::string {
    ManagedBytes const bytes(32);
    SpaceQueue<CudaMemory> const space;
    std::array const out{std::span<std::byte const>(bytes.bytes().first(ring.rank() == 1 ? 8 : 16))};
    std::array const in{bytes.bytes().last(16)};
    ring.start_shift(Channel::carried, 1, out, in, space.queue).wait(space.queue);
    ring.all_gather({}, {});
    return "a ring with unequal lengths goes on";
  });
  for (ForkedEnd const& end : ends)
    CHECK_THAT(end.outcome.text, ContainsSubstring("rank 2: expected 16 bytes in run 0, got 8 from rank 1"));
}

TEST_CASE("messages of different calls of processes do not pair", "[peer][processes]") {
  auto const ends = run_forked_ranks({2}, [](PeerProcessRing& ring) -> std::string {
    Shifted const shifted;
    for (int call = 0; call < 3 + ring.rank(); ++call) ring.flight_record().begin(Pass::backward, std::nullopt);
    shifted.shift(ring);
    return {};
  });
  for (ForkedEnd const& end : ends)
    CHECK_THAT(end.outcome.text,
               ContainsSubstring("expected rows of call ") && ContainsSubstring("backward, step 0, got rows of"));
}

TEST_CASE("an error of CUDA on one process closes the ring on all", "[peer][processes]") {
  for (int repeat = 0; repeat < 5; ++repeat) {
    auto const ends = run_forked_ranks({3}, [=](PeerProcessRing& ring) -> std::string {
      Shifted const shifted;
      for (;;) {
        shifted.shift(ring);
        ring.finish(shifted.queue);
        if (ring.rank() == repeat % 3) Machine::instance().failing_copies = 1;
      }
    });
    for (ForkedEnd const& end : ends) CHECK_THAT(end.outcome.text, ContainsSubstring("cudaMemcpyAsync on GPU "));
  }
}

namespace {

/// The text of the error of both ranks of a ring on which rank 0 calls misuse(ring, shifted).
template <class Misuse>
std::string refusal(Misuse misuse) {
  auto const ends = run_forked_ranks({2}, [&](PeerProcessRing& ring) -> std::string {
    Shifted const shifted;
    if (ring.rank() == 0) misuse(ring, shifted);
    ring.all_gather({}, {});
    return {};
  });
  CHECK(ends[0].outcome.kind == RankOutcome::other_exception);
  CHECK(ends[1].outcome.neighbour == 0);
  CHECK_THAT(ends[1].outcome.text, ContainsSubstring(ends[0].outcome.text));
  return ends[0].outcome.text;
}

}  // namespace

TEST_CASE("a ring of processes refuses what it cannot do, on all ranks", "[peer][processes]") {
  CHECK_THAT(refusal([](PeerProcessRing& ring, Shifted const& shifted) {
               std::vector<std::byte> host(8);
               std::array const out{std::span<std::byte const>(shifted.from.bytes())};
               std::array const in{std::span<std::byte>(host)};
               auto const transfer = ring.start_shift(Channel::carried, 1, out, in, shifted.queue);
             }),
             ContainsSubstring("no memory of a GPU"));
  CHECK_THAT(refusal([](PeerProcessRing& ring, Shifted const& shifted) {
               std::vector<std::span<std::byte>> const in(129);
               auto const transfer = ring.start_shift(Channel::carried, 1, {}, in, shifted.queue);
             }),
             ContainsSubstring("a shift of 129 runs; a ring of processes accepts 128"));
  CHECK_THAT(refusal([](PeerProcessRing& ring, Shifted const& shifted) {
               std::vector<PeerProcessRing::Transfer> pending;
               for (int i = 0; i < 9; ++i) pending.push_back(shifted.start(ring, Channel::carried));
             }),
             ContainsSubstring("8 shifts to a rank are pending on the carried channel"));
}

TEST_CASE("a ring of processes makes events once, and closes memory that it has not used for long",
          "[peer][processes]") {
  auto const ends = run_forked_ranks({2}, [](PeerProcessRing& ring) -> std::string {
    auto const& machine = Machine::instance();
    {
      Shifted const freed;
      freed.shift(ring);
      ring.finish(freed.queue);
    }
    Shifted const shifted;
    std::optional<int> events;
    for (int call = 0; call < 20; ++call) {
      if (int const opened = machine.opened; opened != (call == 0 || call >= 8 ? 1 : 2))
        return detail::message_of(opened, " allocations are open before call ", call);
      shifted.shift(ring);
      ring.finish(shifted.queue);
      if (call < 9) continue;
      if (!events) events = machine.events;
      if (*events != machine.events) return "an event was made";
    }
    return {};
  });
  for (ForkedEnd const& end : ends) CHECK(end.outcome.text == "");
}

TEST_CASE("a rank that abandons a ring of processes awaits the copies of its memory", "[peer][processes]") {
  for (Rank const delayed : {1, 2}) {  // which the copy from rank 0 waits for, or the one to it
    CAPTURE(delayed);
    auto const ends = run_forked_ranks({3}, [=](PeerProcessRing& ring) -> std::string {
      Shifted const shifted;
      if (ring.rank() == delayed) put(shifted.queue, [] { std::this_thread::sleep_for(2s); });
      auto transfer = shifted.start(ring);
      transfer.wait(shifted.queue);
      ring.all_gather({}, {});
      auto const start = std::chrono::steady_clock::now();
      if (ring.rank() == 0) ring.abandon("enough");
      bool const awaited = std::chrono::steady_clock::now() - start > 700ms;
      return awaited == (ring.rank() == 0) ? "" : "a copy was not awaited";
    });
    for (ForkedEnd const& end : ends) CHECK(end.outcome.text == "");
  }
}

TEST_CASE("processes close each other's memory between calls", "[peer][processes]") {
  auto const ends = run_forked_ranks({3}, [](PeerProcessRing& ring) -> std::string {
    auto const& machine = Machine::instance();
    for (int call = 0; call < 3; ++call) {
      Shifted const shifted;
      shifted.shift(ring);
      if (machine.opened != 1) return "no memory is open";
      if (call == 1) std::this_thread::sleep_for(ring.rank() * 20ms);
      ring.finish(shifted.queue);
      ring.close_memory();
      if (machine.opened != 0) return "memory is open";
    }
    return {};
  });
  for (ForkedEnd const& end : ends) CHECK(end.outcome.text == "");
}

TEST_CASE("the end of a ring waits until no other process uses memory of this one", "[peer][processes]") {
  auto const ends = run_forked_ranks({2}, [name = new_ring_name()](PeerProcessRing& ring) {
    std::optional<PeerProcessRing> other(std::in_place, PeerMeeting{name, ring.rank(), 2, 20s});
    Shifted const shifted;
    shifted.shift(*other);
    other->finish(shifted.queue);
    ring.all_gather({}, {});
    if (ring.rank() == 1) std::this_thread::sleep_for(2s);
    auto const start = std::chrono::steady_clock::now();
    other.reset();
    bool const waited = std::chrono::steady_clock::now() - start > 1s;
    return std::string(waited == (ring.rank() == 0) ? "" : "the end of a ring does not wait for the right rank");
  });
  for (ForkedEnd const& end : ends) CHECK(end.outcome.text == "");
}

#endif
