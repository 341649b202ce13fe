#pragma once
// Runs a case of the communicator suite on all ranks, and makes the messages that it sends.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/error.hpp"
#include "support/catch.hpp"

namespace annulus_test {

/// Bytes in a memory space. To be specialised for the memory space of a communicator under test.
template <class Space>
class SpaceBytes;

template <>
class SpaceBytes<annulus::HostMemory> {
 public:
  SpaceBytes() = default;
  explicit SpaceBytes(std::size_t bytes) : bytes_(bytes, std::byte{0xFF}) {}
  std::span<std::byte> bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// A queue for the shifts of a rank. To be specialised for a memory space whose queue is not empty.
template <class Space>
struct SpaceQueue {
  static_assert(annulus::works_at_once<Space>);
  annulus::QueueOf<Space> queue;
};

/// The queue for the shifts of this thread's rank, as long as this object lives.
template <class Space>
class RankQueue {
 public:
  RankQueue() { current_ = this; }
  RankQueue(RankQueue const&) = delete;
  RankQueue& operator=(RankQueue const&) = delete;
  ~RankQueue() { current_ = nullptr; }

  static annulus::QueueOf<Space> const& current() { return current_->space_.queue; }

 private:
  static inline thread_local RankQueue* current_ = nullptr;
  SpaceQueue<Space> space_;
};

/// A shift on the rank's queue, with the interface of those in host memory: wait() returns when it has ended.
template <class Ring>
class QueuedShift {
  using Queue = RankQueue<typename Ring::memory_space>;

 public:
  QueuedShift(Ring& ring, annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in)
      : ring_(&ring), transfer_(annulus::detail::start_shift(ring, channel, hop, out, in, Queue::current())) {}

  void wait() {
    annulus::detail::wait_for(transfer_, Queue::current());
    annulus::detail::finish_queue(*ring_, Queue::current());
  }

 private:
  Ring* ring_;
  annulus::TransferOf<Ring> transfer_;
};

/// Starts a shift whose wait() needs no queue.
template <class Ring>
auto start_shift(Ring& ring, annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
  if constexpr (annulus::works_at_once<typename Ring::memory_space>)
    return ring.start_shift(channel, hop, out, in);
  else
    return QueuedShift<Ring>(ring, channel, hop, out, in);
}

/// Thrown by a rank that fails by itself.
class OwnFailure : public std::runtime_error {
 public:
  OwnFailure() : std::runtime_error("a failure of this rank's own") {}
};

/// Outcome of a case on one rank.
struct RankOutcome {
  enum Kind { returned, communication_error, own_failure, other_exception };

  /// Shows in a failed check how the rank ended.
  friend std::ostream& operator<<(std::ostream& out, Kind kind) {
    constexpr std::array<char const*, 4> words{"it returns", "CommunicationError", "the failure of its own",
                                               "another exception"};
    return out << words[static_cast<std::size_t>(kind)];
  }

  Kind kind = returned;
  std::string text{};  ///< what() of the exception, else the complaint of the case; empty if there is none
  annulus::Rank rank = annulus::CommunicationError::unknown;
  annulus::Rank neighbour = annulus::CommunicationError::unknown;
};

/// Outcome of a case on the ranks of this process: all of them if ranks are threads, one if they are processes.
struct CaseOutcome {
  std::map<annulus::Rank, RankOutcome> ranks;
  bool ran_here = true;
  /// The kind of exception that the runner threw.
  RankOutcome::Kind escaped = RankOutcome::returned;
};

inline RankOutcome outcome_of_current_exception() {
  try {
    throw;
  } catch (annulus::CommunicationError const& error) {
    return {RankOutcome::communication_error, error.what(), error.rank(), error.neighbour()};
  } catch (OwnFailure const& error) {
    return {RankOutcome::own_failure, error.what()};
  } catch (std::exception const& error) {
    return {RankOutcome::other_exception, error.what()};
  }
}

/// Runs body(ring) on each of `ranks` ranks; body returns a complaint, or an empty string. Uses only CHECK, so that
/// ranks that are processes stay in step whatever fails.
template <class RunRing, class Body>
CaseOutcome play(RunRing& run, int ranks, Body body) {
  CaseOutcome outcome;
  std::mutex mutex;
  auto const note = [&](annulus::Rank rank, RankOutcome const& one) {
    std::lock_guard const lock(mutex);
    outcome.ranks[rank] = one;
  };
  auto const function = [&](auto& ring) -> std::string {
    annulus::Rank const rank = ring.rank();
    RankQueue<typename std::remove_reference_t<decltype(ring)>::memory_space> const queue;
    try {
      std::string const complaint = body(ring);
      note(rank, {RankOutcome::returned, complaint});
      return complaint;
    } catch (...) {
      note(rank, outcome_of_current_exception());
      throw;
    }
  };
  auto const start = std::chrono::steady_clock::now();
  try {
    using Result = decltype(run(ranks, function));
    if constexpr (std::is_same_v<Result, CaseOutcome>)
      outcome = run(ranks, function);
    else if constexpr (std::is_same_v<Result, bool>)
      outcome.ran_here = run(ranks, function);
    else
      run(ranks, function);
  } catch (...) {
    outcome.escaped = outcome_of_current_exception().kind;
  }
  // A communicator that notices a failure only by its deadline fails the test.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
  CHECK(outcome.ranks.empty() == !outcome.ran_here);
  return outcome;
}

inline void check_all_returned(CaseOutcome const& outcome) {
  CHECK(outcome.escaped == RankOutcome::returned);
  for (auto const& [rank, one] : outcome.ranks) {
    INFO("rank " << rank);
    CHECK(one.kind == RankOutcome::returned);
    CHECK(one.text == "");
  }
}

/// Empty if the text has these words; else what is asked and what is seen.
inline std::string complaint_without(std::string_view words, std::string const& text) {
  if (text.find(words) != std::string::npos) return {};
  return annulus::detail::message_of("what() must contain '", words, "'; it is: ", text);
}

/// Empty if rank `rank` has thrown a CommunicationError as communicator.hpp asks for; else what is wrong.
inline std::string complaint_unless_lost(annulus::Rank rank, RankOutcome const& one) {
  if (one.kind != RankOutcome::communication_error)
    return annulus::detail::message_of("the rank must throw CommunicationError; seen: ", one.kind, " ", one.text);
  if (one.rank != rank)
    return annulus::detail::message_of("CommunicationError::rank() must be ", rank, ", which throws it; it is ",
                                       one.rank);
  return complaint_without("rank ", one.text);
}

/// Empty if the error of a rank blames `culprit`; else what is asked and what is seen.
inline std::string complaint_unless_blamed(annulus::Rank culprit, RankOutcome const& one) {
  if (one.neighbour == culprit) return {};
  return annulus::detail::message_of("CommunicationError::neighbour() must be ", culprit, ", which failed; it is ",
                                     one.neighbour);
}

/// Checks that every rank except `except` has thrown a CommunicationError.
inline void check_others_lost_the_ring(CaseOutcome const& outcome, annulus::Rank except) {
  for (auto const& [rank, one] : outcome.ranks) {
    if (rank == except) continue;
    INFO("rank " << rank << ": " << one.text);
    CHECK(complaint_unless_lost(rank, one) == "");
  }
}

constexpr std::array<annulus::Channel, 3> all_channels = {annulus::Channel::prefetched, annulus::Channel::carried,
                                                          annulus::Channel::reduction};

/// Bytes of a message above the eager limit: it is not sent before the receiver asks for it.
constexpr std::size_t large = 300'000;

/// Byte `index` of a message; messages that could be confused with each other differ in nearly all bytes.
inline std::byte pattern(annulus::Rank sender, int message, std::size_t run, std::size_t index) {
  std::uint64_t x = static_cast<std::uint64_t>(sender) * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(message) * 0xbf58476d1ce4e5b9u + run * 0x94d049bb133111ebu + index;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::byte>((x ^ (x >> 29)) >> 11);
}

inline void fill_pattern(std::span<std::byte> bytes, annulus::Rank sender, int message, std::size_t run) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(sender, message, run, i);
}

/// Empty if the bytes are those of fill_pattern.
inline std::string complaint_about(std::span<std::byte const> bytes, annulus::Rank sender, int message,
                                   std::size_t run) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != pattern(sender, message, run, i))
      return annulus::detail::message_of("message ", message, " from rank ", sender, ": byte ", i, " of run ", run,
                                         " is wrong");
  return {};
}

/// Buffers of one shift: the outgoing runs are filled, the incoming ones come from rank() - hop. `length(sender, run)`:
/// the length in bytes, on which sender and receiver agree.
template <class Ring>
class ShiftBuffers {
  using Bytes = SpaceBytes<typename Ring::memory_space>;

 public:
  template <class Length>
  ShiftBuffers(Ring const& ring, int hop, int message, std::size_t runs, Length length)
      : from_(annulus::ring_neighbour(ring.rank(), -hop, ring.size())), hop_(hop), message_(message) {
    for (std::size_t p = 0; p < runs; ++p) {
      auto const leaving = out_.emplace_back(length(ring.rank(), p)).bytes();
      fill_pattern(leaving, ring.rank(), message, p);
      out_runs_.push_back(leaving);
      in_runs_.push_back(in_.emplace_back(length(from_, p)).bytes());
    }
  }

  /// One run of the same length on all ranks.
  ShiftBuffers(Ring const& ring, int hop, int message, std::size_t bytes)
      : ShiftBuffers(ring, hop, message, 1, [&](annulus::Rank, std::size_t) { return bytes; }) {}

  auto start(Ring& ring, annulus::Channel channel) { return start_shift(ring, channel, hop_, out_runs_, in_runs_); }

  /// Empty if the incoming bytes are right; else what is wrong.
  std::string complaint() const {
    std::string all;
    for (std::size_t p = 0; p < in_runs_.size(); ++p) all += complaint_about(in_runs_[p], from_, message_, p);
    return all;
  }

  void overwrite_incoming(std::byte value) {
    for (auto const& run : in_runs_) std::fill(run.begin(), run.end(), value);
  }
  void overwrite_outgoing(std::byte value) {
    for (auto& run : out_) std::fill(run.bytes().begin(), run.bytes().end(), value);
  }
  bool incoming_is(std::byte value) const {
    for (auto const& run : in_runs_)
      if (!std::all_of(run.begin(), run.end(), [&](std::byte b) { return b == value; })) return false;
    return true;
  }

 private:
  annulus::Rank from_;
  int hop_, message_;
  std::vector<Bytes> out_, in_;
  std::vector<std::span<std::byte const>> out_runs_;
  std::vector<std::span<std::byte>> in_runs_;
};

}  // namespace annulus_test
