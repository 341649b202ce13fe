// The executor on the lists of a ring: the order of the actions, the number of shifts, whose rows are where, and what a
// failing action does.

#include "annulus/ring/executor.hpp"

#include <string>
#include <vector>

#include "ring/marked_pass.hpp"
#include "support/catch.hpp"
#include "support/recording_communicator.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Recorded = RecordingCommunicator<SimulatedRing>;

/// The log of a rank in words, such as "start prefetched" and "work 0".
std::vector<std::string> words(Recorded const& ring) {
  std::vector<std::string> result;
  for (RecordedEvent const& event : ring.events()) {
    auto const of_channel = [&](std::string const& verb) {
      result.push_back(verb + std::string(name_of(event.channel)));
    };
    if (event.kind == RecordedEvent::started) of_channel("start ");
    if (event.kind == RecordedEvent::finished) of_channel("end ");
    if (event.kind == RecordedEvent::failed) of_channel("fail ");
    if (event.kind == RecordedEvent::dropped) of_channel("drop ");
    if (event.kind == RecordedEvent::abandoned) result.push_back("abandon");
    if (event.kind == RecordedEvent::marked) result.push_back(event.text);
  }
  return result;
}

struct Outcome {
  std::vector<std::string> words;
  std::string wrong, error;
  Rank blamed = CommunicationError::unknown;
};

/// Moves marks on every rank; throws where fail(rank, word) is true.
template <class Fail>
std::vector<Outcome> run_all(PlanRequest const& request, Fail const& fail) {
  RingPlan const plan(request);
  return run_ring(plan.ranks(), [&](SimulatedRing& simulated) {
    Recorded ring(simulated);
    ReferenceBackend reference;
    MarkedBackend backend(reference, [&](std::string_view operation, Index) {
      if (operation == "synchronize") ring.mark("synchronize");
    });
    ActionList const list = actions_of(plan, ring.rank());
    MarkedSlots<Recorded> slots;
    Outcome outcome;
    MarkedCalls calls;
    calls.note = [&](std::string const& word) {
      ring.mark(word);
      if (fail(ring.rank(), word)) throw Error("rank " + std::to_string(ring.rank()) + " fails at " + word);
    };
    try {
      move_marks(plan, list, ring, backend, slots, outcome.wrong, calls);
    } catch (CommunicationError const& error) {
      outcome.error = error.what();
      outcome.blamed = error.neighbour();
    } catch (Error const& error) {
      outcome.error = error.what();
    }
    outcome.words = words(ring);
    return outcome;
  });
}

std::vector<Outcome> run_all(PlanRequest const& request) {
  return run_all(request, [](Rank, std::string const&) { return false; });
}

std::size_t count(Outcome const& outcome, std::string const& word) {
  return static_cast<std::size_t>(std::count(outcome.words.begin(), outcome.words.end(), word));
}

}  // namespace

TEST_CASE("prefetched rows are shifted W - 1 times and carried results W times, around the whole ring", "[ring]") {
  for (int ranks : {1, 2, 3, 5, 8})
    for (Pass pass : {Pass::forward, Pass::backward})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        CAPTURE(ranks, static_cast<int>(pass), static_cast<int>(rotation));
        bool const carries = pass == Pass::backward || rotation == Rotation::queries;
        auto const w = static_cast<std::size_t>(ranks);
        auto const lengths = std::vector<Index>(w, 4);
        for (Outcome const& outcome : run_all(rotation_request(lengths, pass, rotation))) {
          CHECK(outcome.wrong == "");
          CHECK(outcome.error == "");
          CHECK(count(outcome, "start prefetched") == w - 1);
          CHECK(count(outcome, "end prefetched") == w - 1);
          CHECK(count(outcome, "start carried") == (carries && ranks > 1 ? w : 0));
          CHECK(count(outcome, "end carried") == (carries && ranks > 1 ? w : 0));
        }
      }
}

TEST_CASE("a step fetches the next rows, works, joins what arrived, and only then sends", "[ring]") {
  std::vector<std::string> const expected = {
      "start prefetched", "work 0", "start carried", "end prefetched",                   //
      "start prefetched", "work 1", "end carried",   "join",           "start carried",  //
      "end prefetched",   "work 2", "end carried",   "join",           "start carried",  //
      "end carried",      "finish", "finish"};
  for (Outcome const& outcome : run_all(rotation_request({4, 4, 4}, Pass::backward, Rotation::keys)))
    CHECK(outcome.words == expected);
}

TEST_CASE("one rank exchanges nothing", "[ring]") {
  for (Outcome const& outcome : run_all(rotation_request({4}, Pass::backward, Rotation::keys)))
    CHECK(outcome.words == std::vector<std::string>{"work 0", "finish", "finish"});
}

TEST_CASE("ranks without rows take part", "[ring]") {
  for (std::vector<Index> const& lengths : {std::vector<Index>{4, 0, 3}, {0, 0, 5}, {0, 2}, {0, 0}})
    for (Pass pass : {Pass::forward, Pass::backward})
      for (Outcome const& outcome : run_all(rotation_request(lengths, pass, Rotation::keys))) {
        CHECK(outcome.wrong == "");
        CHECK(outcome.error == "");
      }
}

TEST_CASE("a failing action closes the ring at once, then synchronizes the backend", "[ring]") {
  PlanRequest const request = rotation_request({4, 4, 4}, Pass::backward, Rotation::keys);
  for (std::string const place : {"work 0", "work 1", "join", "work 2"}) {
    CAPTURE(place);
    auto const outcomes =
        run_all(request, [&](Rank rank, std::string const& word) { return rank == 1 && word == place; });
    Outcome const& failed = outcomes[1];
    CHECK(failed.error == "rank 1 fails at " + place);
    // From the failure on: the peers are told before pending shifts are dropped, and the backend is synchronized last.
    auto const here = std::find(failed.words.begin(), failed.words.end(), place);
    REQUIRE(here != failed.words.end());
    std::vector<std::string> const after(here + 1, failed.words.end());
    REQUIRE(after.size() >= 2);
    CHECK(after.front() == "abandon");
    CHECK(after.back() == "synchronize");
    for (std::size_t n = 1; n + 1 < after.size(); ++n) CHECK(after[n].starts_with("drop "));
    for (Rank rank : {0, 2}) {
      Outcome const& other = outcomes[static_cast<std::size_t>(rank)];
      CHECK_THAT(other.error, Catch::Matchers::ContainsSubstring("rank 1 fails at " + place));
      CHECK_THAT(other.error, Catch::Matchers::ContainsSubstring("of the ring: "));
      CHECK(other.blamed == 1);
      CHECK(other.words.back() == "synchronize");
    }
  }
}

TEST_CASE("an error of the communicator names the step, and the exchange of a group", "[ring]") {
  struct Failing : SimulatedRing {
    Failing(SimulatedRing const& ring, int fatal) : SimulatedRing(ring), starts_left(fatal) {}
    Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
      if (starts_left-- == 0) throw CommunicationError("the line is dead");
      return SimulatedRing::start_shift(channel, hop, out, in);
    }
    int starts_left;
  };
  auto const failing_at = [](PlanRequest const& request, int fatal) {
    return [request, fatal] {
      RingPlan const plan(request);
      run_ring(plan.ranks(), [&](SimulatedRing& simulated) {
        Failing ring(simulated, fatal);
        ReferenceBackend reference;
        MarkedBackend backend(reference, [](std::string_view, Index) {});
        ActionList const list = actions_of(plan, ring.rank());
        MarkedSlots<Failing> slots;
        std::string wrong;
        move_marks(plan, list, ring, backend, slots, wrong);
      });
    };
  };
  PlanRequest const ring = rotation_request({4, 4, 4, 4}, Pass::backward, Rotation::keys);
  PlanRequest tiles = ring;
  tiles.schedule = Schedule::tiles;
  tiles.ranks_per_group = 2;
  std::string const type = "CommunicationError";
  check_refused({{"step 0", type, "step 0 of the ring: the line is dead", failing_at(ring, 0)},
                 {"step 1", type, "step 1 of the ring: the line is dead", failing_at(ring, 2)},
                 {"group", type, "exchange between the ranks of a group: the line is dead", failing_at(tiles, 0)}});
}

TEST_CASE("an action that the pass does not perform is refused", "[ring]") {
  struct NoPass {};
  auto const run = [](SimulatedRing& ring) {
    ReferenceBackend backend;
    RingPlan const plan(rotation_request({4}, Pass::forward, Rotation::keys));
    ActionList const list = actions_of(plan, 0);
    detail::Slots<SimulatedRing, ReferenceBackend> slots;
    slots.reserve(backend, ring, list);
    NoPass pass;
    detail::execute(list, pass, slots, ring, backend, detail::IntervalRecorder(), 1);
  };
  check_thrown(on_ring(1)(run)[0], "Error", "that its pass does not");
}
