#pragma once
// Test suite for zero-copy exchange, which every communicator whose ranks share memory must pass, after
// communicator_suite.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "conformance/communicator_failure_cases.hpp"
#include "conformance/communicator_ranks.hpp"

namespace annulus_test {

/// A buffer of the communicator that holds consecutive runs, filled with the pattern of a message of this rank.
template <annulus::ZeroCopyCommunicator Ring>
class SharedRuns {
 public:
  SharedRuns(Ring& ring, std::vector<std::size_t> lengths)
      : ring_(&ring), lengths_(std::move(lengths)), buffer_(ring.allocate(total(lengths_))) {}

  void fill(int message) {
    std::size_t offset = 0;
    for (std::size_t p = 0; p < lengths_.size(); offset += lengths_[p++])
      fill_pattern({buffer_.data() + offset, lengths_[p]}, ring_->rank(), message, p);
  }

  auto share(annulus::Channel channel, int hop) {
    std::vector<std::span<std::byte const>> runs;
    std::size_t offset = 0;
    for (std::size_t p = 0; p < lengths_.size(); offset += lengths_[p++])
      runs.emplace_back(buffer_.data() + offset, lengths_[p]);
    return ring_->open_window(channel, hop, runs);
  }

  void reclaim() { ring_->reclaim(buffer_.data()); }

  /// Empty if the window has the runs that `owner` filled with `message`; else what is wrong.
  template <class SharedWindow>
  std::string complaint(SharedWindow const& window, annulus::Rank owner, int message) const {
    if (window.runs().size() != lengths_.size()) return annulus::detail::message_of(window.runs().size(), " runs");
    std::string all;
    for (std::size_t p = 0; p < lengths_.size(); ++p) {
      if (window.runs()[p].size() != lengths_[p])
        return annulus::detail::message_of(window.runs()[p].size(), " bytes in run ", p);
      all += complaint_about(window.runs()[p], owner, message, p);
    }
    return all;
  }

 private:
  static annulus::Index total(std::vector<std::size_t> const& lengths) {
    std::size_t sum = 0;
    for (auto const length : lengths) sum += length;
    return static_cast<annulus::Index>(sum);
  }

  Ring* ring_;
  std::vector<std::size_t> lengths_;
  decltype(std::declval<Ring&>().allocate(1)) buffer_;
};

namespace zero_copy_cases {

inline std::vector<std::vector<std::size_t>> shapes() {
  return {{},
          {0},
          {1},
          {4097},
          {large},
          {0, 5, 0},
          {large, 3, large},
          std::vector<std::size_t>(annulus::max_window_runs, 33)};
}

/// Every hop, channel and shape, in buffers that are written again once they are reclaimed.
template <class RunRing>
void windows(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    if (!ring.shares_memory()) return "the ranks do not share memory";
    std::string complaints;
    int message = 0;
    for (auto const& lengths : shapes()) {
      SharedRuns shared(ring, lengths);
      for (int hop = 1; hop < std::max(ranks, 2); ++hop)
        for (auto const channel : all_channels) {
          shared.reclaim();
          shared.fill(++message);
          auto window = shared.share(channel, hop);
          window.wait();
          window.wait();
          complaints += shared.complaint(window, annulus::ring_neighbour(ring.rank(), -hop, ranks), message);
          window.release();
        }
    }
    return complaints;
  }));
}

/// As many pending windows as the contract allows, each on its own buffer, on all channels, together with a shift.
template <class RunRing>
void many_open(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    using Ring = std::remove_reference_t<decltype(ring)>;
    std::string complaints;
    for (int round = 0; round < 3; ++round) {
      std::vector<SharedRuns<Ring>> shared;
      std::vector<annulus::WindowOf<Ring>> windows;
      ShiftBuffers<Ring> shifted(ring, 1, 77, large);
      auto transfer = shifted.start(ring, annulus::Channel::prefetched);
      for (std::size_t i = 0; i < annulus::max_open_windows; ++i)
        for (auto const channel : all_channels) {
          shared.emplace_back(ring, std::vector<std::size_t>{1000 + i});
          shared.back().fill(static_cast<int>(shared.size()));
          windows.push_back(shared.back().share(channel, 1));
        }
      // In any order: from the last to the first.
      for (std::size_t i = windows.size(); i-- > 0;) {
        windows[i].wait();
        complaints +=
            shared[i].complaint(windows[i], annulus::ring_neighbour(ring.rank(), -1, ranks), static_cast<int>(i + 1));
      }
      transfer.wait();
      complaints += shifted.complaint();
      windows.clear();
      for (auto& one : shared) one.reclaim();
    }
    return complaints;
  }));
}

/// Windows to a slow reader: the others are ahead of rank 1 by more than max_open_windows, as far as they do not wait.
template <class RunRing>
void far_ahead(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    using Ring = std::remove_reference_t<decltype(ring)>;
    constexpr std::size_t rounds = 4 * annulus::max_open_windows, lead = annulus::max_open_windows - 1;
    std::string complaints;
    std::vector<SharedRuns<Ring>> shared;
    std::vector<annulus::WindowOf<Ring>> windows;
    std::size_t const behind = ring.rank() == 1 ? 0 : lead;
    auto const read = [&](std::size_t i) {
      windows[i].wait();
      complaints +=
          shared[i].complaint(windows[i], annulus::ring_neighbour(ring.rank(), -1, ranks), static_cast<int>(i));
      windows[i].release();
    };
    for (std::size_t i = 0; i < rounds; ++i) {
      if (ring.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      shared.emplace_back(ring, std::vector<std::size_t>{i % 2 == 0 ? 0 : 100 + i});
      shared.back().fill(static_cast<int>(i));
      windows.push_back(shared.back().share(annulus::Channel::carried, 1));
      if (i >= behind) read(i - behind);
    }
    for (std::size_t i = rounds - behind; i < rounds; ++i) read(i);
    for (auto& one : shared) one.reclaim();
    return complaints;
  }));
}

/// reclaim() waits for a slow reader; the bytes do not change while it reads.
template <class RunRing>
void slow_readers(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    std::string complaints;
    SharedRuns shared(ring, {large});
    for (int round = 0; round < 12; ++round) {
      shared.reclaim();
      shared.fill(round);
      auto window = shared.share(annulus::Channel::carried, 1);
      window.wait();
      auto moved = std::move(window);
      for (int look = 0; look < 3; ++look) {
        std::this_thread::sleep_for(std::chrono::milliseconds((ring.rank() + round) % 3));
        complaints += shared.complaint(moved, annulus::ring_neighbour(ring.rank(), -1, ranks), round);
      }
      if (round % 2 == 0) moved.release();  // else by its destructor
    }
    return complaints;
  }));
}

/// The owner throws or returns and destroys its buffer: a reader that has waited for the window keeps it; one that has
/// not gets the window or an error, and does not hang.
template <class RunRing>
void owner_leaves(RunRing& run, int ranks) {
  if (ranks == 1) return;
  for (bool const throws : {true, false})
    for (bool const first_taken : {true, false})
      for (annulus::Rank const culprit : communicator_cases::culprits(ranks)) {
        CAPTURE(throws, first_taken, culprit);
        auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
          SharedRuns shared(ring, {large, 40});
          shared.fill(5);
          auto window = shared.share(annulus::Channel::prefetched, 1);
          annulus::Rank const owner = annulus::ring_neighbour(ring.rank(), -1, ranks);
          if (ring.rank() == culprit) {
            window.wait();
            if (first_taken) {
              std::byte mine{}, all[16];
              ring.all_gather({&mine, 1}, std::span(all).first(static_cast<std::size_t>(ranks)));
            }
            if (throws) throw OwnFailure();
            return shared.complaint(window, owner, 5);
          }
          std::string complaints;
          if (!first_taken) std::this_thread::sleep_for(std::chrono::milliseconds(30));
          window.wait();
          if (first_taken) {
            std::byte mine{}, all[16];
            ring.all_gather({&mine, 1}, std::span(all).first(static_cast<std::size_t>(ranks)));
          }
          for (int look = 0; look < 4; ++look) {
            complaints += shared.complaint(window, owner, 5);
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
          return complaints;
        });
        for (auto const& [rank, one] : outcome.ranks) {
          INFO("rank " << rank << ": " << one.text);
          if (rank == culprit && throws) {
            CHECK(one.kind == RankOutcome::own_failure);
            continue;
          }
          CHECK((one.kind == RankOutcome::returned || (throws && one.kind == RankOutcome::communication_error)));
          if (one.kind == RankOutcome::returned) CHECK(one.text == "");
        }
      }
}

/// An owner never shares, or a reader never releases: the waits of the others throw errors that name it.
template <class RunRing>
void peer_fails(RunRing& run, int ranks) {
  if (ranks == 1) return;
  for (bool const before_sharing : {true, false})
    for (annulus::Rank const culprit : communicator_cases::culprits(ranks)) {
      CAPTURE(before_sharing, culprit);
      auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
        SharedRuns shared(ring, {large});
        for (int round = 0; round < 2 * ranks; ++round) {
          if (ring.rank() == culprit && round == 1 && before_sharing) throw OwnFailure();
          shared.reclaim();
          shared.fill(round);
          auto window = shared.share(annulus::Channel::carried, 1);
          if (ring.rank() == culprit && round == 1) throw OwnFailure();  // pending: neither waited for nor released
          window.wait();
          auto const complaint = shared.complaint(window, annulus::ring_neighbour(ring.rank(), -1, ranks), round);
          if (!complaint.empty()) return complaint;
        }
        return {};
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

/// A reader returns without waiting for its window; the owner does not hang.
template <class RunRing>
void returns_without_taking(RunRing& run, int ranks) {
  if (ranks == 1) return;
  auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
    SharedRuns shared(ring, {100});
    shared.fill(1);
    if (ring.rank() == 1) return {};
    auto window = shared.share(annulus::Channel::prefetched, 1);
    if (ring.rank() != 2 % ranks) window.wait();
    shared.reclaim();
    if (ring.rank() == 2 % ranks) window.wait();
    return {};
  });
  for (auto const& [rank, one] : outcome.ranks)
    if (rank == 0) CHECK(one.kind == RankOutcome::communication_error);
}

/// Too many runs, and runs outside the ring's buffers, are refused.
template <class RunRing>
void refusals(RunRing& run, int ranks) {
  auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
    std::vector<std::byte> own(100);
    std::vector<std::span<std::byte const>> const too_many(annulus::max_window_runs + 1);
    try {
      ring.open_window(annulus::Channel::prefetched, 1, too_many);
      return "too many runs were accepted";
    } catch (annulus::CommunicationError const& error) {
      if (auto complaint = complaint_without("9 runs", error.what()); !complaint.empty()) return complaint;
    }
    std::array const foreign = {std::span<std::byte const>(own)};
    try {
      ring.open_window(annulus::Channel::prefetched, 1, foreign);
      return "memory that is not the ring's was accepted";
    } catch (annulus::CommunicationError const& error) {
      if (auto complaint = complaint_without("run 0 of a window", error.what()); !complaint.empty()) return complaint;
    }
    return {};
  });
  for (auto const& [rank, one] : outcome.ranks) CHECK(one.text == "");
}

}  // namespace zero_copy_cases

/// `run` as for communicator_suite, on rings whose ranks share memory.
template <class RunRing>
void zero_copy_suite(RunRing run, std::vector<int> const& rank_counts = {1, 2, 3, 4, 7}) {
  using namespace zero_copy_cases;
  for (int const ranks : rank_counts) {
    DYNAMIC_SECTION(ranks << " ranks: windows") { windows(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: many pending windows") { many_open(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: far ahead of a reader") { far_ahead(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: slow readers") { slow_readers(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: an owner leaves") { owner_leaves(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: a peer fails") { peer_fails(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: a reader returns early") { returns_without_taking(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: refusals") { refusals(run, ranks); }
  }
}

}  // namespace annulus_test
