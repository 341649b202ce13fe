// Options::checked and Options::require_finite: detection of errors between ranks and of values that are not finite.

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Flips one bit of the first run of one message that this rank receives.
class FlippingRing {
 public:
  using memory_space = HostMemory;

  FlippingRing(SimulatedRing& inner, Channel channel, int message) : inner_(inner), channel_(channel), left_(message) {}

  class Transfer {
   public:
    Transfer(SimulatedRing::Transfer inner, std::byte* flipped) : inner_(std::move(inner)), flipped_(flipped) {}
    void wait() {
      inner_.wait();
      if (flipped_) *flipped_ ^= std::byte{4};
      flipped_ = nullptr;
    }

   private:
    SimulatedRing::Transfer inner_;
    std::byte* flipped_;
  };

  Rank rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    bool const hit = channel == channel_ && left_-- == 0;
    return {inner_.start_shift(channel, hop, out, in), hit && !in[0].empty() ? in[0].data() : nullptr};
  }
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { inner_.all_gather(mine, all); }
  void abandon(std::string const& reason) noexcept { inner_.abandon(reason); }

 private:
  SimulatedRing& inner_;
  Channel channel_;
  int left_;
};

Options checked(Rotation rotation = Rotation::keys) { return {.rotation = rotation, .checked = true}; }

/// Rank 1 overwrites, in the first step, rows that other ranks are to read. The other ranks wait for that.
struct SpoilingBackend : ReferenceBackend {
  bool spoils;
  std::atomic<bool>& spoiled;
  std::vector<std::pair<std::byte*, Index>> copies{};

  template <class From, class To>
  void copy(From const& from, To const& to) {
    ReferenceBackend::copy(from, to);
    copies.emplace_back(reinterpret_cast<std::byte*>(to.data()), to.size());
  }
  template <class... X>
  void fold(X const&... x) {
    if (spoils && !spoiled) {
      for (auto [data, size] : copies)
        if (size > 0) *data ^= std::byte{1};
      spoiled = true;
    }
    while (!spoiled) std::this_thread::yield();
    ReferenceBackend::fold(x...);
  }
};

/// Throws in normalise, after the last step.
/// Computes results by normalise() alone, which fails.
struct FailingAtTheEnd : ReferenceBackend {
  bool fails = false;
  /// Hides the form that closes sums.
  template <class T, class Predicate, class A>
  void fold(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
            RunningState<A, HostMemory> const& state) {
    ReferenceBackend::fold(step, operands, state, ForwardResults<T, Accumulator<T>, HostMemory>{});
  }
  template <class... X>
  void normalise(X const&... x) {
    if (fails) throw std::runtime_error("no result");
    ReferenceBackend::normalise(x...);
  }
};

}  // namespace

TEST_CASE("a flipped bit is detected by its receiver; the error names sender, step and channel", "[attention]") {
  int const ranks = 4;
  for (Rank odd : {0, 2})
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (Channel channel : {Channel::prefetched, Channel::carried, Channel::reduction})
        for (int message : {0, 2}) {
          auto const outcomes = run_ring(ranks, [&](SimulatedRing& simulated) {
            FlippingRing ring(simulated, channel, simulated.rank() == odd ? message : -1);
            Call call;
            make_good(call, ranks, ring.rank());
            auto const sinks = call.tensor<float, 2>({Call::query_heads, 1}, 0.5f),
                       dsinks = call.tensor(sinks.extents());
            call.operands.sinks = sinks;
            call.gradients.dsinks = dsinks;
            call.pass = Pass::backward;
            ReferenceBackend backend;
            RingAttention attention(ring, backend, checked(rotation));
            return attempt([&] { call.run(attention); });
          });
          for (Thrown const& outcome : outcomes) {
            CAPTURE(odd, name_of(rotation), name_of(channel), message, outcome.text);
            CHECK(outcome.type == "CommunicationError");
          }
          std::string const& text = outcomes[static_cast<std::size_t>(odd)].text;
          Rank const sender = ring_neighbour(odd, -1, ranks);
          int const step = channel == Channel::reduction ? ranks - 1
                           : channel == Channel::carried ? message + 1
                                                         : message;
          CHECK_THAT(text, ContainsSubstring(detail::message_of("step ", step, " of the ring: rank ", odd, ": ",
                                                                name_of(channel), " rows from rank ", sender,
                                                                " do not match the checksum")));
        }
}

TEST_CASE("rows that change in shared memory after they were shared are detected", "[attention]") {
  std::atomic<bool> spoiled = false;
  auto const outcomes = run_ring(3, [&](SimulatedRing& ring) {
    Call call;
    make_good(call, 3, ring.rank());
    SpoilingBackend backend{{}, ring.rank() == 1, spoiled};
    RingAttention attention(ring, backend, checked());
    return attempt([&] { call.run(attention); });
  });
  bool named = false;
  for (Thrown const& outcome : outcomes) {
    CHECK(outcome.type == "CommunicationError");
    named = named || outcome.text.find("rows from rank 1 do not match the checksum") != std::string::npos;
  }
  CHECK(named);
}

TEST_CASE("sink logits that differ between ranks are detected if calls are checked", "[attention]") {
  for (bool checks : {true, false}) {
    auto const outcomes = outcomes_of(3, [&](Call& call) {
      call.operands.sinks = call.tensor<float, 2>({Call::query_heads, 1}, call.rank == 2 ? 0.25f : 0.5f);
      call.options.checked = checks;
    });
    for (Thrown const& outcome : outcomes) {
      CHECK(outcome.type == (checks ? "CommunicationError" : "nothing"));
      if (checks) CHECK(has_words(outcome.text, "different sink logits: rank 0 has*rank 2 has"));
    }
  }
}

TEST_CASE("checked calls: a rank that has its results throws if another rank fails in its last step", "[attention]") {
  for (bool checks : {true, false}) {
    int ended_well = 0;
    auto const outcomes = run_ring(2, [&](SimulatedRing& ring) {
      Call call;
      make_good(call, 2, ring.rank());
      FailingAtTheEnd backend;
      backend.fails = ring.rank() == 1;
      RingAttention attention(ring, backend, {.checked = checks});
      return attempt([&] { call.run(attention); });
    });
    for (Thrown const& outcome : outcomes) ended_well += outcome.type == "nothing";
    CHECK(outcomes[1].type == "std::exception");
    if (checks) CHECK(ended_well == 0);
  }
}

TEST_CASE("the first value that is not finite is reported with rank, step and row", "[attention]") {
  float const nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (float bad : {nan, infinity})
    for (Pass pass : {Pass::forward, Pass::backward})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        auto const outcomes = run_ring(3, [&](SimulatedRing& ring) {
          Call call;
          make_good(call, 3, ring.rank());
          ReferenceBackend backend;
          RingAttention attention(ring, backend, {.rotation = rotation, .require_finite = true});
          if (pass == Pass::backward) call.run(attention);
          call.pass = pass;
          if (ring.rank() == 1) (pass == Pass::forward ? call.v : call.dout)(1, 2, 0, 1) = bad;
          return attempt([&] { call.run(attention); });
        });
        for (Thrown const& outcome : outcomes) {
          CAPTURE(bad, name_of(pass), name_of(rotation), outcome.text);
          CHECK((outcome.type == "Error" || outcome.type == "CommunicationError"));
          CHECK(has_words(outcome.text, "of the ring: * has the value *in batch 1, row *required: finite values"));
        }
        // Rank 1 uses its own value in its first step.
        CHECK_THAT(outcomes[1].text, ContainsSubstring("step 0 of the ring"));
      }
}

TEST_CASE("require_finite accepts rows that see no key", "[attention]") {
  auto const complaints = run_ring(2, [](SimulatedRing& ring) {
    Call call;
    make_good(call, 2, ring.rank());
    ReferenceBackend backend;
    RingAttention attention(ring, backend, {.mask = sliding_window(0, 0), .query_offset = 3, .require_finite = true});
    std::string texts;
    for (Pass pass : {Pass::forward, Pass::backward}) {
      call.pass = pass;
      texts += attempt([&] { call.run(attention); }).text;
    }
    return texts;
  });
  for (std::string const& complaint : complaints) CHECK(complaint == "");
}
