#pragma once
// Calls of one rank in which one allocation fails, and the check of their results.

#include <cstddef>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "faults/training_run.hpp"
#include "support/allocation_counts.hpp"

namespace annulus_test {

/// The call in which an allocation of rank `culprit` fails. Calls 0 to 5 are forward and backward of three training
/// steps.
struct FailingCall {
  annulus::Rank culprit = 0;
  int call = 0;
  bool checked = true;

  std::string text() const {
    return annulus::detail::message_of("rank ", culprit, ", call ", call, ", checks ", checked ? "on" : "off");
  }
};

/// The first call of each pass: later calls allocate only their results.
inline std::vector<FailingCall> failing_calls(int ranks) {
  std::vector<FailingCall> all;
  for (annulus::Rank culprit = 0; culprit < ranks; ++culprit)
    for (int call = 0; call < 2; ++call)
      for (bool checked : {true, false}) all.push_back({culprit, call, checked});
  return all;
}

/// Outcome of the calls of one rank.
struct CallsOutcome {
  std::vector<std::optional<std::vector<float>>> results;  ///< of the calls that returned
  int threw = 0;
  bool failed = false;  ///< the call had the allocation that was to fail
};

/// Makes six calls, also after some have thrown. allocation: index of the allocation of failing.call that fails; -1:
/// none.
template <class Ring>
CallsOutcome calls_with_failure(Ring& plain_ring, FailingCall const& failing, long allocation) {
  using namespace training_run_detail;
  annulus::Rank const rank = plain_ring.rank();
  FaultScript script({}, rank, std::chrono::milliseconds(0), [] {});
  FaultInjectingCommunicator ring(plain_ring, script);
  FaultInjectingBackend backend(script, std::chrono::milliseconds(0));
  annulus::RingAttention attention(ring, backend, annulus::Options{.checked = failing.checked});

  CallsOutcome outcome;
  Tensor q(1, 2, 2, 4), k(1, 2, 1, 4), v = k, dout = q;
  Eigen::Tensor<float, 3, Eigen::RowMajor> statistics(1, 2, 2);
  statistics.setZero();
  annulus::Forward<Tensor> forward{q, statistics, statistics};
  for (int call = 0; call < 6; ++call) {
    int const step = call / 2;
    fill(q, 0, rank, step), fill(k, 1, rank, step), fill(v, 2, rank, step), fill(dout, 3, rank, step);
    annulus::Operands<float> operands;
    operands.call = step;
    // The operands of the backward pass must not depend on whether the forward pass failed.
    fill(forward.output, 5, rank, step), fill(forward.lse, 6, rank, step);
    for (annulus::Index i = 0; i < forward.lse.size(); ++i) forward.lse.data()[i] += 2;
    bool const strikes = allocation >= 0 && rank == failing.culprit && call == failing.call;
    if (strikes) allocations_until_failure = allocation;
    try {
      if (call % 2 == 0) {
        auto const result = attention.forward(q, k, v, operands);
        allocations_until_failure = strikes && allocations_until_failure >= 0 ? -2 : -1;
        outcome.results.emplace_back(bits_of(result.output, result.lse));
      } else {
        auto const result = attention.backward(dout, forward, q, k, v, operands);
        allocations_until_failure = strikes && allocations_until_failure >= 0 ? -2 : -1;
        outcome.results.emplace_back(bits_of(result.dq, result.dk, result.dv));
      }
    } catch (std::exception const&) {
      ++outcome.threw;
      outcome.results.emplace_back();
    }
    // -2: the call made fewer allocations.
    if (strikes) outcome.failed = allocations_until_failure != -2;
    allocations_until_failure = -1;
  }
  return outcome;
}

inline int total_threw(std::vector<CallsOutcome> const& ranks) {
  int sum = 0;
  for (CallsOutcome const& rank : ranks) sum += rank.threw;
  return sum;
}

/// Empty if every call that returned has the results of the run without failure.
inline std::string complaints_about(std::vector<CallsOutcome> const& ranks, std::vector<CallsOutcome> const& expected) {
  std::ostringstream all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (std::size_t call = 0; call < ranks[rank].results.size(); ++call) {
      auto const& result = ranks[rank].results[call];
      if (result && !training_run_detail::same_bits(*result, *expected[rank].results[call]))
        all << "wrong results of call " << call << " on rank " << rank << "; ";
    }
  return all.str();
}

}  // namespace annulus_test
