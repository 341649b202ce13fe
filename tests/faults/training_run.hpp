#pragma once
// Training steps of a tiny problem on a ring into which a fault is injected, and the report of each rank.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/comm/simulated_ring.hpp>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "faults/fault_injection.hpp"

namespace annulus_test {

/// One run of the fault matrix.
struct Scenario {
  int ranks = 2;
  annulus::ZeroCopy zero_copy = annulus::ZeroCopy::never;
  annulus::Rotation rotation = annulus::Rotation::keys;
  bool checked = true;
  Fault fault{};
  std::chrono::milliseconds deadline{std::chrono::seconds(20)};
  /// The minimum duration of a step. In scenarios that end by the deadline it is long enough that ranks begin to wait
  /// one after another, as they do with more work: the first one reports the right culprit.
  std::chrono::milliseconds work{0};

  /// Enough steps that calls follow the fault, which is in the first training step unless its place is `call`.
  int training_steps() const { return fault.place == Place::call ? 3 : 2; }

  std::string text() const {
    return annulus::detail::message_of(
        name_of(fault.kind), " at ", name_of(fault.place), " ", fault.number, " of rank ", fault.culprit, " of ", ranks,
        ", zero_copy ", annulus::name_of(zero_copy), ", ", rotation == annulus::Rotation::keys ? "keys" : "queries",
        " rotate, checks ", checked ? "on" : "off");
  }
};

/// The bits of the results of each call that returned: output and lse, or the gradients.
using Results = std::vector<std::vector<float>>;

/// Outcome of a run on one rank. Trivially copyable, so that processes can send it to each other.
struct RankReport {
  enum End { returned, communication_error, own_failure, other_exception };
  End end = returned;
  bool right = true;  ///< no call returned other results than without faults
  annulus::Rank neighbour = annulus::CommunicationError::unknown;
  double seconds = 0;           ///< since the run began on this rank
  std::array<int, 6> counts{};  ///< number of times that the rank reached each Place in its first training step
  std::array<char, 600> text{};
};

/// The parameters of a rank's run, in addition to the ring.
struct RunContext {
  std::function<void()> die = [] {};  ///< see FaultScript
  Results const* expected = nullptr;  ///< of this rank, without faults
  Results* obtained = nullptr;        ///< receives the results, if not null
};

namespace training_run_detail {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Matrix = Eigen::Tensor<float, 2, Eigen::RowMajor>;

/// Values that differ by element, rank, training step and tensor.
template <class X>
void fill(X& tensor, int tensor_number, annulus::Rank rank, int step) {
  std::uint32_t state = 12345u + 7919u * static_cast<std::uint32_t>(tensor_number) +
                        104729u * static_cast<std::uint32_t>(rank) + 1299709u * static_cast<std::uint32_t>(step);
  for (annulus::Index i = 0; i < tensor.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    tensor.data()[i] = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f;
  }
}

template <class... X>
std::vector<float> bits_of(X const&... tensors) {
  std::vector<float> all;
  (all.insert(all.end(), tensors.data(), tensors.data() + tensors.size()), ...);
  return all;
}

inline bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace training_run_detail

/// Makes the calls of one rank, which has two rows, until one throws. The calls of a training step have the same
/// number; the operands differ in every step.
template <class Ring>
RankReport run_training(Ring& plain_ring, Scenario const& scenario, RunContext const& context) {
  using namespace training_run_detail;
  auto const begin = std::chrono::steady_clock::now();
  Fault const& fault = scenario.fault;
  annulus::Rank const rank = plain_ring.rank();
  FaultScript script(fault, rank, scenario.deadline, context.die);
  FaultInjectingCommunicator ring(plain_ring, script);
  FaultInjectingBackend backend(script, scenario.work);
  annulus::RingAttention attention(ring, backend,
                                   annulus::Options{.rotation = scenario.rotation, .checked = scenario.checked});

  RankReport report;
  std::size_t call = 0;
  auto const judge = [&](std::vector<float> bits) {
    if (context.expected && !same_bits(bits, (*context.expected)[call])) report.right = false;
    if (context.obtained) context.obtained->push_back(std::move(bits));
    ++call;
  };
  try {
    constexpr annulus::Index rows = 2, heads = 2, dim = 4;
    Tensor q(1, rows, heads, dim), k(1, rows, 1, dim), v = k, dout = q;
    Matrix sinks(heads, 1);
    fill(sinks, 4, 0, 0);
    for (int step = 0; step < scenario.training_steps(); ++step) {
      fill(q, 0, rank, step), fill(k, 1, rank, step), fill(v, 2, rank, step), fill(dout, 3, rank, step);
      annulus::Operands<float> operands;
      if (fault.place == Place::reduction) operands.sinks = annulus::view_of(std::as_const(sinks));
      operands.call = step;
      bool const strikes = fault.place == Place::call && fault.culprit == rank;
      if (strikes && fault.kind == FaultKind::leave && fault.number == 2 * step) break;
      if (strikes && fault.kind == FaultKind::skip && fault.number == step) {
        call += 2;
        continue;
      }
      auto const forward = attention.forward(q, k, v, operands);
      judge(bits_of(forward.output, forward.lse));
      if (strikes && fault.kind == FaultKind::leave && fault.number == 2 * step + 1) break;
      auto const gradients = attention.backward(dout, forward, q, k, v, operands);
      auto bits = bits_of(gradients.dq, gradients.dk, gradients.dv);
      if (gradients.dsinks) bits.insert(bits.end(), gradients.dsinks->data(), gradients.dsinks->data() + heads);
      judge(std::move(bits));
      if (step == 0)
        for (std::size_t place = 0; place < report.counts.size(); ++place)
          report.counts[place] = script.count(static_cast<Place>(place));
    }
  } catch (annulus::CommunicationError const& error) {
    report.end = RankReport::communication_error;
    report.neighbour = error.neighbour();
    std::strncpy(report.text.data(), error.what(), report.text.size() - 1);
  } catch (InjectedFailure const&) {
    report.end = RankReport::own_failure;
  } catch (std::bad_alloc const&) {
    report.end = fault.kind == FaultKind::no_memory ? RankReport::own_failure : RankReport::other_exception;
  } catch (std::exception const& error) {
    report.end = RankReport::other_exception;
    std::strncpy(report.text.data(), error.what(), report.text.size() - 1);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace annulus_test
