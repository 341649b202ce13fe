#pragma once
// Small sums over all ranks, with the same bits on each: every rank receives the shares of all, and adds them itself.

#include <cstdint>

#include "annulus/ring/exchange.hpp"
#include "annulus/ring/pass_context.hpp"

namespace annulus::detail {

/// Sends the shares of all ranks once around the ring. `shares`: a payload with the rows of all ranks, rows_of(rank),
/// of which this rank has set its own. `call`, `first_step`: for the checksums.
template <class C, class B, class Payload, class RowsOf>
void gather_shares(RingPlan const& plan, C& communicator, B& backend, Payload const& shares,
                   PayloadLayout const& layout, RowsOf&& rows_of, std::uint64_t call, int first_step,
                   IntervalRecorder const& recorder) {
  Rank const rank = communicator.rank();
  int const ranks = communicator.size(), ahead = plan.backwards() ? -1 : 1;
  backend.synchronize();
  for (int i = 0; i + 1 < ranks; ++i) {
    RowRange const leaving = rows_of(ring_neighbour(rank, -i * ahead, ranks));
    RowRange const coming = rows_of(ring_neighbour(rank, (-i - 1) * ahead, ranks));
    std::uint64_t const seed = checksum_seed(call, Channel::reduction, first_step + i, plan.backwards());
    auto const out = shares.outgoing(leaving, seed);
    auto const in = shares.incoming(coming);
    auto const started = recorder.now();
    auto transfer = communicator.start_shift(Channel::reduction, ring_neighbour(0, ahead, ranks), out, in);
    auto const begin = recorder.now();
    transfer.wait();
    recorder.report_exchange(Channel::reduction, i, started, begin, layout, leaving.size() * layout.bytes_per_row());
    require_intact(shares, coming, seed, Payload::arriving, Channel::reduction, rank,
                   ring_neighbour(rank, -ahead, ranks));
  }
}

/// Sums the gradients of sink logits over all ranks, in the same order on each: in rank order, or (reproducible) in the
/// tree over the leaves of the queries. Returns the sum, one row. `shares`: the plan's rows of all ranks, of which this
/// rank has set its own, and a last row, which receives the sum. `call`: the number of the call, for the checksums.
template <class A, class C, class B, class Payload>
TensorView<A, 4, typename B::memory_space> sum_over_ranks(RingPlan const& plan, C& communicator, B& backend,
                                                          Payload const& shares, Part part, std::uint64_t call,
                                                          IntervalRecorder const& recorder) {
  using Row = TensorView<A, 4, typename B::memory_space>;
  auto const rows_of = [&](Rank rank) { return plan.sink_gradient_rows(rank); };
  gather_shares(plan, communicator, backend, shares, plan.sink_gradient_layout(), rows_of, call, 0, recorder);
  auto const rows = shares.template view<A>(part);
  auto const row = [&](Index r) -> Row { return rows.slice(axis::sequence, r, 1); };
  auto const add = [&](Row into, TensorView<A const, 4, typename B::memory_space> from) { backend.add(into, from); };
  Row const sum = row(plan.all_sink_gradient_rows() - 1);
  backend.clear(sum);
  if (!plan.leaves()) {
    for (Rank r = 0; r < communicator.size(); ++r) add(sum, row(r));
    return sum;
  }
  LeafGrid const& grid = plan.leaves()->grid();
  Index const leaves = grid.count(Side::query);
  auto const leaf = [&](Index index) { return row(grid.leaf(Side::query, index).place); };
  for (Index width = 1; width < leaves; width *= 2)
    for (Index begin = 0; begin + width < leaves; begin += 2 * width) add(leaf(begin), leaf(begin + width));
  if (leaves > 0) add(sum, leaf(0));
  return sum;
}

}  // namespace annulus::detail
