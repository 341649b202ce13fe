#pragma once
// Exchanges between the ranks of a group, and their buffers, which are kept between calls.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/ring/observer.hpp"
#include "annulus/ring/payload.hpp"
#include "annulus/schedule/group_exchange.hpp"

namespace annulus::detail {

/// Rows of one rank in a payload.
template <class Payload>
struct PayloadRows {
  Payload const* payload = nullptr;
  RowRange rows{};

  /// View [batch, rows, heads, dim] of a part.
  template <class T>
  auto view(Part part) const {
    return payload->template view<T>(part).slice(axis::sequence, rows.begin, rows.size());
  }
  /// View [batch, heads, rows] of a row statistic.
  template <class T>
  auto statistics(Part part) const {
    return payload->template statistics<T>(part).slice(2, rows.begin, rows.size());
  }
  /// View [batch, rows] of the document ids.
  auto document_ids() const { return payload->template document_ids<std::int32_t>().slice(1, rows.begin, rows.size()); }
};

/// Buffers of one rank, by kind of rows.
template <Communicator C, class B>
class GroupBuffers {
 public:
  using Payload = detail::Payload<typename B::memory_space>;
  using Rows = PayloadRows<Payload>;

  /// Allocates what the exchange before the rings needs.
  void reserve_before(B& backend, GroupExchange const& exchange, Rank rank) {
    for (GroupRows kind : GroupExchange::all) {
      hold(backend, gathered(kind), exchange.before(kind), exchange.gathered_rows(kind, rank));
      hold(backend, staging(kind), exchange.before(kind), exchange.leaving_rows(kind, rank));
      hold(backend, results(kind), exchange.after(kind), exchange.result_rows(kind, rank));
    }
  }
  /// Allocates what the exchange after the rings needs, in place of what has left before them.
  void reserve_after(B& backend, GroupExchange const& exchange, Rank rank) {
    for (GroupRows kind : GroupExchange::all)
      hold(backend, staging(kind), exchange.after(kind), exchange.arriving_rows(kind, rank));
  }

  Payload& gathered(GroupRows kind) { return gathered_[static_cast<std::size_t>(kind)]; }  ///< operands of all members
  Payload& results(GroupRows kind) { return results_[static_cast<std::size_t>(kind)]; }    ///< for all members
  /// Rows for each other member before the rings, then from each.
  Payload& staging(GroupRows kind) { return staging_[static_cast<std::size_t>(kind)]; }

  /// Bytes of all buffers.
  Index bytes() const {
    Index sum = 0;
    for (auto const* list : {&gathered_, &results_, &staging_})
      for (Payload const& payload : *list) sum += payload.buffer_bytes();
    return sum;
  }

  /// Rows that a pending transfer brings, and their checksum.
  struct Arriving {
    Rows rows;
    Channel channel;
    Rank sender;
    std::uint64_t seed;
    Index slot;
  };
  // Empty between exchanges; kept for their storage.
  std::vector<TransferOf<C>> transfers;
  std::vector<Arriving> arriving;

 private:
  static void hold(B& backend, Payload& payload, PayloadLayout const& layout, Index rows) {
    payload.reserve(backend, layout, layout.empty() ? 0 : rows);
    payload.hold({0, layout.empty() ? 0 : rows});
  }

  std::array<Payload, 3> gathered_, results_, staging_;
};

}  // namespace annulus::detail
