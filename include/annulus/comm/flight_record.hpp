#pragma once
// Flight record of a rank: its last calls, which step each reached and when. Shown in errors, compared by peers.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"

namespace annulus {

constexpr std::string_view name_of(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

/// Call, pass and step that an exchange belongs to. Messages carry it, so that those of different calls never pair.
struct CallPosition {
  std::uint64_t call = 0;     ///< number of the call on this ring, from 1; 0: outside a call
  Pass pass = Pass::forward;  ///< of the call
  int step = 0;               ///< of the pass, from 0

  bool operator==(CallPosition const&) const = default;

  /// All in one number, and back; calls are counted modulo 2^32.
  std::uint64_t packed() const noexcept {
    return call << 32 | (pass == Pass::backward ? backward_bit : 0) | static_cast<std::uint64_t>(step);
  }
  /// The position that packed() gave a number.
  static CallPosition unpacked(std::uint64_t packed) noexcept {
    return {packed >> 32, (packed & backward_bit) != 0 ? Pass::backward : Pass::forward,
            static_cast<int>(packed & (backward_bit - 1))};
  }
  /// Bit of packed() that a backward pass sets.
  static constexpr std::uint64_t backward_bit = std::uint64_t{1} << 31;

  /// Text such as "call 3, backward, step 1".
  detail::FixedText<80> text() const noexcept {
    detail::FixedText<80> words;
    return call == 0 ? words.add("outside a call") : words.add("call ", call, ", ", name_of(pass), ", step ", step);
  }
};

/// Ring buffer of a rank's last calls. The rank's own thread writes it; position(), progress() and
/// seconds_since_last_step() may be called by all threads.
class FlightRecord {
 public:
  using Clock = std::chrono::steady_clock;    ///< of all times
  static constexpr std::size_t capacity = 8;  ///< calls that are kept
  using Tail = detail::FixedText<255>;        ///< text of the last calls

  FlightRecord() = default;
  FlightRecord(FlightRecord const&) = delete;
  FlightRecord& operator=(FlightRecord const&) = delete;

  /// Notes that a call begins; returns its number. `label`: the number that the caller gave it, if any.
  std::uint64_t begin(Pass pass, std::optional<Index> label) noexcept {
    std::uint64_t const number = ++numbered_;
    ++begun_;
    fails_on_all_ranks_ = false;
    current() = {number, pass, label, 0, 0, State::validating, Clock::now()};
    publish({number, pass, 0});
    return number;
  }

  /// Notes that step `index` of `steps` begins.
  void step(int index, int steps) noexcept {
    Call& call = current();
    call.step = index;
    call.steps = steps;
    call.state = State::running;
    publish({call.number, call.pass, index});
  }

  /// Notes that the call has ended.
  void end(bool failed) noexcept {
    Call& call = current();
    call.state = failed ? State::failed : State::done;
    call.when = Clock::now();
    publish({});
  }

  /// Gives the number of the last call to the next one. For a call that has met another operation on other ranks, which
  /// count no call: afterwards the numbers of all ranks are equal again.
  void reuse_number() noexcept { --numbered_; }

  /// Notes whether all ranks throw the same error in this call, so that none waits. Holds until the next call begins.
  void set_fails_on_all_ranks(bool fails) noexcept { fails_on_all_ranks_ = fails; }
  bool fails_on_all_ranks() const noexcept { return fails_on_all_ranks_; }  ///< the value noted last

  /// Call, pass and step noted last.
  CallPosition position() const noexcept { return CallPosition::unpacked(position_.load(std::memory_order_relaxed)); }
  /// Notes that the communicator has completed an exchange of this rank.
  void advance() noexcept { progress_.fetch_add(1, std::memory_order_relaxed); }
  /// Counts calls and steps that began, calls that ended and exchanges that completed. Of ranks that do the same work,
  /// the one with the smallest count is behind.
  std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_relaxed); }
  /// Seconds since a call or step was noted last.
  double seconds_since_last_step() const noexcept {
    return std::chrono::duration<double>(Clock::now().time_since_epoch() -
                                         Clock::duration(last_step_.load(std::memory_order_relaxed)))
        .count();
  }

  /// The last three calls, the newest first: "forward 7 at step 2 of 4, backward 6 done 12 ms ago".
  Tail tail() const noexcept {
    constexpr std::uint64_t shown = 3;
    Tail text;
    if (begun_ == 0) return text.add("none");
    for (std::uint64_t back = 0; back < shown && back < begun_; ++back) {
      Call const& call = calls_[(begun_ - back) % capacity];
      text.add(back == 0 ? "" : ", ", name_of(call.pass), " ", call.number);
      if (call.label) text.add(" (call ", *call.label, " of the caller)");
      if (call.state == State::validating) text.add(" comparing its arguments with the other ranks'");
      if (call.state == State::running) text.add(" at step ", call.step, " of ", call.steps);
      if (call.state == State::done || call.state == State::failed)
        text.add(call.state == State::done ? " done " : " failed ",
                 std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - call.when).count(), " ms ago");
    }
    return text;
  }

 private:
  enum class State : std::uint8_t {
    validating,  ///< ranks compare their calls
    running,     ///< a step is in progress
    done,        ///< returned
    failed,      ///< thrown
  };
  struct Call {
    std::uint64_t number = 0;
    Pass pass = Pass::forward;
    std::optional<Index> label{};
    int step = 0, steps = 0;
    State state = State::validating;
    Clock::time_point when{};
  };

  Call& current() { return calls_[begun_ % capacity]; }
  void publish(CallPosition const& position) noexcept {
    position_.store(position.packed(), std::memory_order_relaxed);
    advance();
    last_step_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }

  std::array<Call, capacity> calls_{};
  std::uint64_t begun_ = 0, numbered_ = 0;
  bool fails_on_all_ranks_ = false;
  std::atomic<std::uint64_t> position_{0}, progress_{0};
  std::atomic<Clock::rep> last_step_{Clock::now().time_since_epoch().count()};
};

}  // namespace annulus
