#pragma once
// Bytes of a plan: what a rank sends, and the buffers that it needs.

#include <algorithm>
#include <array>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE Index RingPlan::prefetched_rows(Rank rank) const {
  if (request_.zero_copy) return step(rank, 0).sent.size();
  Index rows = 0;
  for (int i = 0; i + 1 < steps(); ++i)
    rows = std::max({rows, step(rank, i).sent.size(), step(rank, i + 1).held.size()});
  return rows;
}

ANNULUS_INLINE std::array<Index, 4> RingPlan::carried_rows(Rank rank) const {
  if (carried_.empty()) return {};
  Index const own = leaves_ ? leaves_->slot_rows(rank, detail::LeafSums::rotating) : rotating_rows(rank).size();
  if (steps() == 1) return {own, 0, 0, 0};
  Index fresh = 0, arriving = 0;
  for (int i = 0; i < steps(); ++i) {
    fresh = std::max(fresh, step(rank, i).held.size() * (direct_ && i == 0 ? 0 : 1));
    arriving = std::max(arriving, step(rank, i).arriving.size());
  }
  int const departures = direct_ ? steps() - 1 : steps();
  if (request_.zero_copy) arriving = departures > 2 ? fresh : 0;
  return {direct_ ? own : 0, fresh, departures > 1 ? fresh : 0, arriving};
}

ANNULUS_INLINE Index RingPlan::bytes_sent(Rank rank) const {
  Index bytes = 0;
  for (RingPlan const& lane : lanes_) bytes += lane.bytes_sent(rank);
  if (!lanes_.empty()) return bytes;
  for (int i = 0; i < steps(); ++i) bytes += step(rank, i).prefetched_bytes + step(rank, i).carried_bytes;
  if (shares_buffers()) return bytes;
  if (request_.pass == Pass::backward)
    // All shares but those of the next rank pass through this one.
    bytes += (all_sink_gradient_rows() - 1 - sink_gradient_rows(wrap(rank + (backwards_ ? -1 : 1))).size()) *
             sink_gradient_layout().bytes_per_row();
  bytes += joint_gradients().bytes_sent();
  return bytes + exchange_.bytes_sent(rank);
}

ANNULUS_INLINE Index RingPlan::peak_buffer_bytes(Rank rank) const { return detail::slot_bytes(*this, rank); }

ANNULUS_INLINE Index RingPlan::total_bytes_sent() const {
  Index sum = 0;
  for (Rank r = 0; r < ranks(); ++r) sum += bytes_sent(r);
  return sum;
}

#endif

}  // namespace annulus
