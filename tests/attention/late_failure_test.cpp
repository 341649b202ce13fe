// A rank that fails in the middle of a pass throws its exception, the other ranks throw CommunicationError, and no rank
// hangs. Also a backend that rejects the problem on one rank only.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Reference backend that throws after a given number of calls.
class BreakingBackend : public ReferenceBackend {
 public:
  static constexpr int never = -1;

  /// calls: number of folds or gradients that succeed.
  explicit BreakingBackend(int calls, bool known_type = true) : left_(calls), known_type_(known_type) {}

  template <class... X>
  void fold(X const&... x) {
    break_if_due();
    ReferenceBackend::fold(x...);
  }
  template <class... X>
  void add_gradients(X const&... x) {
    break_if_due();
    ReferenceBackend::add_gradients(x...);
  }

 private:
  void break_if_due() {
    if (left_ == 0) {
      if (known_type_) throw std::runtime_error("the device fell off the bus");
      throw 42;
    }
    --left_;
  }
  int left_;
  bool known_type_;
};
static_assert(Backend<BreakingBackend>);

class PickyBackend : public ReferenceBackend {
 public:
  explicit PickyBackend(bool refuses) : refuses_(refuses) {}
  Support supports(Problem const& problem) const {
    return refuses_ ? Support::no("head_dim " + std::to_string(problem.shape.head_dim) + " is not a multiple of 128")
                    : Support::yes();
  }

 private:
  bool refuses_;
};
static_assert(Backend<PickyBackend>);

struct Failure {
  int ranks;
  Rank culprit;
  int calls;
  Pass pass;
  Rotation rotation;
  Mask mask;
};

std::vector<Failure> failures() {
  std::vector<Failure> result;
  for (int ranks : {1, 2, 4})
    for (Rank culprit = 0; culprit < ranks; ++culprit)
      for (Pass pass : {Pass::forward, Pass::backward})
        for (Rotation rotation : {Rotation::keys, Rotation::queries})
          for (Mask const& mask : {full(), sliding_window(4, 0)}) {
            int const steps = mask == full() ? ranks : std::min(ranks, 3);
            for (int calls = 0; calls < steps; ++calls) result.push_back({ranks, culprit, calls, pass, rotation, mask});
          }
  return result;
}

template <class B>
void call_with(B& backend, SimulatedRing& ring, Failure const& failure) {
  Call call;
  make_good(call, failure.ranks, ring.rank());
  call.pass = failure.pass;
  RingAttention attention(ring, backend, {.mask = failure.mask, .rotation = failure.rotation});
  call.run(attention);
}

}  // namespace

TEST_CASE("the other ranks throw a CommunicationError that names the failed rank", "[attention]") {
  std::vector<std::pair<Failure, ZeroCopy>> runs;
  for (Failure const& failure : failures())
    for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::always}) runs.emplace_back(failure, zero_copy);
  for (auto const& planned : runs) {
    Failure const& failure = planned.first;
    ZeroCopy const zero_copy = planned.second;
    auto const run = [&](SimulatedRing& ring) {
      BreakingBackend backend(ring.rank() == failure.culprit ? failure.calls : BreakingBackend::never);
      return attempt([&] { call_with(backend, ring, failure); });
    };
    auto const outcomes = run_ring(failure.ranks, run, {.zero_copy = zero_copy});
    for (Rank rank = 0; rank < failure.ranks; ++rank) {
      Thrown const& outcome = outcomes[static_cast<std::size_t>(rank)];
      CAPTURE(failure.ranks, failure.culprit, failure.calls, name_of(failure.rotation), name_of(zero_copy), rank,
              outcome.text);
      if (rank == failure.culprit) {
        CHECK(outcome == Thrown{"std::exception", "the device fell off the bus"});
        continue;
      }
      // A rank at distance d may already have all rows it needs: the rows of its last d owners have passed the culprit
      // d shifts earlier, and the shift of a step is sent before its work. With a window a rank may need no rows from
      // the culprit. With zero-copy exchange, rows that are only read are shared with all ranks before the first step.
      int const distance = ring_neighbour(rank, -failure.culprit, failure.ranks);
      bool const finished = outcome.type == "nothing";
      bool const only_read =
          zero_copy == ZeroCopy::always && failure.pass == Pass::forward && failure.rotation == Rotation::keys;
      bool const may_finish = !(failure.mask == full()) || only_read || failure.calls + 1 + distance >= failure.ranks;
      CHECK((outcome.type == "CommunicationError" || (finished && may_finish)));
      if (!finished)
        CHECK_THAT(outcome.text, ContainsSubstring("rank " + std::to_string(failure.culprit) + " left the ring"));
    }
  }
}

TEST_CASE("an exception of unknown type ends the ring too", "[attention]") {
  CHECK_THROWS_AS(run_ring(3,
                           [](SimulatedRing& ring) {
                             BreakingBackend backend(ring.rank() == 2 ? 1 : BreakingBackend::never, false);
                             call_with(backend, ring, {3, 2, 1, Pass::backward, Rotation::keys, causal()});
                           }),
                  int);
}

TEST_CASE("a rank that makes no call is detected by those that do", "[attention]") {
  auto const outcomes = run_ring(3, [](SimulatedRing& ring) {
    if (ring.rank() == 1) return Thrown{};
    ReferenceBackend backend;
    return attempt([&] { call_with(backend, ring, {3, 1, 0, Pass::forward, Rotation::keys, full()}); });
  });
  for (Rank rank : {0, 2}) {
    CHECK(outcomes[static_cast<std::size_t>(rank)].type == "CommunicationError");
    CHECK_THAT(outcomes[static_cast<std::size_t>(rank)].text, ContainsSubstring("rank 1"));
  }
}

TEST_CASE("a problem that one rank's backend rejects is refused on all ranks", "[attention]") {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (Rank refusing = 0; refusing < ranks; ++refusing)
      for (Pass pass : {Pass::forward, Pass::backward}) {
        auto const outcomes = run_ring(ranks, [&](SimulatedRing& ring) {
          PickyBackend backend(ring.rank() == refusing);
          Outcome outcome = attempt([&] { call_with(backend, ring, {ranks, 0, 0, pass, Rotation::keys, full()}); });
          outcome.good_call_works = good_call_works(ring);
          return outcome;
        });
        for (Outcome const& outcome : outcomes) {
          CAPTURE(ranks, refusing);
          CHECK(outcome.type == "UnsupportedError");
          CHECK(outcome.text == detail::message_of("rank ", refusing, ": head_dim 4 is not a multiple of 128"));
          CHECK(outcome.good_call_works);
        }
      }
}
