// Calls in the schedules in which ranks form groups: refusals, groups of near ranks, errors, positions, damaged
// messages, values that are not finite, 16-bit operands.

#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
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

using Change = std::function<void(Call&)>;
using OptionsOf = std::function<Options(Rank)>;

/// A forward and a backward call of each of 4 ranks, for check_refused.
std::function<void(SimulatedRing&)> called(
    OptionsOf const& options, Change const& change = [](Call&) {}) {
  return [=](SimulatedRing& ring) {
    ReferenceBackend backend;
    RingAttention attention(ring, backend, options(ring.rank()));
    for (Pass pass : {Pass::forward, Pass::backward}) {
      Call call;
      make_good(call, 4, ring.rank());
      call.pass = pass;
      change(call);
      call.run(attention);
    }
  };
}

auto called_with(Options const& options) {
  return called([options](Rank) { return options; });
}

/// Rank 2 has other options than the tiles of the others.
auto called_with_odd(Options const& odd) {
  return called(
      [odd](Rank rank) { return rank == 2 ? odd : Options{.schedule = Schedule::tiles, .ranks_per_group = 2}; });
}

}  // namespace

TEST_CASE("what a schedule does not accept is refused on all ranks", "[attention][schedules]") {
  std::string const type = "UnsupportedError";
  std::string const order =
      ": the order of its sums is planned for the steps of a single ring; accepted: "
      "schedule ring or both directions";
  auto const give_masks = [](Call& call) {
    call.operands.mask = call.mask_of(call.global_rows(), 1 + (call.rank == 1));
  };
  std::vector<Refusal<SimulatedRing&>> const table{
      {"groups too large", type, "accepted: [1, 2], which divide the ranks",
       called_with({.schedule = Schedule::two_levels, .ranks_per_group = 4})},
      {"no divisor", type, "groups of 3 ranks", called_with({.schedule = Schedule::tiles, .ranks_per_group = 3})},
      {"no groups", type, "schedule ring with groups of 2 ranks", called_with({.ranks_per_group = 2})},
      {"no rotation", type, "no rows rotate",
       called_with({.rotation = Rotation::keys, .schedule = Schedule::all_gather})},
      {"no order of sums", type, "reproducible with schedule tiles" + order,
       called_with({.reproducible = true, .schedule = Schedule::tiles})},
      {"no divisor of a double ring", type, "groups of 3 ranks, on 4 ranks; accepted: a divisor",
       called_with({.schedule = Schedule::double_ring, .ranks_per_group = 3})},
      {"no order of sums of a double ring", type, "reproducible with schedule double ring" + order,
       called_with({.reproducible = true, .schedule = Schedule::double_ring, .ranks_per_group = 2})},
      {"another schedule", "CommunicationError", "different schedule: rank 0 has tiles, rank 2 has two_levels",
       called_with_odd({.schedule = Schedule::two_levels, .ranks_per_group = 2})},
      {"other groups", "CommunicationError", "different ranks_per_group: rank 0 has 2, rank 2 has 4",
       called_with_odd({.schedule = Schedule::tiles, .ranks_per_group = 4})},
      {"masks that the ranks of a group exchange", "CommunicationError", "mask operand batch extent",
       called([](Rank) { return Options{.schedule = Schedule::tiles, .ranks_per_group = 2}; }, give_masks)}};
  check_refused(table, on_ring(4));
}

namespace {

/// A ring whose ranks are near each other as the list of a test says; PlacedRing<false> has no near_ranks().
template <bool Knows>
struct PlacedRing {
  using memory_space = HostMemory;

  SimulatedRing& inner;
  std::vector<Rank> lowest{};

  Rank rank() const { return inner.rank(); }
  int size() const { return inner.size(); }
  std::span<Rank const> near_ranks() const requires Knows { return lowest; }
  auto start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    return inner.start_shift(channel, hop, out, in);
  }
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { inner.all_gather(mine, all); }
  void abandon(std::string_view reason) noexcept { inner.abandon(reason); }
};

/// The forward plan of a call on each rank of a ring, or the text of the error that it throws.
struct Planned {
  Schedule schedule{};
  int group = 0;
  std::string error{};
};

template <class Ring>
Planned plan_of(Ring& ring, Options const& options) {
  Planned planned;
  Thrown const outcome = attempt([&] {
    ReferenceBackend backend;
    RingAttention attention(ring, backend, options);
    Call call;
    make_good(call, ring.size(), ring.rank());
    call.run(attention);
    RingPlan const& plan = *attention.plan(Pass::forward);
    planned.schedule = plan.request().schedule;
    planned.group = planned.schedule == Schedule::double_ring ? plan.request().ranks_per_group : plan.groups().size();
  });
  planned.error = outcome.text;
  return planned;
}

/// The plan on a ring of 4 ranks, `near` of them near each other.
Planned plan_near(int near, Options const& options) {
  auto const plans = run_ring(4, [&](SimulatedRing& ring) { return plan_of(ring, options); },
                              {.zero_copy = ZeroCopy::never, .near_ranks = near});
  for (Planned const& other : plans) {
    CHECK(other.schedule == plans[0].schedule);
    CHECK(other.group == plans[0].group);
    CHECK(other.error == plans[0].error);
  }
  return plans[0];
}

}  // namespace

TEST_CASE("groups that are not given are the ranks that the communicator says are near", "[attention][schedules]") {
  Options options{.schedule = Schedule::double_ring};
  for (auto const [near, group] : {std::array{1, 1}, {2, 2}, {4, 4}, {0, 4}}) {
    CHECK(plan_near(near, options).group == group);
    CHECK(plan_near(near, options).error.empty());
  }
  options.ranks_per_group = 4;
  CHECK(plan_near(2, options).group == 4);

  // The call has 4 query heads and 2 kv heads: of 4 ranks, groups of 2 send the fewest bytes.
  options = {.schedule = Schedule::two_levels};
  CHECK(plan_near(0, options).group == 2);
  CHECK(plan_near(2, options).group == 2);
  CHECK(plan_near(1, options).group == 2);

  // A message between nodes takes a second: what stays in a node or crosses least is chosen.
  Rates const rates{.flops = 1e9, .near = {.bandwidth = 1e9}, .far = {.latency = 1}};
  options = {.rotation = Rotation::keys, .schedule = Schedule::automatic, .rates = rates};
  Planned const by_communicator = plan_near(2, options);
  options.rates->group = 2;
  Planned const by_hand = plan_near(0, options);
  CHECK(by_communicator.schedule == by_hand.schedule);
  CHECK(by_communicator.group == by_hand.group);
  options.rates->group = 0;
  CHECK(by_communicator.schedule != plan_near(4, options).schedule);
}

TEST_CASE("near ranks that form no groups are refused where they are needed", "[attention][schedules]") {
  Rates const rates{.far = {.latency = 1}};
  auto const text_of = [](std::vector<Rank> const& lowest, Options const& options) {
    return run_ring(4, [&](SimulatedRing& ring) {
      PlacedRing<true> placed{ring, lowest};
      return plan_of(placed, options).error;
    });
  };
  for (Options const& options :
       {Options{.schedule = Schedule::double_ring}, {.schedule = Schedule::automatic, .rates = rates}}) {
    for (std::string const& text : text_of({0, 1, 0, 1}, options))
      CHECK_THAT(text, ContainsSubstring("without a group takes the ranks that are near each other, which must be "
                                         "consecutive and equally many everywhere; 2 of 4 ranks are near rank 0, and "
                                         "rank 1 is the first near rank 1"));
    for (std::string const& text : text_of({0, 0, 0, 3}, options))
      CHECK_THAT(text, ContainsSubstring("3 of 4 ranks are near rank 0"));
    for (std::string const& text : text_of({0, 0, 2, 2}, options)) CHECK(text.empty());
    for (std::string const& text : text_of({0, 0}, options))
      CHECK_THAT(text,
                 ContainsSubstring("near_ranks() of the communicator has 2 entries; accepted: one for each of 4"));
  }
  for (Options const& options : {Options{.schedule = Schedule::double_ring, .ranks_per_group = 2},
                                 {.schedule = Schedule::two_levels},
                                 {.schedule = Schedule::two_levels, .ranks_per_group = 2},
                                 {.schedule = Schedule::tiles},
                                 {.schedule = Schedule::automatic},
                                 {}})
    for (std::string const& text : text_of({0, 1, 0, 1}, options)) CHECK(text.empty());

  for (std::string const& text : run_ring(4, [](SimulatedRing& ring) {
         PlacedRing<false> unknown{ring};
         return plan_of(unknown, {.schedule = Schedule::double_ring}).error;
       }))
    CHECK_THAT(text, ContainsSubstring("groups of 0 ranks, on 4 ranks; accepted: a divisor of the ranks"));
  for (std::string const& text : run_ring(4, [&](SimulatedRing& ring) {
         PlacedRing<false> unknown{ring};
         return plan_of(unknown, {.schedule = Schedule::automatic, .rates = rates}).error;
       }))
    CHECK_THAT(text, ContainsSubstring("rates of far links without a group"));
}

TEST_CASE("a communicator whose ranks disagree on near ranks is detected", "[attention][schedules]") {
  for (
      std::string const& text : run_ring(4, [](SimulatedRing& ring) {
        PlacedRing<true> placed{ring, ring.rank() == 2 ? std::vector<Rank>{0, 0, 0, 0} : std::vector<Rank>{0, 0, 2, 2}};
        return plan_of(placed, {.schedule = Schedule::double_ring}).error;
      }))
    CHECK_THAT(text, ContainsSubstring("consecutive near ranks: rank 0 has 2, rank 2 has 4"));
}

TEST_CASE("positions are those of the rank's own rows in every schedule", "[attention][schedules]") {
  for (Named const& one : grouped)
    run_ring(4, [&](SimulatedRing& ring) {
      ReferenceBackend backend;
      Options const options{
          .sharding = Striped{}, .query_offset = 5, .schedule = one.schedule, .ranks_per_group = one.group};
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
                       .ranks_per_group = one.group,
                       .require_finite = true};
      };
      for (Thrown const& thrown : on_ring(4)(called(options, spoil))) {
        CAPTURE(name_of(one.schedule), thrown.type, thrown.text);
        CHECK(thrown.type != "nothing");
        bool const forward = pass == Pass::forward;
        CHECK(has_words(thrown.text, forward ? "of rank 3 has the value*in batch 1, row 2, head 3" : "of rank"));
      }
    }
}
