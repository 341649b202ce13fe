#pragma once
// Test suite that every communicator must pass: it demands what comm/communicator.hpp says. One line adds an
// implementation:
//   communicator_suite([](int ranks, auto function) { annulus::run_ring(ranks, function); });
// and another one its deadline, if it has one (communicator_deadline_suite).

#include <chrono>
#include <vector>

#include "conformance/communicator_exchange_cases.hpp"
#include "conformance/communicator_failure_cases.hpp"
#include "support/catch.hpp"

namespace annulus_test {

/// run(ranks, function) calls function(ring) on every rank of a new ring, returns when all have ended, and rethrows one
/// of their exceptions, if any. A rank on which the function throws abandons the ring (annulus::or_abandon). If ranks
/// are processes, it returns a bool: whether this process is a rank of the ring; or, if it has forked them, the
/// CaseOutcome of all, in which a rank on which the function returns has the text that it returns.
template <class RunRing>
void communicator_suite(RunRing run, std::vector<int> const& rank_counts = {1, 2, 3, 4, 5, 7}) {
  using namespace communicator_cases;
  for (int const ranks : rank_counts) {
    DYNAMIC_SECTION(ranks << " ranks: geometry") { geometry(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: near ranks") { near_ranks(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: hops") { hops(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: uneven runs") { uneven_runs(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: channels in any order") { channels_in_any_order(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: several pending shifts") { several_pending(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: many rounds") { many_rounds(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: moved transfers") { moved_transfers(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: all-gathers") { all_gathers(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: unequal lengths") { unequal_lengths(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: unequal records") { unequal_records(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: a rank throws") { throwing_rank(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: a rank abandons the ring") { abandoning_rank(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: a rank leaves early") { leaving_rank(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: unwound transfers") { unwound_transfers(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: bytes after a failure") { bytes_after_a_failure(run, ranks); }
    DYNAMIC_SECTION(ranks << " ranks: all fail together") { failing_together(run, ranks); }
  }
}

/// Of a communicator whose waits have a deadline: run(ranks, function) as above, on rings with this deadline.
template <class RunRing>
void communicator_deadline_suite(RunRing run, std::chrono::milliseconds deadline,
                                 std::vector<int> const& rank_counts = {3}) {
  using namespace communicator_cases;
  for (int const ranks : rank_counts) {
    DYNAMIC_SECTION(ranks << " ranks: a rank is late") { late_ranks(run, ranks, deadline); }
  }
}

}  // namespace annulus_test
