#pragma once
// Rotation of queries past keys that stay: each rank folds its keys into the queries of every rank in turn, and sends
// the partial states straight to the ranks that own the queries.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "annulus/backend/backend.hpp"
#include "annulus/ring/state_merge.hpp"

namespace annulus::detail {

/// Extents that are equal on all ranks, and the query rows of each rank.
struct RotatedQueries {
  AttentionShape shape;
  std::span<Index const> lengths;
  bool document_ids = false;  ///< the rows have document ids

  Index rows(Rank owner) const { return lengths[static_cast<std::size_t>(owner)]; }
  StateShape state(Rank owner) const { return {shape.batch, rows(owner), shape.query_heads, shape.value_dim}; }
};

/// Query rows q [batch, rows, query_heads, head_dim], and their document ids [batch, rows]; without data: none.
template <class T, class Space>
struct QueryRows {
  TensorView<T const, 4, Space> q;
  TensorView<std::int32_t const, 2, Space> ids{};
};

/// Buffers of the rotation, reused from call to call. A step sends the queries that it works on and the states of the
/// step before.
template <Communicator C, Backend B>
class QueryRotation {
 public:
  using Space = typename B::memory_space;
  using Message = MessageBuffer<B>;

  Index bytes() const {
    Index sum = own_.size() + arriving_.size();
    for (Message const& message : queries_) sum += message.size();
    for (Message const& message : states_) sum += message.size();
    return sum;
  }

  /// fold(owner, rows, state, progress) starts adding this rank's keys to the state of the owner's queries. Returns the
  /// state of this rank's own queries over the keys of all ranks, valid until the next call; work on it may be pending.
  template <class T, class A, class Fold>
  RunningState<A, Space> run(C& ring, B& backend, RotatedQueries const& rotated, QueryRows<T, Space> const& own_rows,
                             std::uint64_t call, bool checked, Fold&& fold) {
    SynchronizeOnUnwind const synchronize(backend);
    Rank const rank = ring.rank();
    int const ranks = ring.size();
    auto const owner = [&](int step) { return ring_neighbour(rank, -step, ranks); };
    auto const extents = [&](Rank r) {
      return std::array{rotated.shape.batch, rotated.rows(r), rotated.shape.query_heads, rotated.shape.head_dim};
    };
    auto const reserve_state = [&](Message& message, Rank r) {
      message.reserve(backend, rotated.state(r).elements() * static_cast<Index>(sizeof(A)), checked);
    };
    // A message of queries: document ids, if they are given, then q.
    auto const ids_bytes = [&](Rank r) {
      return bytes_of_ids(rotated.document_ids, rotated.shape.batch * rotated.rows(r));
    };
    auto const reserve_queries = [&](Message& message, Rank r) {
      auto const e = extents(r);
      message.reserve(backend, ids_bytes(r) + e[0] * e[1] * e[2] * e[3] * static_cast<Index>(sizeof(T)), checked);
    };
    auto const q_in = [&](Message const& message, Rank r) {
      return TensorView<T, 4, Space>(reinterpret_cast<T*>(message.template data<std::byte>() + ids_bytes(r)),
                                     extents(r));
    };
    auto const ids_in = [&](Message const& message, Rank r) {
      return TensorView<std::int32_t, 2, Space>(message.template data<std::int32_t>(),
                                                {rotated.shape.batch, rotated.rows(r)});
    };
    auto const seed = [&](Channel channel, int step) { return checksum_seed(call, channel, step); };

    reserve_state(own_, rank);
    auto const own = own_.template state<A>(rotated.state(rank));
    if (ranks > 1) {
      reserve_state(arriving_, rank);
      reserve_queries(queries_[0], rank);
      backend.copy(own_rows.q, q_in(queries_[0], rank));
      if (rotated.document_ids) backend.copy(own_rows.ids, ids_in(queries_[0], rank));
      backend.synchronize();
    }
    Message *here = &queries_[0], *next = &queries_[1], *working = &states_[0], *sending = &states_[1];
    std::optional<TransferOf<C>> queries, states;
    Progress progress;
    if constexpr (ProgressingTransfer<TransferOf<C>>) {
      pending_ = {&queries, &states};
      progress = {[](void* context) {
                    auto const& pending = static_cast<QueryRotation*>(context)->pending_;
                    for (auto* transfer : pending)
                      if (*transfer) (*transfer)->progress();
                  },
                  this};
    }
    auto const merge_arrived = [&](int step) {
      if (!states) return;
      states->wait();
      states.reset();
      arriving_.require_intact(seed(Channel::carried, step), Channel::carried, rank, ring_neighbour(rank, step, ranks));
      backend.merge(own, arriving_.template state<A>(rotated.state(rank)));
      backend.synchronize();
    };
    // Abandons while the transfers exist: their destruction would notify the peers without the reason of the failure.
    or_abandon(ring, [&] {
      for (int step = 0; step < ranks; ++step)
        in_step(rank, step, [&] {
          if constexpr (CallRecordingCommunicator<C>) ring.flight_record().step(step, ranks);
          bool const last = step + 1 == ranks;
          if (!last) {
            reserve_queries(*next, owner(step + 1));
            queries.emplace(start_message(ring, Channel::prefetched, 1, here, next, seed(Channel::prefetched, step)));
          }
          if (step > 0) reserve_state(*working, owner(step));
          auto const state = step == 0 ? own : working->template state<A>(rotated.state(owner(step)));
          QueryRows<T, Space> rows = own_rows;
          if (step > 0) {
            rows.q = q_in(*here, owner(step));
            if (rotated.document_ids) rows.ids = ids_in(*here, owner(step));
          }
          backend.reset(state);
          fold(owner(step), rows, state, progress);
          backend.synchronize();
          merge_arrived(step - 1);
          if (step > 0) {
            states.emplace(
                start_message(ring, Channel::carried, ranks - step, working, &arriving_, seed(Channel::carried, step)));
            std::swap(working, sending);
          }
          if (last) return;
          queries->wait();
          queries.reset();
          next->require_intact(seed(Channel::prefetched, step), Channel::prefetched, rank,
                               ring_neighbour(rank, -1, ranks));
          std::swap(here, next);
        });
      in_step(rank, ranks - 1, [&] { merge_arrived(ranks - 1); });
    });
    return own;
  }

 private:
  std::array<Message, 2> queries_, states_;
  Message own_, arriving_;
  std::array<std::optional<TransferOf<C>>*, 2> pending_{};
};

}  // namespace annulus::detail
