// Ranks in different calls: all throw the same error, which names both call numbers and ranks, before any data is used.

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "annulus/attention/collectives.hpp"
#include "annulus/attention/ring_attention.hpp"
#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Batches 1 to 4 on one RingAttention; rank `odd` skips batch `skipped`, all else is equal.
std::vector<Outcome> batches(int ranks, Rank odd, Index skipped, Pass pass, SimulatedRingOptions const& options) {
  return run_ring(
      ranks,
      [&](SimulatedRing& ring) {
        Call call;
        make_good(call, ranks, ring.rank());
        call.pass = pass;
        ReferenceBackend backend;
        RingAttention attention(ring, backend);
        Outcome outcome = attempt([&] {
          for (Index batch = 1; batch <= 4; ++batch) {
            if (ring.rank() == odd && batch == skipped) continue;
            call.operands.call = batch;
            if (batch == skipped) make_good(call, ranks, ring.rank());
            call.run(attention);
          }
        });
        outcome.untouched = call.results_untouched();
        return outcome;
      },
      options);
}

}  // namespace

TEST_CASE("a skipped call is detected at that call, on all ranks", "[attention]") {
  for (int ranks : {2, 3, 4})
    for (Rank odd : {0, ranks - 1})
      for (Index skipped : {1, 3})
        for (Pass pass : {Pass::forward, Pass::backward})
          for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::automatic}) {
            auto const outcomes = batches(ranks, odd, skipped, pass, {.zero_copy = zero_copy});
            for (Rank rank = 0; rank < ranks; ++rank) {
              Outcome const& outcome = outcomes[static_cast<std::size_t>(rank)];
              CAPTURE(ranks, odd, skipped, rank, outcome.text);
              CHECK(outcome.type == "CommunicationError");
              Index const of_first = odd == 0 ? skipped + 1 : skipped, of_other = odd == 0 ? skipped : skipped + 1;
              CHECK_THAT(outcome.text,
                         ContainsSubstring(detail::message_of("call number (Operands::call): rank 0 has ", of_first,
                                                              ", rank ", odd == 0 ? 1 : odd, " has ", of_other)));
              CHECK(outcome.text == outcomes[0].text);
              if (rank != odd) CHECK(outcome.untouched);
            }
          }
}

TEST_CASE("the ring stays open after ranks were found in different calls", "[attention]") {
  auto const outcomes = run_ring(3, [](SimulatedRing& ring) {
    Call call;
    make_good(call, 3, ring.rank());
    call.operands.call = ring.rank() == 1 ? 8 : 7;
    ReferenceBackend backend;
    RingAttention attention(ring, backend);
    Thrown const different = attempt([&] { call.run(attention); });
    call.operands.call = 8;
    Thrown const equal = attempt([&] { call.run(attention); });
    return std::tuple(different.type, equal.type, good_call_works(ring));
  });
  for (auto const& outcome : outcomes)
    CHECK(outcome == std::tuple(std::string("CommunicationError"), std::string("nothing"), true));
}

TEST_CASE("a call label on one rank only is a difference; no label on any rank is none", "[attention]") {
  auto const outcomes = run_ring(2, [](SimulatedRing& ring) {
    Call call;
    make_good(call, 2, ring.rank());
    if (ring.rank() == 1) call.operands.call = 5;
    ReferenceBackend backend;
    RingAttention attention(ring, backend);
    Thrown const different = attempt([&] { call.run(attention); });
    call.operands.call = std::nullopt;
    return std::pair(different.text, attempt([&] { call.run(attention); }).type);
  });
  for (auto const& [text, type_without] : outcomes) {
    CHECK_THAT(text, ContainsSubstring("rank 0 has none, rank 1 has 5"));
    CHECK(type_without == "nothing");
  }
}

TEST_CASE("the error of ranks in different passes shows the last calls of both", "[attention]") {
  auto const outcomes = run_ring(2, [](SimulatedRing& ring) {
    Call call;
    make_good(call, 2, ring.rank());
    ReferenceBackend backend;
    RingAttention attention(ring, backend);
    call.run(attention);
    if (ring.rank() == 1) call.pass = Pass::backward;
    return attempt([&] { call.run(attention); });
  });
  for (Thrown const& outcome : outcomes) {
    CHECK_THAT(outcome.text, ContainsSubstring("different pass: rank 0 has forward, rank 1 has backward"));
    CHECK_THAT(outcome.text, ContainsSubstring("Last calls of rank 0: forward 1 done") &&
                                 ContainsSubstring("; of rank 1: forward 1 done"));
  }
}

TEST_CASE("an error of a later call shows the progress of this call and of the last calls", "[attention]") {
  std::atomic<int> done_with_first = 0;
  auto const outcomes = run_ring(3, [&](SimulatedRing& ring) {
    Call call;
    make_good(call, 3, ring.rank());
    ReferenceBackend backend;
    RingAttention attention(ring, backend);
    call.operands.call = 41;
    call.run(attention);
    for (++done_with_first; done_with_first < 3;) std::this_thread::yield();
    call.operands.call = 42;
    if (ring.rank() == 2) return Thrown{};
    return attempt([&] { call.run(attention); });
  });
  for (Rank rank : {0, 1})
    CHECK_THAT(outcomes[static_cast<std::size_t>(rank)].text,
               ContainsSubstring("rank 2") && ContainsSubstring("forward 2 (call 42 of the caller)") &&
                   ContainsSubstring("forward 1 (call 41 of the caller) done"));
}

TEST_CASE("free functions and several RingAttentions on a ring share its call count", "[attention]") {
  auto const records = run_ring(2, [](SimulatedRing& ring) {
    Call call;
    make_good(call, 2, ring.rank());
    ReferenceBackend backend;
    ring_attention_forward_into(ring, backend, {}, call.q, call.k, call.v, call.output, call.lse);
    RingAttention one(ring, backend), other(ring, backend);
    call.run(one);
    call.run(other);
    return std::string(ring.flight_record().tail().view());
  });
  for (std::string const& record : records) CHECK_THAT(record, ContainsSubstring("forward 3 done"));
}

TEST_CASE("a call that meets a collective operation is refused on all ranks, and the ring stays usable",
          "[attention]") {
  auto const outcomes = run_ring(3, [](SimulatedRing& ring) {
    Call call;
    make_good(call, 3, ring.rank());
    ReferenceBackend backend;
    RingAttention attention(ring, backend);
    Eigen::Tensor<float, 2, Eigen::RowMajor> sum(2, 2);
    sum.setConstant(1);
    std::string types;
    for (int attempts = 0; attempts < 3; ++attempts)
      types += attempt([&] {
                 if (ring.rank() == 2)
                   all_reduce(ring, sum);
                 else
                   call.run(attention);
               }).type +
               " ";
    types += attempt([&] { all_reduce(ring, sum); }).type + " ";
    return types + attempt([&] { call.run(attention); }).type;
  });
  std::string const refused = "CommunicationError ";
  CHECK(outcomes == std::vector<std::string>(3, refused + refused + refused + "nothing nothing"));
}
