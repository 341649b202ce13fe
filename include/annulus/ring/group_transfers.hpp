#pragma once
// Transfers of rows between the ranks of a group, all at once: by shifts of the whole ring, which do not concern the
// ranks whose peer is in another group.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/short_list.hpp"
#include "annulus/ring/exchange.hpp"
#include "annulus/ring/ring_buffers.hpp"

namespace annulus::detail {

/// Transfers of one exchange, of up to one payload for each kind of rows. Destroyed with transfers pending, it makes
/// the peers' waits fail.
template <Communicator C, Backend B>
class GroupTransfers {
 public:
  using Payload = typename RingBuffers<C, B>::Payload;
  using Rows = PayloadRows<Payload>;

  GroupTransfers(RingPlan const& plan, C& communicator, RingBuffers<C, B>& buffers)
      : exchange_(plan.group_exchange()), groups_(plan.groups()), communicator_(communicator), buffers_(buffers) {}
  GroupTransfers(GroupTransfers const&) = delete;
  GroupTransfers& operator=(GroupTransfers const&) = delete;
  ~GroupTransfers() {
    buffers_.group.transfers.clear();
    buffers_.group.arriving.clear();
  }

  /// This rank's rows in a buffer of operands or results of the whole group.
  Rows own_rows(GroupRows kind, Payload const& all) const { return {&all, member_rows(kind, place())}; }
  /// Rows in the staging buffer that leave for, or have arrived from, another member of the group.
  Rows staged_rows(GroupRows kind, int member) const {
    Index const rows = groups_.own_rows(side_of(kind), rank()), begin = (member < place() ? member : member - 1) * rows;
    return {&buffers_.group.staging(kind), {begin, begin + rows}};
  }
  /// After an exchange of results: those of this rank's rows from a member of the group, itself included.
  Rows results_from(GroupRows kind, Payload const& all, int member) const {
    return member == place() ? own_rows(kind, all) : staged_rows(kind, member);
  }

  /// Starts to exchange the operands of a kind: this rank's rows for all members or, where heads are split, those
  /// staged for each.
  void start_before(GroupRows kind) {
    Payload const& all = buffers_.group.gathered(kind);
    auto const arriving = [&](int from) { return Rows{&all, member_rows(kind, from)}; };
    if (groups_.splits_heads())
      return start(
          Channel::prefetched, kind, exchange_.before(kind),
          [&](int to) { return outgoing(staged_rows(kind, to), Channel::prefetched, kind, to); }, arriving);
    // The same bytes for all, which must not change once the first transfer has begun.
    OutgoingRuns runs;
    if (!exchange_.before(kind).empty()) runs = outgoing(own_rows(kind, all), Channel::prefetched, kind, place());
    start(
        Channel::prefetched, kind, exchange_.before(kind), [&](int) { return runs; }, arriving);
  }
  /// Starts to exchange the results of a kind, which `all` holds for all members.
  void start_after(GroupRows kind, Payload const& all) {
    start(
        Channel::carried, kind, exchange_.after(kind),
        [&](int to) {
          return outgoing({&all, member_rows(kind, to)}, Channel::carried, kind, to);
        },
        [&](int from) { return staged_rows(kind, from); });
  }

  /// Waits for all rows. Throws CommunicationError for a lost or late peer and for corrupted rows.
  void finish() {
    std::size_t transfer = 0;
    for (Started const& one : started_) {
      auto const begin = buffers_.recorder.now();
      for (; transfer < one.transfers; ++transfer) buffers_.group.transfers[transfer].wait();
      buffers_.recorder.report_exchange(one.channel, -1, one.when, begin, *one.layout, one.bytes);
    }
    buffers_.group.transfers.clear();
    started_.clear();
    for (Arriving const& one : buffers_.group.arriving)
      require_intact(*one.rows.payload, one.rows.rows, one.seed, one.slot, one.channel, rank(), one.sender);
    buffers_.group.arriving.clear();
  }

 private:
  using Arriving = typename GroupBuffers<C, B>::Arriving;
  using OutgoingRuns = typename Payload::template PartList<std::span<std::byte const>>;
  using IncomingRuns = typename Payload::template PartList<std::span<std::byte>>;

  struct Started {
    Channel channel{};
    PayloadLayout const* layout = nullptr;
    Index bytes = 0;
    IntervalRecorder::Time when{};
    std::size_t transfers = 0;  ///< number of transfers that have been started with it and before
  };

  Rank rank() const { return communicator_.rank(); }
  int place() const { return groups_.place(rank()); }
  RowRange member_rows(GroupRows kind, int member) const { return groups_.member_rows(side_of(kind), rank(), member); }
  /// Rows of the three kinds leave a rank at the same time, between the steps of the ring.
  std::uint64_t seed(Channel channel, GroupRows kind, Rank sender) const {
    constexpr int outside_of_steps = 1 << 20;
    return checksum_seed(buffers_.call, channel, (1 + static_cast<int>(kind)) * outside_of_steps + sender);
  }

  /// The runs of rows that leave, with a checksum in a slot.
  OutgoingRuns outgoing(Rows const& rows, Channel channel, GroupRows kind, int slot) const {
    return rows.payload->outgoing(rows.rows, seed(channel, kind, rank()), slot);
  }

  /// leaving(member): the runs that are sent to it; arriving(member): the rows that receive what it sends.
  template <class Leaving, class Incoming>
  void start(Channel channel, GroupRows kind, PayloadLayout const& layout, Leaving const& leaving,
             Incoming const& arriving) {
    if (layout.empty()) return;
    int const members = groups_.size(), ranks = communicator_.size();
    Started started{channel, &layout, 0, buffers_.recorder.now(), 0};
    // A rank sends to the member `distance` places on, which is before it in the group if it passes the end.
    auto const shift = [&](int hop, int distance, bool passes_end, bool always) {
      int const to = place() + distance, from = place() - distance;
      OutgoingRuns out;
      IncomingRuns in;
      if (always || (to >= members) == passes_end) {
        out = leaving(to % members);
        for (std::size_t p = 0; p < layout.parts.size(); ++p) started.bytes += static_cast<Index>(out[p].size());
      }
      if (always || (from < 0) == passes_end) {
        int const member = (from + members) % members;
        Rows const rows = arriving(member);
        Rank const sender = groups_.member(rank(), member);
        in = rows.payload->incoming(rows.rows, member);
        buffers_.group.arriving.push_back({rows, channel, sender, seed(channel, kind, sender), member});
      }
      buffers_.group.transfers.push_back(communicator_.start_shift(channel, hop, out, in));
    };
    for (int distance = 1; distance < members; ++distance) {
      shift(distance, distance, false, members == ranks);
      if (members < ranks) shift(ranks - members + distance, distance, true, false);
    }
    started.transfers = buffers_.group.transfers.size();
    started_.push_back(started);
  }

  GroupExchange const& exchange_;
  RankGroups const& groups_;
  C& communicator_;
  RingBuffers<C, B>& buffers_;
  ShortList<Started, 3> started_;
};

}  // namespace annulus::detail
