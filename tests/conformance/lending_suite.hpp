#pragma once
// What every communicator must do that lends memory, beyond communicator_suite.

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "annulus/comm/lending.hpp"
#include "conformance/communicator_failure_cases.hpp"
#include "conformance/communicator_ranks.hpp"

namespace annulus_test {

/// A buffer of the communicator with one run after the other, filled with the pattern of a message of this rank.
template <annulus::LendingCommunicator Ring>
class LentRuns {
 public:
  LentRuns(Ring& ring, std::vector<std::size_t> lengths)
      : ring_(&ring), lengths_(std::move(lengths)), buffer_(ring.allocate(total(lengths_))) {}

  void fill(int message) {
    std::size_t offset = 0;
    for (std::size_t p = 0; p < lengths_.size(); offset += lengths_[p++])
      fill_pattern({buffer_.data() + offset, lengths_[p]}, ring_->rank(), message, p);
  }

  auto lend(annulus::Channel channel, int hop) {
    std::vector<std::span<std::byte const>> runs;
    std::size_t offset = 0;
    for (std::size_t p = 0; p < lengths_.size(); offset += lengths_[p++])
      runs.emplace_back(buffer_.data() + offset, lengths_[p]);
    return ring_->start_loan(channel, hop, runs);
  }

  void reclaim() { ring_->reclaim(buffer_.data()); }

  /// Empty if the loan has the runs that `lender` has filled with `message`.
  template <class Loan>
  std::string complaint(Loan const& loan, annulus::Rank lender, int message) const {
    if (loan.runs().size() != lengths_.size()) return annulus::message_of(loan.runs().size(), " runs");
    std::string all;
    for (std::size_t p = 0; p < lengths_.size(); ++p) {
      if (loan.runs()[p].size() != lengths_[p]) return annulus::message_of(loan.runs()[p].size(), " bytes in run ", p);
      all += complaint_about(loan.runs()[p], lender, message, p);
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

namespace lending_cases {

inline std::vector<std::vector<std::size_t>> shapes() {
  return {{},
          {0},
          {1},
          {4097},
          {large},
          {0, 5, 0},
          {large, 3, large},
          std::vector<std::size_t>(annulus::max_lent_runs, 33)};
}

/// Every distance, channel and shape, out of buffers that are written again once they are given back.
template <class RunRing>
void loans(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    if (!ring.lends()) return "the ring does not lend";
    std::string complaints;
    int message = 0;
    for (auto const& lengths : shapes()) {
      LentRuns lent(ring, lengths);
      for (int hop = 1; hop < std::max(ranks, 2); ++hop)
        for (auto const channel : all_channels) {
          lent.reclaim();
          lent.fill(++message);
          auto loan = lent.lend(channel, hop);
          loan.wait();
          loan.wait();
          complaints += lent.complaint(loan, annulus::ring_neighbour(ring.rank(), -hop, ranks), message);
          loan.give_back();
        }
    }
    return complaints;
  }));
}

/// As many as the contract allows, from buffers of their own, on all channels, beside a shift.
template <class RunRing>
void many_under_way(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    using Ring = std::remove_reference_t<decltype(ring)>;
    std::string complaints;
    for (int round = 0; round < 3; ++round) {
      std::vector<LentRuns<Ring>> lent;
      std::vector<annulus::LoanOf<Ring>> loans;
      ShiftBuffers<Ring> shifted(ring, 1, 77, large);
      auto transfer = shifted.start(ring, annulus::Channel::prefetched);
      for (std::size_t i = 0; i < annulus::max_loans_under_way; ++i)
        for (auto const channel : all_channels) {
          lent.emplace_back(ring, std::vector<std::size_t>{1000 + i});
          lent.back().fill(static_cast<int>(lent.size()));
          loans.push_back(lent.back().lend(channel, 1));
        }
      // In any order: from the last to the first.
      for (std::size_t i = loans.size(); i-- > 0;) {
        loans[i].wait();
        complaints +=
            lent[i].complaint(loans[i], annulus::ring_neighbour(ring.rank(), -1, ranks), static_cast<int>(i + 1));
      }
      transfer.wait();
      complaints += shifted.complaint();
      loans.clear();
      for (auto& one : lent) one.reclaim();
    }
    return complaints;
  }));
}

/// reclaim() waits for a slow reader, whose bytes do not change while it reads.
template <class RunRing>
void slow_readers(RunRing& run, int ranks) {
  check_all_returned(play(run, ranks, [&](auto& ring) -> std::string {
    std::string complaints;
    LentRuns lent(ring, {large});
    for (int round = 0; round < 12; ++round) {
      lent.reclaim();
      lent.fill(round);
      auto loan = lent.lend(annulus::Channel::carried, 1);
      loan.wait();
      auto moved = std::move(loan);
      for (int look = 0; look < 3; ++look) {
        std::this_thread::sleep_for(std::chrono::milliseconds((ring.rank() + round) % 3));
        complaints += lent.complaint(moved, annulus::ring_neighbour(ring.rank(), -1, ranks), round);
      }
      if (round % 2 == 0) moved.give_back();  // else by its destructor
    }
    return complaints;
  }));
}

/// The lender is gone, by an exception or because its part is done, buffer and all: a reader that has the loan keeps
/// it; one that has not gets it or an error, and does not wait for ever.
template <class RunRing>
void lender_leaves(RunRing& run, int ranks) {
  if (ranks == 1) return;
  for (bool const throws : {true, false})
    for (bool const first_taken : {true, false})
      for (annulus::Rank const culprit : communicator_cases::culprits(ranks)) {
        CAPTURE(throws, first_taken, culprit);
        auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
          LentRuns lent(ring, {large, 40});
          lent.fill(5);
          auto loan = lent.lend(annulus::Channel::prefetched, 1);
          annulus::Rank const lender = annulus::ring_neighbour(ring.rank(), -1, ranks);
          if (ring.rank() == culprit) {
            loan.wait();
            if (first_taken) {
              std::byte mine{}, all[16];
              ring.all_gather({&mine, 1}, std::span(all).first(static_cast<std::size_t>(ranks)));
            }
            if (throws) throw OwnFailure();
            return lent.complaint(loan, lender, 5);
          }
          std::string complaints;
          if (!first_taken) std::this_thread::sleep_for(std::chrono::milliseconds(30));
          loan.wait();
          if (first_taken) {
            std::byte mine{}, all[16];
            ring.all_gather({&mine, 1}, std::span(all).first(static_cast<std::size_t>(ranks)));
          }
          for (int look = 0; look < 4; ++look) {
            complaints += lent.complaint(loan, lender, 5);
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

/// The lender never lends, or a borrower never gives back: the waits of the others end with its name.
template <class RunRing>
void peer_fails(RunRing& run, int ranks) {
  if (ranks == 1) return;
  for (bool const before_lending : {true, false})
    for (annulus::Rank const culprit : communicator_cases::culprits(ranks)) {
      CAPTURE(before_lending, culprit);
      auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
        LentRuns lent(ring, {large});
        for (int round = 0; round < 2 * ranks; ++round) {
          if (ring.rank() == culprit && round == 1 && before_lending) throw OwnFailure();
          lent.reclaim();
          lent.fill(round);
          auto loan = lent.lend(annulus::Channel::carried, 1);
          if (ring.rank() == culprit && round == 1) throw OwnFailure();  // under way: neither read nor given back
          loan.wait();
          auto const complaint = lent.complaint(loan, annulus::ring_neighbour(ring.rank(), -1, ranks), round);
          if (!complaint.empty()) return complaint;
        }
        return {};
      });
      check_others_lost_the_ring(outcome, culprit);
      for (auto const& [rank, one] : outcome.ranks) {
        INFO("rank " << rank << ": " << one.text);
        CHECK((rank == culprit ? one.kind == RankOutcome::own_failure : one.neighbour == culprit));
      }
    }
}

/// A borrower returns with a loan in its hands and never says so; the lender does not wait for ever.
template <class RunRing>
void returns_without_taking(RunRing& run, int ranks) {
  if (ranks == 1) return;
  auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
    LentRuns lent(ring, {100});
    lent.fill(1);
    if (ring.rank() == 1) return {};
    auto loan = lent.lend(annulus::Channel::prefetched, 1);
    if (ring.rank() != 2 % ranks) loan.wait();
    lent.reclaim();
    if (ring.rank() == 2 % ranks) loan.wait();
    return {};
  });
  for (auto const& [rank, one] : outcome.ranks)
    if (rank == 0) CHECK(one.kind == RankOutcome::communication_error);
}

/// What cannot be lent is refused.
template <class RunRing>
void refusals(RunRing& run, int ranks) {
  auto const outcome = play(run, ranks, [&](auto& ring) -> std::string {
    std::vector<std::byte> own(100);
    std::vector<std::span<std::byte const>> const too_many(annulus::max_lent_runs + 1);
    try {
      ring.start_loan(annulus::Channel::prefetched, 1, too_many);
      return "too many runs were accepted";
    } catch (annulus::CommunicationError const& error) {
      if (std::string(error.what()).find("9 runs") == std::string::npos) return error.what();
    }
    std::array const foreign = {std::span<std::byte const>(own)};
    try {
      ring.start_loan(annulus::Channel::prefetched, 1, foreign);
      return "memory that is not the ring's was accepted";
    } catch (annulus::CommunicationError const& error) {
      if (std::string(error.what()).find("run 0 of a loan") == std::string::npos) return error.what();
    }
    return {};
  });
  for (auto const& [rank, one] : outcome.ranks) CHECK(one.text == "");
}

}  // namespace lending_cases

/// run as in communicator_suite, on rings that lend.
template <class RunRing>
void lending_suite(RunRing run, std::vector<int> const& rank_counts = {1, 2, 3, 4, 7}) {
  using namespace lending_cases;
  for (int const ranks : rank_counts) {
    DYNAMIC_SECTION(ranks << " ranks: loans") { loans(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: many loans under way") { many_under_way(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: slow readers") { slow_readers(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: a lender leaves") { lender_leaves(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: a peer fails") { peer_fails(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: a borrower returns early") { returns_without_taking(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: refusals") { refusals(run, ranks); }
  }
}

}  // namespace annulus_test
