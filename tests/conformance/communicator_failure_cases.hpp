#pragma once
// Communicator cases in which a rank fails: the others must throw, and no rank may touch the caller's bytes afterwards.

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/communicator_ranks.hpp"

namespace annulus_test::communicator_cases {

/// The ranks that take turns as the one that fails.
inline std::vector<annulus::Rank> culprits(int ranks) {
  if (ranks == 1) return {0};
  return ranks == 2 ? std::vector{0, 1} : std::vector{0, ranks / 2, ranks - 1};
}

/// An outgoing run is shorter, longer or in another place than expected, or runs are too few or too many. Only the
/// receiver can detect it.
template <class RunRing>
void unequal_lengths(RunRing& run, int ranks) {
  if (ranks == 1) return;
  using Lengths = std::vector<std::size_t>;
  std::vector<std::pair<Lengths, Lengths>> const sent_and_expected = {
      {{8}, {16}},
      {{16}, {8}},
      {{large}, {8}},
      {{8}, {large}},
      {{large + 1}, {large}},
      {{8, 0}, {0, 8}},
      {{4, 4}, {8}},
      {{8}, {8, 0}},
      {{}, {8}},
      {{8, 8, 8}, {8, 8}},
      {{0}, {1}},
      {{large, large}, {large}},
      {Lengths(90, 1), Lengths(2, 45)},
  };
  for (auto const& lengths : sent_and_expected) {
    Lengths const &sent = lengths.first, &expected = lengths.second;
    CAPTURE(sent, expected);
    auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
      using Bytes = SpaceBytes<typename std::remove_reference_t<decltype(ring)>::memory_space>;
      auto const allocate = [](Lengths const& bytes_of_runs) {
        std::vector<Bytes> buffers;
        for (auto const bytes : bytes_of_runs) buffers.emplace_back(bytes);
        return buffers;
      };
      auto leaving = allocate(ring.rank() == 0 ? sent : expected), arriving = allocate(expected);
      std::vector<std::span<std::byte const>> out;
      std::vector<std::span<std::byte>> in;
      for (auto& bytes : leaving) out.push_back(bytes.bytes());
      for (auto& bytes : arriving) in.push_back(bytes.bytes());
      start_shift(ring, annulus::Channel::carried, 1, out, in).wait();
      return {};
    });
    for (auto const& [rank, one] : outcome.ranks) {
      INFO("rank " << rank << ": " << one.text);
      if (rank != 1) {
        CHECK((one.kind == RankOutcome::returned || one.kind == RankOutcome::communication_error));
        continue;
      }
      CHECK(complaint_unless_lost(1, one) == "");
      CHECK(complaint_unless_blamed(0, one) == "");
      CHECK(complaint_without("expected", one.text) == "");
    }
  }
}

/// Records of different lengths: no rank may get wrong data, and none may hang.
template <class RunRing>
void unequal_records(RunRing& run, int ranks) {
  if (ranks == 1) return;
  for (std::size_t const odd : {0u, 4u, 8000u}) {
    auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
      std::size_t const bytes = ring.rank() == 0 ? odd : 8;
      std::vector<std::byte> mine(bytes), all(bytes * static_cast<std::size_t>(ranks));
      ring.all_gather(mine, all);
      return {};
    });
    check_others_lost_the_ring(outcome, annulus::CommunicationError::unknown);
  }
}

/// A rank throws before the first round, between rounds, or after the last, when the others are in all_gather.
template <class RunRing>
void throwing_rank(RunRing& run, int ranks) {
  if (ranks == 1) return;
  int const rounds = 6;
  for (auto const culprit : culprits(ranks))
    for (int const failing_round : {0, 3, rounds}) {
      CAPTURE(culprit, failing_round);
      auto const outcome = play(run, ranks, [&](auto& ring) {
        using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
        std::string complaints;
        for (int round = 0; round <= rounds; ++round) {
          if (ring.rank() == culprit && round == failing_round) throw OwnFailure();
          if (round == rounds) break;
          Buffers buffers(ring, 1, round, round % 2 == 0 ? large : 100);
          buffers.start(ring, annulus::Channel::prefetched).wait();
          complaints += buffers.complaint();
        }
        std::vector<std::byte> mine(8), all(8 * static_cast<std::size_t>(ranks));
        ring.all_gather(mine, all);
        return complaints;
      });
      check_others_lost_the_ring(outcome, culprit);
      for (auto const& [rank, one] : outcome.ranks) {
        INFO("rank " << rank << ": " << one.text);
        if (rank == culprit)
          CHECK(one.kind == RankOutcome::own_failure);
        else
          CHECK(complaint_unless_blamed(culprit, one) == "");
      }
    }
}

/// A rank does not come to an exchange: all others throw within the deadline and a second, and so does the late one
/// when it comes after that. exchange(ring): in the end it needs the late rank.
template <class RunRing, class Exchange>
void late_rank(RunRing& run, int ranks, annulus::Rank culprit, std::chrono::milliseconds deadline, Exchange exchange) {
  using Clock = std::chrono::steady_clock;
  auto const longest = deadline + std::chrono::seconds(1);
  CAPTURE(culprit);
  auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
    bool const late = ring.rank() == culprit;
    if (late) std::this_thread::sleep_for(longest);
    auto const start = Clock::now();
    try {
      exchange(ring);
    } catch (annulus::CommunicationError const&) {
      auto const waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      if (late || waited < longest) throw;
      return annulus::detail::message_of("a wait with a deadline of ", deadline.count(), " ms took ", waited.count());
    }
    return "an exchange succeeded without the late rank";
  });
  for (auto const& [rank, one] : outcome.ranks) {
    INFO("rank " << rank << ": " << one.text);
    CHECK(complaint_unless_lost(rank, one) == "");
    if (rank != culprit) CHECK(complaint_unless_blamed(culprit, one) == "");
  }
}

/// The exchanges are shifts, of which a distant rank misses a late one, and an all-gather.
template <class RunRing>
void late_ranks(RunRing& run, int ranks, std::chrono::milliseconds deadline) {
  if (ranks == 1) return;
  late_rank(run, ranks, 0, deadline, [](auto& ring) {
    for (int round = 0; round < ring.size(); ++round) {
      ShiftBuffers<std::remove_reference_t<decltype(ring)>> buffers(ring, 1, round, large);
      buffers.start(ring, annulus::Channel::prefetched).wait();
    }
  });
  late_rank(run, ranks, ranks - 1, deadline, [](auto& ring) {
    std::vector<std::byte> mine(8), all(8 * static_cast<std::size_t>(ring.size()));
    // The late rank may find the records of the others in the first round.
    for (int round = 0; round < 2; ++round) ring.all_gather(mine, all);
  });
}

/// abandon(reason) reaches all peers with its reason, and closes the ring permanently, also for the rank itself.
template <class RunRing>
void abandoning_rank(RunRing& run, int ranks) {
  if (ranks == 1) return;
  std::string const reason = "the test abandons the ring";
  for (auto const culprit : culprits(ranks)) {
    CAPTURE(culprit);
    check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
      using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
      Buffers buffers(ring, 1, 0, large);
      auto const gather = [&] {
        std::vector<std::byte> mine(8), all(8 * static_cast<std::size_t>(ranks));
        ring.all_gather(mine, all);
      };
      buffers.start(ring, annulus::Channel::prefetched).wait();
      gather();  // so that the shift is done on all ranks
      if (ring.rank() == culprit) ring.abandon(reason);

      auto const shift = [&] { buffers.start(ring, annulus::Channel::carried).wait(); };
      int failures = 0;
      // Ranks that are far from the culprit may still get a few shifts through.
      for (int attempt = 0; attempt < 2 * ranks && failures < 3; ++attempt) try {
          failures == 1 ? gather() : shift();
          if (failures != 0) return "an exchange succeeded on a closed ring";
        } catch (annulus::CommunicationError const& error) {
          ++failures;
          if (error.neighbour() != culprit || std::string(error.what()).find(reason) == std::string::npos)
            return annulus::detail::message_of("failure ", failures, " must blame rank ", culprit, " with the reason '",
                                               reason, "'; it blames rank ", error.neighbour(), ": ", error.what());
        }
      if (failures < 3) return "exchanges succeed on an abandoned ring";
      // So that the rank does not leave before all have received the reason.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return {};
    }));
  }
}

/// A rank returns earlier than the others expect.
template <class RunRing>
void leaving_rank(RunRing& run, int ranks) {
  if (ranks == 1) return;
  for (std::size_t const bytes : {std::size_t{16}, large}) {
    annulus::Rank const culprit = bytes == large ? 0 : ranks - 1;
    auto const outcome = play(run, ranks, [&](auto& ring) {
      using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
      std::string complaints;
      for (int round = 0; round < (ring.rank() == culprit ? 2 : 4 + ranks); ++round) {
        Buffers buffers(ring, 1, round, bytes);
        buffers.start(ring, annulus::Channel::prefetched).wait();
        complaints += buffers.complaint();
      }
      return complaints;
    });
    check_others_lost_the_ring(outcome, culprit);
    if (auto const found = outcome.ranks.find(culprit); found != outcome.ranks.end()) {
      CHECK(found->second.kind == RankOutcome::returned);
      CHECK(found->second.text == "");
    }
  }
}

/// An exception unwinds pending shifts and destroys their bytes. Peers are in the same shift, or shortly or long before
/// it.
template <class RunRing>
void unwound_transfers(RunRing& run, int ranks) {
  for (auto const culprit : culprits(ranks))
    for (std::size_t const bytes : {std::size_t{40}, large}) {
      CAPTURE(culprit, bytes);
      auto const outcome = play(run, ranks, [&](auto& ring) {
        using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
        std::string complaints;
        for (int round = 0; round < 3; ++round) {
          std::this_thread::sleep_for(std::chrono::milliseconds(ring.rank() % 3 * 5));
          Buffers ahead(ring, 1, 2 * round, bytes), behind(ring, 1, 2 * round + 1, bytes);
          auto first = ahead.start(ring, annulus::Channel::prefetched);
          auto second = behind.start(ring, annulus::Channel::carried);
          if (ring.rank() == culprit && round == 1) throw OwnFailure();
          first.wait();
          complaints += ahead.complaint();
          second.wait();
          complaints += behind.complaint();
        }
        std::vector<std::byte> mine(8), all(8 * static_cast<std::size_t>(ranks));
        ring.all_gather(mine, all);
        return complaints;
      });
      check_others_lost_the_ring(outcome, culprit);
      for (auto const& [rank, one] : outcome.ranks)
        if (rank == culprit) CHECK(one.kind == RankOutcome::own_failure);
    }
}

/// Once a transfer is destroyed or its wait has thrown, no peer reads or writes its bytes.
template <class RunRing>
void bytes_after_a_failure(RunRing& run, int ranks) {
  if (ranks == 1) return;
  for (auto const culprit : culprits(ranks)) {
    CAPTURE(culprit);
    check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
      using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
      Buffers ahead(ring, 1, 1, large), behind(ring, 1, 2, large);
      std::this_thread::sleep_for(std::chrono::milliseconds(ring.rank() % 3 * 5));
      bool arrived = false;
      try {
        auto first = ahead.start(ring, annulus::Channel::prefetched);
        auto second = behind.start(ring, annulus::Channel::carried);
        if (ring.rank() == culprit) throw OwnFailure();
        first.wait();
        arrived = true;
        second.wait();
      } catch (OwnFailure const&) {
      } catch (annulus::CommunicationError const&) {
      }
      if (arrived && !ahead.complaint().empty()) return ahead.complaint();
      std::byte const mine{0x5A};
      for (auto* buffers : {&ahead, &behind}) {
        buffers->overwrite_incoming(mine);
        buffers->overwrite_outgoing(mine);
      }
      for (int attempt = 0; attempt < 3; ++attempt) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        try {
          std::vector<std::byte> record(8), all(8 * static_cast<std::size_t>(ranks));
          ring.all_gather(record, all);
          return "all_gather succeeded on a closed ring";
        } catch (annulus::CommunicationError const&) {
        }
        if (!ahead.incoming_is(mine) || !behind.incoming_is(mine)) return "bytes were written after the transfer's end";
      }
      return {};
    }));
  }
}

/// All ranks throw because of the records that they gathered: each throws its own exception, and none loses the ring
/// before it has the records.
template <class RunRing>
void failing_together(RunRing& run, int ranks) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
      std::vector<std::byte> mine{static_cast<std::byte>(ring.rank())}, all(static_cast<std::size_t>(ranks));
      ring.all_gather(mine, all);
      throw OwnFailure();
    });
    for (auto const& [rank, one] : outcome.ranks) {
      INFO("rank " << rank << ": " << one.text);
      CHECK(one.kind == RankOutcome::own_failure);
    }
    CHECK(outcome.escaped == (outcome.ran_here ? RankOutcome::own_failure : RankOutcome::returned));
  }
}

}  // namespace annulus_test::communicator_cases
