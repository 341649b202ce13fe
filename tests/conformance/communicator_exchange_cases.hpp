#pragma once
// Communicator cases without failures.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "conformance/communicator_ranks.hpp"

namespace annulus_test::communicator_cases {

/// Ranks are 0 .. size - 1, and a rank's number is its place.
template <class RunRing>
void geometry(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    if (ring.size() != ranks) return annulus::detail::message_of("size() must be ", ranks, "; it is ", ring.size());
    std::vector<std::byte> mine{static_cast<std::byte>(ring.rank())}, all(static_cast<std::size_t>(ranks));
    ring.all_gather(mine, all);
    for (int rank = 0; rank < ranks; ++rank)
      if (all[static_cast<std::size_t>(rank)] != static_cast<std::byte>(rank))
        return "rank() must be the place in the records of all_gather, which are in rank order";
    return {};
  }));
}

/// Where the communicator knows them: the same list on all ranks, of the first rank near each.
template <class RunRing>
void near_ranks(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    if constexpr (annulus::TopologyAwareCommunicator<std::remove_reference_t<decltype(ring)>>) {
      std::span<annulus::Rank const> const mine = ring.near_ranks();
      if (mine.size() != static_cast<std::size_t>(ranks))
        return annulus::detail::message_of("near_ranks() must have ", ranks, " entries; it has ", mine.size());
      for (std::size_t r = 0; r < mine.size(); ++r) {
        bool const exists = 0 <= mine[r] && mine[r] <= static_cast<annulus::Rank>(r);
        if (!exists || mine[static_cast<std::size_t>(mine[r])] != mine[r])
          return annulus::detail::message_of("the first rank near rank ", r, " is said to be ", mine[r]);
      }
      std::vector<annulus::Rank> all(mine.size() * mine.size());
      ring.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
      for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i] != mine[i % mine.size()]) return "ranks have different lists of near ranks";
    }
    return {};
  }));
}

/// Every hop, channel and length class: 0, 1, odd, large.
template <class RunRing>
void hops(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) {
    using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
    std::string complaints;
    int message = 0;
    for (int hop = 1; hop < std::max(ranks, 2); ++hop)
      for (auto const channel : all_channels)
        for (std::size_t const bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, large}) {
          Buffers buffers(ring, hop, message++, bytes);
          buffers.start(ring, channel).wait();
          complaints += buffers.complaint();
        }
    return complaints;
  }));
}

/// Runs whose lengths differ by sender, with empty ones first, between and last; and no runs at all.
template <class RunRing>
void uneven_runs(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) {
    using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
    std::string complaints;
    for (std::size_t runs : {0u, 1u, 2u, 7u, 80u})
      for (int hop = 1; hop < std::max(ranks, 2); ++hop) {
        auto const length = [](annulus::Rank sender, std::size_t p) -> std::size_t {
          if (p % 3 == 0) return 0;
          return p == 4 ? large + static_cast<std::size_t>(sender) : static_cast<std::size_t>(sender) * 13 % 40 + p;
        };
        Buffers buffers(ring, hop, hop, runs, length);
        buffers.start(ring, annulus::Channel::prefetched).wait();
        complaints += buffers.complaint();
      }
    return complaints;
  }));
}

/// A pending shift on each channel, started and waited for in every order: the same on all ranks, and a different one
/// on each.
template <class RunRing>
void channels_in_any_order(RunRing& run, int ranks) {
  for (bool const same_on_all : {true, false})
    check_all_returned(play(run, ranks, [&](auto& ring) {
      using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
      std::string complaints;
      for (int round = 0; round < 6; ++round)
        for (std::size_t const bytes : {std::size_t{100}, large}) {
          std::array<std::size_t, 3> order = {0, 1, 2};
          for (int k = 0; k < (same_on_all ? round : round + ring.rank()) % 6; ++k)
            std::next_permutation(order.begin(), order.end());
          std::vector<Buffers> buffers;
          for (int c = 0; c < 3; ++c) buffers.emplace_back(ring, 1, 10 * round + c, bytes);
          std::array<std::optional<decltype(buffers[0].start(ring, all_channels[0]))>, 3> transfers;
          for (std::size_t const c : order) transfers[c].emplace(buffers[c].start(ring, all_channels[c]));
          std::next_permutation(order.begin(), order.end());
          for (std::size_t const c : order) {
            transfers[c]->wait();
            complaints += buffers[c].complaint();
          }
        }
      return complaints;
    }));
}

/// Several pending shifts of one channel, with equal and different hops, waited for from the last to the first.
template <class RunRing>
void several_pending(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) {
    using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
    std::string complaints;
    for (std::size_t const bytes : {std::size_t{64}, large}) {
      std::vector<Buffers> buffers;
      for (int i = 0; i < 5; ++i) buffers.emplace_back(ring, 1 + (i / 2) % std::max(ranks - 1, 1), i, bytes);
      std::vector<decltype(buffers[0].start(ring, all_channels[0]))> transfers;
      for (auto& one : buffers) transfers.push_back(one.start(ring, annulus::Channel::carried));
      for (std::size_t i = buffers.size(); i-- > 0;) {
        transfers[i].wait();
        complaints += buffers[i].complaint();
      }
    }
    return complaints;
  }));
}

/// Each rank forwards what it received, with two alternating buffers: after `size` rounds data are back at their owner.
template <class RunRing>
void many_rounds(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    SpaceBytes<typename std::remove_reference_t<decltype(ring)>::memory_space> here(5000), there(5000);
    fill_pattern(here.bytes(), ring.rank(), 1, 0);
    for (int round = 1; round <= 20 * ranks; ++round) {
      std::array const out = {std::span<std::byte const>(here.bytes())};
      std::array const in = {there.bytes()};
      start_shift(ring, annulus::Channel::prefetched, 1, out, in).wait();
      std::swap(here, there);
      fill_pattern(there.bytes(), ring.rank(), -round, 0);  // after wait() the sender may overwrite the sent bytes
      auto const owner = annulus::ring_neighbour(ring.rank(), -round, ranks);
      if (auto complaint = complaint_about(here.bytes(), owner, 1, 0); !complaint.empty()) return complaint;
    }
    return {};
  }));
}

/// A transfer may be moved, held in an optional, and assigned to again after its wait.
template <class RunRing>
void moved_transfers(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) {
    using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
    std::string complaints;
    Buffers first(ring, 1, 1, large);
    auto transfer = first.start(ring, annulus::Channel::prefetched);
    auto moved = std::move(transfer);
    moved.wait();
    complaints += first.complaint();

    Buffers second(ring, 1, 2, large), third(ring, 1, 3, large);
    moved = second.start(ring, annulus::Channel::prefetched);
    moved.wait();
    complaints += second.complaint();
    std::optional kept(third.start(ring, annulus::Channel::prefetched));
    kept->wait();
    kept.reset();
    return complaints + third.complaint();
  }));
}

/// All-gathers of records of several lengths, between shifts and while one is pending.
template <class RunRing>
void all_gathers(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) {
    using Buffers = ShiftBuffers<std::remove_reference_t<decltype(ring)>>;
    std::string complaints;
    int round = 0;
    for (std::size_t const bytes : {0u, 1u, 8u, 1000u, 9000u}) {
      Buffers buffers(ring, 1, 100 + round, large);
      auto transfer = buffers.start(ring, annulus::Channel::prefetched);
      for (int repeat = 0; repeat < 3; ++repeat, ++round) {
        std::vector<std::byte> mine(bytes), all(bytes * static_cast<std::size_t>(ranks));
        fill_pattern(mine, ring.rank(), round, 0);
        ring.all_gather(mine, all);
        for (int rank = 0; rank < ranks; ++rank)
          complaints +=
              complaint_about(std::span(all).subspan(static_cast<std::size_t>(rank) * bytes, bytes), rank, round, 0);
      }
      transfer.wait();
      complaints += buffers.complaint();
    }
    return complaints;
  }));
}

}  // namespace annulus_test::communicator_cases
