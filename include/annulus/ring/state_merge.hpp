#pragma once
// Merge of partial states over the ranks: every rank ends with the state of all keys, to the same bits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/core/digest.hpp"
#include "annulus/core/short_list.hpp"
#include "annulus/ring/executor.hpp"
#include "annulus/schedule/merge_plan.hpp"

namespace annulus::detail {

/// Calls function(); adds the step to a CommunicationError that it throws.
template <class Function>
void in_step(Rank rank, int step, Function&& function) {
  try {
    function();
  } catch (CommunicationError const& error) {
    throw CommunicationError(message_of("step ", step, " of the ring: ", error.what()), rank, step, error.neighbour());
  }
}

/// Extents of the state of query rows: accumulator [batch, queries, heads, dim], maximum and sum [batch, heads,
/// queries].
struct StateShape {
  Index batch = 0, queries = 0, heads = 0, dim = 0;

  Index elements() const { return batch * queries * heads * (dim + 2); }
};

/// Bytes of `rows` document ids, if they are given, at the front of a message, with padding so that elements of any
/// type may follow.
inline Index bytes_of_ids(bool given, Index rows) {
  constexpr Index alignment = alignof(double);
  return given ? ceil_divide(rows * static_cast<Index>(sizeof(std::int32_t)), alignment) * alignment : 0;
}

/// Consecutive bytes of one message, followed by its checksum where calls are checked; the storage is reused.
template <Backend B>
class MessageBuffer {
 public:
  using Space = typename B::memory_space;

  void reserve(B& backend, Index bytes, bool checked) {
    bytes_ = bytes;
    checked_ = checked && std::same_as<Space, HostMemory>;
    Index const needed = padded(bytes) + checksum_bytes;
    if (!buffer_ || buffer_->size() < needed) {
      buffer_.reset();
      buffer_.emplace(backend.allocate(needed));
    }
  }
  Index size() const { return buffer_ ? buffer_->size() : 0; }  ///< of the storage

  template <class T>
  T* data() const {
    return reinterpret_cast<T*>(buffer_->data());
  }
  /// The state stored in the buffer.
  template <class A>
  RunningState<A, Space> state(StateShape const& s) const {
    A* const accumulator = data<A>();
    A* const maximum = accumulator + s.batch * s.queries * s.heads * s.dim;
    std::array<Index, 3> const statistics{s.batch, s.heads, s.queries};
    return {{accumulator, {s.batch, s.queries, s.heads, s.dim}},
            {maximum, statistics},
            {maximum + s.batch * s.heads * s.queries, statistics}};
  }

  /// The runs of a message: the bytes and, where calls are checked, their checksum, which depends on `seed`.
  ShortList<std::span<std::byte const>, 2> outgoing(std::uint64_t seed) const {
    if (!checked_) return {bytes()};
    std::uint64_t const sum = digest_of(bytes(), seed);
    std::memcpy(checksum().data(), &sum, sizeof sum);
    return {bytes(), checksum()};
  }
  /// The runs that receive such a message.
  ShortList<std::span<std::byte>, 2> incoming() const {
    if (!checked_) return {bytes()};
    return {bytes(), checksum()};
  }

  /// Throws CommunicationError if the bytes that have arrived do not match their checksum.
  void require_intact(std::uint64_t seed, Channel channel, Rank rank, Rank sender) const {
    if (!checked_) return;
    std::uint64_t sum = 0;
    std::memcpy(&sum, checksum().data(), sizeof sum);
    if (sum != digest_of(bytes(), seed))
      throw CommunicationError(message_of("rank ", rank, ": ", name_of(channel), " rows from rank ", sender,
                                          " do not match the checksum that rank ", sender, " computed"),
                               rank, CommunicationError::unknown, sender);
  }

 private:
  static constexpr Index checksum_bytes = sizeof(std::uint64_t);
  static Index padded(Index bytes) { return ceil_divide(bytes, checksum_bytes) * checksum_bytes; }

  std::span<std::byte> bytes() const { return {buffer_->data(), static_cast<std::size_t>(bytes_)}; }
  std::span<std::byte> checksum() const {
    return {buffer_->data() + padded(bytes_), static_cast<std::size_t>(checksum_bytes)};
  }

  std::optional<typename B::Buffer> buffer_;
  Index bytes_ = 0;
  bool checked_ = false;
};

/// Sends `out`, if given, to the rank `hop` places on, and receives `in`, if given, from the rank `hop` places back.
/// The result is waited for by the caller, who then calls in->require_intact().
template <Communicator C, Backend B>
TransferOf<C> start_message(C& ring, Channel channel, int hop, MessageBuffer<B> const* out, MessageBuffer<B> const* in,
                            std::uint64_t seed) {
  ShortList<std::span<std::byte const>, 2> leaving;
  ShortList<std::span<std::byte>, 2> arriving;
  if (out) leaving = out->outgoing(seed);
  if (in) arriving = in->incoming();
  return ring.start_shift(channel, hop, leaving, arriving);
}

/// Calls exchange() as step `step` of `steps` of a call. An error of the communicator names the step, and abandons the
/// ring while the transfers that the caller holds exist: their destruction would notify the peers without the reason.
template <Communicator C, class Exchange>
void exchange_in_step(C& ring, int step, int steps, Exchange&& exchange) {
  if constexpr (CallRecordingCommunicator<C>) ring.flight_record().step(step, steps);
  in_step(ring.rank(), step, [&] { or_abandon(ring, exchange); });
}

/// Merges the states of all ranks by a plan. Storage is reused from call to call.
template <Communicator C, Backend B>
class StateMerge {
 public:
  using Message = MessageBuffer<B>;

  void reserve(C const& ring, B& backend, MergePlan const& plan, bool checked) {
    plan_ = plan;
    auto const states = static_cast<std::size_t>(plan.method() == MergeMethod::gather ? ring.size() : 2);
    if (messages_.size() < states) messages_.resize(states);
    for (std::size_t s = 0; s < states; ++s) messages_[s].reserve(backend, plan.state_bytes(), checked);
    transfers_.reserve(static_cast<std::size_t>(ring.size()));
    own_ = plan.method() == MergeMethod::gather ? static_cast<std::size_t>(ring.rank()) : 0;
  }
  Index bytes() const {
    Index sum = 0;
    for (Message const& message : messages_) sum += message.size();
    return sum;
  }

  /// Buffer of this rank's state.
  Message& own() { return messages_[own_]; }

  /// The merged state of all ranks, after this rank's own has been written and the backend synchronized. Valid until
  /// the next call; work on it may be pending.
  template <class A>
  RunningState<A, typename B::memory_space> run(C& ring, B& backend, StateShape const& shape, std::uint64_t call) {
    if (plan_.method() == MergeMethod::gather)
      gather<A>(ring, backend, shape, call);
    else
      tree<A>(ring, backend, shape, call);
    return own().template state<A>(shape);
  }

 private:
  template <class A>
  void gather(C& ring, B& backend, StateShape const& shape, std::uint64_t call) {
    Rank const rank = ring.rank();
    int const ranks = ring.size();
    // States of several ranks arrive in one round: their checksums must differ by the sender.
    auto const seed = [&](Rank from) { return checksum_seed(call, Channel::reduction, from); };
    auto const sender = [&](int hop) { return ring_neighbour(rank, -hop, ranks); };
    auto const message = [&](int hop) { return &messages_[static_cast<std::size_t>(sender(hop))]; };
    // The list is kept for its storage; transfers that an error leaves pending must not be.
    struct Clear {
      std::vector<TransferOf<C>>& transfers;
      ~Clear() { transfers.clear(); }
    } const clear{transfers_};
    exchange_in_step(ring, 0, 1, [&] {
      // All transfers send the same bytes, which must not change once the first has begun.
      auto const leaving = own().outgoing(seed(rank));
      for (int hop = 1; hop < ranks; ++hop)
        transfers_.push_back(ring.start_shift(Channel::reduction, hop, leaving, message(hop)->incoming()));
      for (int hop = 1; hop < ranks; ++hop) {
        transfers_[static_cast<std::size_t>(hop) - 1].wait();
        message(hop)->require_intact(seed(sender(hop)), Channel::reduction, rank, sender(hop));
      }
    });
    auto const state = [&](Rank r) { return messages_[static_cast<std::size_t>(r)].template state<A>(shape); };
    plan_.for_each_merge([&](Rank into, Rank from) { backend.merge(state(into), state(from)); });
    own_ = 0;
  }

  template <class A>
  void tree(C& ring, B& backend, StateShape const& shape, std::uint64_t call) {
    Rank const rank = ring.rank();
    int const ranks = ring.size(), paired = plan_.paired(), excess = plan_.excess();
    bool const is_paired = rank < paired;
    int round = 0;
    Message *own = &messages_[0], *other = &messages_[1];
    // One round: `hops` are those of the shifts, of which each rank sends and receives one at most.
    struct Shift {
      int hop;
      bool sends, receives;
    };
    auto const exchange = [&](Shift first, std::optional<Shift> second = {}) {
      std::uint64_t const seed = checksum_seed(call, Channel::reduction, round);
      auto const start = [&](Shift const& shift) {
        return start_message(ring, Channel::reduction, shift.hop, shift.sends ? own : nullptr,
                             shift.receives ? other : nullptr, seed);
      };
      auto const finish = [&](Shift const& shift, TransferOf<C>& transfer) {
        transfer.wait();
        if (shift.receives)
          other->require_intact(seed, Channel::reduction, rank, ring_neighbour(rank, -shift.hop, ranks));
      };
      std::optional<TransferOf<C>> there, back;
      exchange_in_step(ring, round, plan_.rounds(), [&] {
        there.emplace(start(first));
        if (second) back.emplace(start(*second));
        finish(first, *there);
        if (second) finish(*second, *back);
      });
      ++round;
    };
    auto const merge = [&](bool own_first) {
      if (!own_first) std::swap(own, other);
      backend.merge(own->template state<A>(shape), other->template state<A>(shape));
      backend.synchronize();
    };
    if (excess > 0) {
      exchange({ranks - paired, !is_paired, rank < excess});
      if (rank < excess) merge(true);
    }
    for (int distance = 1; distance < paired; distance *= 2) {
      bool const lower = is_paired && (rank & distance) == 0, upper = is_paired && !lower;
      if (2 * distance == ranks)
        exchange({distance, true, true});
      else
        exchange({distance, lower, upper}, Shift{ranks - distance, upper, lower});
      if (is_paired) merge(lower);
    }
    if (excess > 0) {
      exchange({paired, rank < excess, !is_paired});
      if (!is_paired) std::swap(own, other);
    }
    own_ = own == &messages_[0] ? 0 : 1;
  }

  MergePlan plan_;
  std::vector<Message> messages_;
  std::vector<TransferOf<C>> transfers_;
  std::size_t own_ = 0;
};

}  // namespace annulus::detail
