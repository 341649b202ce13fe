#pragma once
// Observer of a call: a function that receives what a rank does, as intervals of time.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/index.hpp"
#include "annulus/core/short_list.hpp"
#include "annulus/schedule/payload_layout.hpp"

namespace annulus {

/// What a rank does in an interval. All but `exchange` are disjoint, except that `call` contains every other one; an
/// exchange overlaps the work that hides it, and ends with the wait for it.
enum class IntervalKind : std::uint8_t {
  call,         ///< a whole call of forward or backward, without the final confirmation of a checked call
  agreement,    ///< comparison of the arguments of all ranks
  compute,      ///< Backend::fold or add_gradients of one step; in both directions, of each half
  synchronize,  ///< the step's arrived results are joined, and Backend::synchronize waits for its work
  exchange,     ///< a shift in flight, or (zero-copy) a window from its opening until its bytes can be read
  wait,         ///< the rank does nothing but wait for an exchange, or (zero-copy) for the readers of a buffer
};

constexpr std::string_view name_of(IntervalKind kind) {
  constexpr std::string_view names[] = {"call", "agreement", "compute", "synchronize", "exchange", "wait"};
  return names[static_cast<std::size_t>(kind)];
}

/// Something that a rank did. Trivially copyable, so that it can be sent to another rank as bytes.
struct Interval {
  using Clock = std::chrono::steady_clock;  ///< of all times; clocks of different machines have different origins

  IntervalKind kind = IntervalKind::call;  ///< what the rank did
  Pass pass = Pass::forward;               ///< of the call
  Channel channel = Channel::prefetched;   ///< of an exchange or wait
  Rank rank = 0;                           ///< that did it
  int step = -1;           ///< of the ring; of an exchange and its wait: the one that started it; -1: outside of steps
  std::uint64_t call = 0;  ///< number of the call on this ring
  Clock::time_point begin{};                                  ///< of the interval
  Clock::time_point end{};                                    ///< of the interval
  Clock::time_point started{};                                ///< of a wait: when the exchange was started
  detail::ShortList<Part, PayloadLayout::max_parts> parts{};  ///< of an exchange or wait: what the rows consist of
  Index bytes = 0;  ///< of an exchange or wait: sent by this rank, or (zero-copy) read from it, without checksums
  Index multiply_adds = 0;  ///< of a compute: planned work

  double seconds() const { return std::chrono::duration<double>(end - begin).count(); }  ///< length of the interval
};

/// Called on the rank's thread at the end of each interval. Ranks of one process that share an observer call it
/// concurrently. An exception that it throws fails the call, as one of a backend does: all ranks throw.
using Observer = std::function<void(Interval const&)>;

namespace detail {

/// Measures the intervals of one call on one rank. Without an observer it does nothing and reads no clock.
class IntervalRecorder {
 public:
  using Time = Interval::Clock::time_point;

  IntervalRecorder() = default;
  /// The observer, which may be empty, must outlive this object.
  IntervalRecorder(Observer const& observer, Pass pass, Rank rank)
      : observer_(observer ? &observer : nullptr), pass_(pass), rank_(rank) {}

  void set_call(std::uint64_t number) { call_ = number; }

  Time now() const { return observer_ ? Interval::Clock::now() : Time{}; }

  /// Reports an interval that ends now.
  void report(IntervalKind kind, Time begin, int step = -1, Index multiply_adds = 0) const {
    if (!observer_) return;
    Interval interval = since(begin, kind, step);
    interval.multiply_adds = multiply_adds;
    (*observer_)(interval);
  }

  /// Reports an exchange that ends now, and the wait for it. `bytes`: sent, without checksums.
  void report_exchange(Channel channel, int step, Time started, Time waited, PayloadLayout const& layout,
                       Index bytes) const {
    if (!observer_) return;
    Interval interval = wait_since(waited, channel, step, started);
    interval.bytes = bytes;
    for (PartLayout const& part : layout.parts) interval.parts.push_back(part.part);
    (*observer_)(interval);
    interval.kind = IntervalKind::exchange;
    interval.begin = started;
    (*observer_)(interval);
  }

  /// Reports a wait, which ends now, for the readers of a buffer.
  void report_reclaim(Channel channel, int step, Time begin) const {
    if (observer_) (*observer_)(wait_since(begin, channel, step, begin));
  }

 private:
  /// An interval from `begin` until now.
  Interval since(Time begin, IntervalKind kind, int step) const {
    return {.kind = kind, .pass = pass_, .rank = rank_, .step = step, .call = call_, .begin = begin, .end = now()};
  }

  Interval wait_since(Time begin, Channel channel, int step, Time started) const {
    Interval interval = since(begin, IntervalKind::wait, step);
    interval.channel = channel;
    interval.started = started;
    return interval;
  }

  Observer const* observer_ = nullptr;
  Pass pass_ = Pass::forward;
  Rank rank_ = 0;
  std::uint64_t call_ = 0;
};

}  // namespace detail
}  // namespace annulus
