// PeerRing: the suite of all communicators, results and exceptions of run_peer_ring, and failures of work on a GPU.

#include "annulus/comm/peer_ring.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/communicator_suite.hpp"
#include "support/catch.hpp"
#include "support/cuda_space.hpp"

using namespace annulus;
using namespace annulus_test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A buffer to send and one to receive, on a queue of the current GPU.
struct Shifted {
  ManagedBytes from{4096}, to{4096};
  SpaceQueue<CudaMemory> space;
  CudaQueue const& queue = space.queue;

  auto start(PeerRing& ring, Channel channel = Channel::prefetched, int hop = 1) {
    std::array const out{std::span<std::byte const>(from.bytes())};
    std::array const in{to.bytes()};
    return ring.start_shift(channel, hop, out, in, queue);
  }
  void shift(PeerRing& ring) { start(ring).wait(queue); }
};

void shift_until_failure(PeerRing& ring) {
  for (Shifted shifted;;) {
    shifted.shift(ring);
    ring.finish(shifted.queue);
  }
}

}  // namespace

TEST_CASE("PeerRing is a communicator, with a GPU for each rank", "[peer]") {
  if (number_of_gpus() == 0) return;
  communicator_suite([](int ranks, auto function) { run_peer_ring(gpus_of(ranks, 1), function); }, {1, 2, 3, 4});
}

TEST_CASE("PeerRing is a communicator, with two ranks on each GPU", "[peer]") {
  if (number_of_gpus() == 0) return;
  communicator_suite([](int ranks, auto function) { run_peer_ring(gpus_of(ranks, 2), function); }, {2, 3, 4, 7});
}

TEST_CASE("run_peer_ring returns results in rank order, with the GPU of each rank current", "[peer]") {
  if (number_of_gpus() == 0) return;
  std::vector<int> const gpus = gpus_of(4, 2);
  auto const results = run_peer_ring(gpus, [](PeerRing& ring) {
    int current = -1;
    cudaGetDevice(&current);
    return std::pair(ring.rank(), ring.gpu() == current ? current : -1);
  });
  for (std::size_t r = 0; r < gpus.size(); ++r) CHECK(results[r] == std::pair(static_cast<Rank>(r), gpus[r]));
  static_assert(std::is_void_v<decltype(run_peer_ring({0}, [](PeerRing&) {}))>);
}

TEST_CASE("a ring of GPUs refuses what does not exist", "[peer]") {
  int const count = number_of_gpus();
  if (count == 0) return;
  auto const nothing = [](PeerRing&) {};
  CHECK_THROWS_WITH(run_peer_ring({}, nothing), ContainsSubstring("0 ranks; at least one is needed"));
  CHECK_THROWS_WITH(run_peer_ring({0, count}, nothing),
                    ContainsSubstring(detail::message_of("rank 1 works on GPU ", count, "; this process has ", count)));
  CHECK_THROWS_AS(run_peer_ring({-1}, nothing), UnsupportedError);
  CHECK_THROWS_WITH(run_peer_ring({0}, nothing, {.timeout = 0ms}), ContainsSubstring("at least 1 ms is accepted"));
}

TEST_CASE("run_peer_ring rethrows the exception that ended the ring", "[peer]") {
  if (number_of_gpus() == 0) return;
  for (Rank const culprit : {0, 2}) {
    auto const run = [&] {
      run_peer_ring(gpus_of(3, 1), [&](PeerRing& ring) {
        if (ring.rank() == culprit) throw OwnFailure();
        shift_until_failure(ring);
      });
    };
    CHECK_THROWS_AS(run(), OwnFailure);
  }
  CHECK_THROWS_WITH(run_peer_ring(gpus_of(2, 1),
                                  [](PeerRing& ring) {
                                    if (ring.rank() == 0) shift_until_failure(ring);
                                  }),
                    ContainsSubstring("rank 0 waits for rank 1, which has returned"));
}

TEST_CASE("a shift begins after the work before it and ends before the work after its wait", "[peer]") {
  if (number_of_gpus() == 0) return;
  for (int const ranks : {1, 2, 3, 4}) {
    auto const wrong = run_peer_ring(gpus_of(ranks, 2), [](PeerRing& ring) {
      Shifted shifted;
      std::span const from = shifted.from.bytes(), to = shifted.to.bytes();
      int wrong_bytes = 0;
      for (int round = 0; round < 30; ++round) {
        auto const sent_by = [=](Rank rank) { return static_cast<std::byte>(7 * round + rank); };
        std::byte const mine = sent_by(ring.rank());
        std::byte const theirs = sent_by(ring_neighbour(ring.rank(), -1, ring.size()));
        put(shifted.queue, [=] { std::fill(from.begin(), from.end(), mine); });
        auto transfer = shifted.start(ring);
        transfer.wait(shifted.queue);
        put(shifted.queue, [=, &wrong_bytes] {
          wrong_bytes += static_cast<int>(to.size() - std::count(to.begin(), to.end(), theirs));
          std::fill(to.begin(), to.end(), std::byte{0xEE});
        });
      }
      ring.finish(shifted.queue);
      return wrong_bytes;
    });
    for (int const bytes : wrong) CHECK(bytes == 0);
  }
}

namespace {

/// How a rank ended, and when.
struct End {
  Rank blamed = -2;
  std::string text;
  std::chrono::steady_clock::duration after{};
};

constexpr auto timeout = 500ms;

/// Runs six shifts on four ranks, before each of which misbehave(rank, step, queue) is called.
template <class Misbehave>
std::vector<End> ends_of(Misbehave misbehave) {
  auto const start = std::chrono::steady_clock::now();
  std::vector<End> ends(4);
  auto const function = [&](PeerRing& ring) {
    End& end = ends[static_cast<std::size_t>(ring.rank())];
    Shifted shifted;
    try {
      for (int step = 0; step < 6; ++step) {
        misbehave(ring.rank(), step, shifted.queue);
        shifted.shift(ring);
      }
      misbehave(ring.rank(), 6, shifted.queue);
      ring.finish(shifted.queue);
    } catch (CommunicationError const& error) {
      end.blamed = error.neighbour();
      end.text = error.what();
      ring.abandon(error.what(), error.neighbour());
    } catch (OwnFailure const& error) {
      end.blamed = ring.rank();
      ring.abandon(error.what());
    }
    end.after = std::chrono::steady_clock::now() - start;
    shifted.queue.wait();
  };
  run_peer_ring(gpus_of(4, 2), function, {.timeout = timeout});
  return ends;
}

/// All ranks blame `culprit` and have left in time, and the text of the others has `words`.
void check_ends(std::vector<End> const& ends, Rank culprit, std::string const& words) {
  for (std::size_t r = 0; r < ends.size(); ++r) {
    INFO("rank " << r << ": " << ends[r].text);
    CHECK(ends[r].blamed == culprit);
    if (static_cast<Rank>(r) != culprit) CHECK_THAT(ends[r].text, ContainsSubstring(words));
    CHECK(ends[r].after < 2 * timeout + 1s);
  }
}

}  // namespace

TEST_CASE("a rank that fails, stops or is late ends the ring of GPUs, and all ranks name it", "[peer]") {
  if (number_of_gpus() == 0) return;
  for (Rank const culprit : {0, 1, 3})
    for (int const failing_step : {0, 3}) {
      CAPTURE(culprit, failing_step);
      auto const strikes = [=](Rank rank, int step) { return rank == culprit && step == failing_step; };
      check_ends(ends_of([&](Rank rank, int step, CudaQueue const&) {
                   if (strikes(rank, step)) throw OwnFailure();
                 }),
                 culprit, "a failure of this rank's own");
      // Its thread is late.
      check_ends(ends_of([&](Rank rank, int step, CudaQueue const&) {
                   if (!strikes(rank, step)) return;
                   std::this_thread::sleep_for(timeout + 300ms);
                   throw OwnFailure();
                 }),
                 culprit, detail::message_of("rank ", culprit, " does not wait (last seen"));
      // Work of its GPU is late, and all threads are in finish().
      check_ends(ends_of([&](Rank rank, int step, CudaQueue const& queue) {
                   if (strikes(rank, step)) put(queue, [] { std::this_thread::sleep_for(3 * timeout); });
                 }),
                 culprit, "work of its GPU");
    }
}

TEST_CASE("work that is late after the last shift is late for its own rank alone", "[peer]") {
  if (number_of_gpus() == 0) return;
  auto const ends = ends_of([&](Rank rank, int step, CudaQueue const& queue) {
    if (rank == 1 && step == 6) put(queue, [] { std::this_thread::sleep_for(2 * timeout); });
  });
  CHECK_THAT(ends[1].text, ContainsSubstring("rank 1 waited 500 ms for rank 1 (work of its GPU)"));
  for (std::size_t r : {0u, 2u, 3u}) CHECK(ends[r].text == "");
}

TEST_CASE("ranks that send and expect different lengths are both named", "[peer]") {
  if (number_of_gpus() == 0) return;
  CHECK_THROWS_WITH(
      run_peer_ring(gpus_of(3, 1),
                    [](PeerRing& ring) {
                      ManagedBytes bytes(32);
                      SpaceQueue<CudaMemory> const space;
                      std::array const out{std::span<std::byte const>(bytes.bytes().first(ring.rank() == 1 ? 8 : 16))};
                      std::array const in{bytes.bytes().last(16)};
                      auto transfer = ring.start_shift(Channel::carried, 1, out, in, space.queue);
                      transfer.wait(space.queue);
                      ring.finish(space.queue);
                    }),
      ContainsSubstring("rank 2: expected 16 bytes in run 0, got 8 from rank 1"));
}

TEST_CASE("messages of different calls of a ring of GPUs do not pair", "[peer]") {
  if (number_of_gpus() == 0) return;
  CHECK_THROWS_WITH(run_peer_ring(gpus_of(2, 1),
                                  [](PeerRing& ring) {
                                    Shifted shifted;
                                    for (int call = 0; call < 3 + ring.rank(); ++call)
                                      ring.flight_record().begin(Pass::backward, std::nullopt);
                                    shifted.shift(ring);
                                  }),
                    ContainsSubstring("expected rows of call ") && ContainsSubstring("backward, step 0, got rows of"));
}

TEST_CASE("a closed ring of GPUs leaves the bytes of a rank alone, and a new ring works", "[peer]") {
  if (number_of_gpus() == 0) return;
  auto const function = [](PeerRing& ring) {
    Shifted first, second;
    std::span const to = first.to.bytes();
    try {
      auto pending = first.start(ring);
      // The copy to rank 1 begins late.
      put(first.queue, [rank = ring.rank()] {
        if (rank == 0) std::this_thread::sleep_for(50ms);
      });
      auto later = second.start(ring, Channel::carried);
      if (ring.rank() == 2) throw OwnFailure();
      later.wait(second.queue);
      for (;;) second.shift(ring);
    } catch (std::exception const& error) {
      ring.abandon(error.what());
    }
    std::fill(to.begin(), to.end(), std::byte{0x5A});
    std::this_thread::sleep_for(20ms);
    return std::count(to.begin(), to.end(), std::byte{0x5A}) == 4096;
  };
  for (int repeat = 0; repeat < 5; ++repeat)
    CHECK(run_peer_ring(gpus_of(3, 1), function, {.timeout = 5s}) == std::vector<bool>{true, true, true});
}

TEST_CASE("a group may be used by threads of the caller", "[peer]") {
  if (number_of_gpus() == 0) return;
  std::vector<int> const gpus = gpus_of(2, 1);
  std::optional<PeerGroup> group(std::in_place, gpus);
  CHECK(group->size() == 2);
  std::array<std::byte, 2> arrived{};
  {
    std::vector<std::jthread> threads;
    for (Rank rank : {0, 1})
      threads.emplace_back(
          [&arrived, rank, gpu = gpus[static_cast<std::size_t>(rank)], ring = PeerRing(*group, rank)]() mutable {
            cuda::detail::CurrentDevice const current(gpu);
            Shifted shifted;
            shifted.from.data()[0] = static_cast<std::byte>(rank + 1);
            shifted.shift(ring);
            ring.finish(shifted.queue);
            arrived[static_cast<std::size_t>(rank)] = shifted.to.data()[0];
          });
    group.reset();  // its state lives as long as a rank
  }
  CHECK(arrived == std::array{std::byte{2}, std::byte{1}});
}
