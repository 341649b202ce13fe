#pragma once
// Faults that are injected into a ring, and the places where they occur.

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <new>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/error.hpp"

namespace annulus_test {

/// By how much a delayed message is late: less than every deadline, more than the others take to wait for it.
constexpr std::chrono::milliseconds short_delay{100};

enum class FaultKind {
  none,
  drop,       ///< the message does not arrive
  delay,      ///< it arrives late, but within the deadline
  stale,      ///< wait() returns before it has arrived
  duplicate,  ///< the message before it arrives again in its place
  truncate,   ///< half of its last run is sent
  flip,       ///< one bit arrives inverted
  fail,       ///< the rank throws an exception of its own
  no_memory,  ///< the rank throws bad_alloc
  stop,       ///< the rank stops for longer than the deadline, then continues
  die,        ///< the rank never comes back
  skip,       ///< the rank omits a call of all ranks
  leave,      ///< the rank returns before a call of all ranks
};

constexpr std::string_view name_of(FaultKind kind) {
  constexpr std::string_view names[] = {"none", "drop",      "delay", "stale", "duplicate", "truncate", "flip",
                                        "fail", "no memory", "stop",  "die",   "skip",      "leave"};
  return names[static_cast<int>(kind)];
}

/// Place of a fault: the messages of a channel, the all-gathers, the work of the backend, or whole calls. Ranks reach
/// the places of one kind in the same order, so that a number denotes the same place on all ranks.
enum class Place { prefetched, carried, reduction, all_gather, compute, call };

constexpr std::string_view name_of(Place place) {
  constexpr std::string_view names[] = {"prefetched", "carried", "reduction", "all_gather", "compute", "call"};
  return names[static_cast<int>(place)];
}

constexpr Place place_of(annulus::Channel channel) {
  return channel == annulus::Channel::prefetched ? Place::prefetched
         : channel == annulus::Channel::carried  ? Place::carried
                                                 : Place::reduction;
}

/// One fault of the rank `culprit`.
struct Fault {
  FaultKind kind = FaultKind::none;
  annulus::Rank culprit = 0;
  Place place = Place::prefetched;
  int number = 0;  ///< of the place among those of its kind, from 0
};

/// Thrown by a rank that fails by itself.
class InjectedFailure : public std::runtime_error {
 public:
  InjectedFailure() : std::runtime_error("an injected failure") {}
};

/// The fault as one rank sees it, used by the communicator and the backend that inject it. A message is damaged by the
/// rank that receives it, as if it had been sent damaged.
class FaultScript {
 public:
  /// die(): returns when no other rank needs this one any more.
  FaultScript(Fault const& fault, annulus::Rank rank, std::chrono::milliseconds deadline, std::function<void()> die)
      : fault_(fault), rank_(rank), deadline_(deadline), die_(std::move(die)) {}

  Fault const& fault() const { return fault_; }

  /// Notes that this rank reaches the next place of a kind; injects the faults that need no message. Returns the number
  /// of the place.
  int arrive(Place place) {
    int const number = counts_[static_cast<std::size_t>(place)]++;
    if (!is_at(place, number) || fault_.culprit != rank_) return number;
    switch (fault_.kind) {
      case FaultKind::fail:
        throw InjectedFailure();
      case FaultKind::no_memory:
        throw std::bad_alloc();
      case FaultKind::stop:
        std::this_thread::sleep_for(2 * deadline_ + std::chrono::milliseconds(200));
        break;
      case FaultKind::die:
        die_();
        throw InjectedFailure();
      default:
        break;
    }
    return number;
  }

  /// The kind of damage to message `number` of `sender`.
  FaultKind damage(Place place, int number, annulus::Rank sender) const {
    return is_at(place, number) && fault_.culprit == sender ? fault_.kind : FaultKind::none;
  }
  bool is_before_duplicate(Place place, int number) const {
    return fault_.kind == FaultKind::duplicate && is_at(place, number + 1);
  }

  /// Number of times that this rank has reached a place.
  int count(Place place) const { return counts_[static_cast<std::size_t>(place)]; }

 private:
  bool is_at(Place place, int number) const { return fault_.place == place && fault_.number == number; }

  Fault fault_;
  annulus::Rank rank_;
  std::chrono::milliseconds deadline_;
  std::function<void()> die_;
  std::array<int, 6> counts_{};
};

}  // namespace annulus_test
