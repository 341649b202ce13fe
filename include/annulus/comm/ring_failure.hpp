#pragma once
// Why a ring was closed: the errors of all rings over several ranks, and the report of a timeout, which says which rank
// waits for which, and which one holds up the ring.

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/error.hpp"

namespace annulus::detail {

/// What a rank waits for, as errors name it.
using Awaited = FixedText<60>;

inline Awaited awaited_window(Channel channel) noexcept { return Awaited(name_of(channel), " shared-memory window"); }
inline Awaited awaited_reader(Channel channel) noexcept { return Awaited("reader of a ", name_of(channel), " window"); }
inline Awaited awaited_release() noexcept { return Awaited("release of a shared-memory window"); }

/// Status of a rank, as sent to its peers. Trivially copyable.
struct RankStatus {
  enum class Kind {
    silent,   ///< it has not answered
    waiting,  ///< for `peer`
    busy,     ///< it does not wait for another rank
    returned  ///< it has left the ring
  };

  Kind kind = Kind::silent;
  Rank peer = CommunicationError::unknown;  ///< that it waits for; unknown unless kind is waiting
  std::uint64_t progress = 0;               ///< of its flight record
  FixedText<110> text{};                    ///< what it waits for, or what it did last

  /// Of a rank that waits for `peer` and `what`, or is busy where `peer` is unknown.
  static RankStatus of(Rank peer, std::string_view what, FlightRecord const& record) {
    CallPosition const position = record.position();
    RankStatus status{Kind::waiting, peer, record.progress(), {}};
    if (peer == CommunicationError::unknown) {
      status.kind = Kind::busy;
      status.text.add("last seen ", static_cast<long>(1000 * record.seconds_since_last_step()), " ms ago, ",
                      position.text().view());
    } else {
      status.text.add(what);
      if (position.call > 0) status.text.add("; ", position.text().view());
    }
    return status;
  }
};

/// What is wrong with bytes that have arrived.
using Complaint = FixedText<200>;

inline Complaint wrong_position(CallPosition const& expected, CallPosition const& got) noexcept {
  return Complaint("expected rows of ", expected.text().view(), ", got rows of ", got.text().view());
}
inline Complaint wrong_run_count(std::uint64_t expected, std::uint64_t got) noexcept {
  return Complaint("expected ", expected, " runs, got ", got);
}
inline Complaint wrong_run_length(std::size_t run, std::uint64_t expected, std::integral auto got) noexcept {
  return Complaint("expected ", expected, " bytes in run ", run, ", got ", got);
}

/// Why the ring was closed: culprit and message for all ranks. Trivially copyable, so closing a ring allocates nothing.
struct RingFailure {
  Rank culprit = CommunicationError::unknown;
  FixedText<1000> text{};

  static RingFailure abandoned(Rank rank, std::string_view reason, Rank culprit) noexcept {
    return {culprit, FixedText<1000>("rank ", rank, " left the ring: ", reason)};
  }
  /// `peer`, for which `rank` waits, has returned.
  static RingFailure returned(Rank rank, Rank peer, std::string_view what) noexcept {
    return {peer, FixedText<1000>("rank ", rank, " waits for rank ", peer, ", which has returned (", what, ")")};
  }
  /// The process of `peer`, for which `rank` waits, has died.
  static RingFailure died(Rank rank, Rank peer, std::string_view what) noexcept {
    return {peer, FixedText<1000>("rank ", rank, " waits for rank ", peer, ", whose process has died (", what, ")")};
  }
  static RingFailure late(Rank rank, Rank peer, std::string_view what, std::chrono::milliseconds timeout) noexcept {
    return {peer, FixedText<1000>("rank ", rank, " waited ", timeout.count(), " ms for rank ", peer, " (", what, ")")};
  }
  /// `rank` has received wrong bytes from `from`.
  static RingFailure received(Rank rank, std::string_view complaint, Rank from, Rank culprit) noexcept {
    return {culprit, FixedText<1000>("rank ", rank, ": ", complaint, " from rank ", from)};
  }

  /// The error as `rank` sees it.
  [[noreturn]] void raise(Rank rank) const {
    throw CommunicationError(text.c_str(), rank, CommunicationError::unknown, culprit);
  }
};

/// The first of so many ranks for which matches(rank) holds; unknown if there is none.
template <class Matches>
Rank first_rank(int ranks, Matches matches) {
  for (Rank rank = 0; rank < ranks; ++rank)
    if (matches(rank)) return rank;
  return CommunicationError::unknown;
}

/// Why an all-gather fails on `rank`: a record differs in length from its own. None if all are alike. length(rank): in
/// bytes. A rank whose length differs from all others is to blame; of two ranks, each blames the other.
template <class Length>
std::optional<RingFailure> unequal_records(Rank rank, int ranks, Length length) noexcept {
  std::size_t const own = length(rank);
  int alike = 0;
  for (Rank other = 0; other < ranks; ++other) alike += length(other) == own ? 1 : 0;
  for (Rank other = 0; other < ranks; ++other)
    if (std::size_t const got = length(other); got != own) {
      Complaint const complaint("expected a record of ", own, " bytes, got ", got);
      return RingFailure::received(rank, complaint.view(), other, alike == 1 && ranks > 2 ? rank : other);
    }
  return std::nullopt;
}

/// The report of rank `first`, whose wait has exceeded `timeout`. statuses[r] is the status of rank r; that of `first`
/// is waiting, and every peer is a rank of the ring. The culprit is the last rank of the chain of waits that starts at
/// `first`. If that chain is a cycle, a message is lost or still on its way: the culprit is the rank for which the rank
/// with the least progress waits.
inline RingFailure hang_report(std::span<RankStatus const> statuses, Rank first, std::chrono::milliseconds timeout) {
  auto const status = [&](Rank rank) -> RankStatus const& { return statuses[static_cast<std::size_t>(rank)]; };
  auto const waits = [&](Rank rank) { return status(rank).kind == RankStatus::Kind::waiting; };
  auto const describe = [&](auto& text, Rank rank) {
    RankStatus const& one = status(rank);
    text.add("; rank ", rank);
    switch (one.kind) {
      case RankStatus::Kind::silent: text.add(" does not answer: it computes, has stopped or is lost"); break;
      case RankStatus::Kind::waiting: text.add(" waits for rank ", one.peer, " (", one.text.view(), ")"); break;
      case RankStatus::Kind::busy: text.add(" does not wait (", one.text.view(), ")"); break;
      case RankStatus::Kind::returned: text.add(" has returned"); break;
    }
  };
  RankStatus const& own = status(first);
  RingFailure report = RingFailure::late(first, own.peer, own.text.view(), timeout);

  constexpr std::size_t shown = 5;
  std::array<Rank, shown> chain{first};
  std::size_t length = 1, hops = 0;
  Rank last = own.peer;
  for (; waits(last) && hops < statuses.size(); ++hops) {
    if (length < shown && std::find(chain.begin(), chain.begin() + length, last) == chain.begin() + length) {
      describe(report.text, last);
      chain[length++] = last;
    }
    last = status(last).peer;
  }
  if (waits(last)) {
    Rank behind = last;
    for (Rank rank = status(last).peer; rank != last; rank = status(rank).peer)
      if (status(rank).progress < status(behind).progress) behind = rank;
    report.culprit = status(behind).peer;
    report.text.add("; these waits form a cycle, in which rank ", behind, " is behind: what rank ", report.culprit,
                    " should have sent to it has not arrived");
    return report;
  }
  report.culprit = last;
  describe(report.text, last);
  report.text.add("; rank ", last, " holds up the ring");
  std::size_t others = 0;
  for (Rank rank = 0; rank < static_cast<Rank>(statuses.size()); ++rank) {
    if (rank == last || std::find(chain.begin(), chain.begin() + length, rank) != chain.begin() + length) continue;
    if (++others <= shown) describe(report.text, rank);
  }
  if (others > shown) report.text.add("; and ", others - shown, " more ranks");
  return report;
}

}  // namespace annulus::detail
