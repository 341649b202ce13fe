// Calls in the schedules in which ranks form groups: refusals, errors, positions, damaged messages, values that are not
// finite, 16-bit operands.

#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Named {
  Schedule schedule;
  int group;
};
constexpr std::array grouped{Named{Schedule::two_levels, 2}, Named{Schedule::tiles, 2}, Named{Schedule::all_gather, 4}};

/// Outcome on each of 4 ranks of a forward and a backward call. options(rank), change(call): of that rank.
template <class OptionsOf, class Change>
std::vector<Outcome> outcomes_of(OptionsOf&& options, Change&& change) {
  return run_ring(4, [&](SimulatedRing& ring) {
    return attempt([&] {
      ReferenceBackend backend;
      RingAttention attention(ring, backend, options(ring.rank()));
      for (Pass pass : {Pass::forward, Pass::backward}) {
        Call call;
        make_good(call, 4, ring.rank());
        call.pass = pass;
        change(call);
        call.run(attention);
      }
    });
  });
}

}  // namespace

TEST_CASE("what a schedule does not accept is refused on all ranks, with the same text", "[attention][schedules]") {
  struct Refused {
    Options options;
    std::string text;
  };
  for (Refused const& refused :
       {Refused{{.schedule = Schedule::two_levels, .group = 4}, "accepted: [1, 2], which divide the ranks"},
        {{.schedule = Schedule::tiles, .group = 3}, "groups of 3 ranks"},
        {{.group = 2}, "schedule ring with groups of 2 ranks"},
        {{.rotation = Rotation::keys, .schedule = Schedule::all_gather}, "no rows rotate"},
        {{.reproducible = true, .schedule = Schedule::tiles}, "accepted: Schedule::ring"},
        {{.schedule = Schedule::double_ring}, "groups of 0 ranks, on 4 ranks; accepted: a divisor of the ranks"},
        {{.schedule = Schedule::double_ring, .group = 3}, "groups of 3 ranks, on 4 ranks; accepted: a divisor"},
        {{.reproducible = true, .schedule = Schedule::double_ring, .group = 2}, "whose leaf sums are not planned"}})
    for (Outcome const& outcome : outcomes_of([&](Rank) { return refused.options; }, [](Call&) {})) {
      CHECK(outcome.type == "UnsupportedError");
      CHECK_THAT(outcome.text, ContainsSubstring(refused.text));
    }
}

TEST_CASE("ranks with different schedules or groups are detected", "[attention][schedules]") {
  auto const all_say = [](Options const& odd, std::string const& text) {
    Options const common{.schedule = Schedule::tiles, .group = 2};
    for (Outcome const& outcome : outcomes_of([&](Rank rank) { return rank == 2 ? odd : common; }, [](Call&) {})) {
      CHECK(outcome.type == "CommunicationError");
      CHECK_THAT(outcome.text, ContainsSubstring(text));
    }
  };
  all_say({.schedule = Schedule::two_levels, .group = 2},
          "different schedule: rank 0 has tiles, rank 2 has two_levels");
  all_say({.schedule = Schedule::tiles, .group = 4}, "different group: rank 0 has 2, rank 2 has 4");
}

TEST_CASE("masks that ranks of a group exchange have the same extents on all ranks", "[attention][schedules]") {
  auto const give_mask = [](Call& call) {
    call.operands.mask = call.rank == 1 ? call.tensor<bool, 4>({2, 1, Call::rows, call.global_rows()}, true)
                                        : call.mask_of(call.global_rows());
  };
  for (Outcome const& outcome :
       outcomes_of([](Rank) { return Options{.schedule = Schedule::tiles, .group = 2}; }, give_mask)) {
    CHECK(outcome.type == "CommunicationError");
    CHECK_THAT(outcome.text, ContainsSubstring("mask operand batch extent"));
  }
}

TEST_CASE("positions are those of the rank's own rows in every schedule", "[attention][schedules]") {
  for (Named const& one : grouped)
    run_ring(4, [&](SimulatedRing& ring) {
      ReferenceBackend backend;
      Options const options{.sharding = Striped{}, .query_offset = 5, .schedule = one.schedule, .group = one.group};
      RingAttention attention(ring, backend, options);
      Call call;
      make_good(call, 4, ring.rank());
      call.run(attention);
      Index const r = ring.rank();
      if (attention.positions(Side::key) != std::vector<Index>{r, r + 4, r + 8} ||
          attention.positions(Side::query) != std::vector<Index>{r + 5, r + 9, r + 13})
        throw std::logic_error("other positions");
    });
}

TEST_CASE("a value that is not finite is reported with its owner, row and head in every schedule",
          "[attention][schedules]") {
  for (Named const& one : grouped)
    for (Pass pass : {Pass::forward, Pass::backward}) {
      auto const spoil = [&](Call& call) {
        if (call.rank != 3 || call.pass != pass) return;
        auto const& spoiled = pass == Pass::forward ? call.q : call.dout;
        spoiled(1, 2, 3, 0) = std::numeric_limits<float>::quiet_NaN();
      };
      auto const options = [&](Rank) {
        bool const rotates = one.schedule != Schedule::all_gather;
        return Options{.rotation = rotates ? Rotation::keys : Rotation::automatic,
                       .schedule = one.schedule,
                       .group = one.group,
                       .require_finite = true};
      };
      for (Outcome const& outcome : outcomes_of(options, spoil)) {
        CAPTURE(name_of(one.schedule), outcome.type, outcome.text);
        CHECK(outcome.type != "nothing");
        CHECK_THAT(outcome.text, ContainsSubstring(pass == Pass::forward ? "of rank 3 has the value" : "of rank"));
        if (pass == Pass::forward) CHECK_THAT(outcome.text, ContainsSubstring("in batch 1, row 2, head 3"));
      }
    }
}
