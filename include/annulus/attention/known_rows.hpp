#pragma once
// Numbers of rows of queries and keys that a RingAttention knows from what it has scattered, and the positions of this
// rank's rows before the first plan.

#include <array>
#include <optional>
#include <vector>

#include "annulus/attention/collectives.hpp"
#include "annulus/attention/options.hpp"
#include "annulus/attention/validate.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

/// Global rows of each side that were scattered; the same on all ranks.
class KnownRows {
 public:
  /// Fixes the rows of a side. Throws ShapeError if they were others, in an earlier scatter or in the plan (nullptr: no
  /// call was made).
  void fix(Side side, Index rows, RingPlan const* plan) {
    std::optional<Index>& known = rows_[side == Side::key];
    if (plan) known = side == Side::key ? plan->global_keys() : plan->global_queries();
    check<ShapeError>(known.value_or(rows) == rows, "scatter of ", rows, side == Side::key ? " keys" : " queries",
                      "; this RingAttention has ", known.value_or(0),
                      "; accepted: as many, and {.side = annulus::Side::key} for keys");
    known = rows;
  }

  /// Global positions of this rank's rows of a side, from the query offset of the options; a side that was not
  /// scattered has as many rows as the other one. Throws Error if neither was.
  template <Communicator C>
  std::vector<Index> positions(C const& ring, Options const& options, Side side) const {
    check<Error>(rows_[0] || rows_[1],
                 "positions are known after the first scatter or call of a RingAttention; before it, "
                 "annulus::positions(ring, sharding, tokens) gives them");
    Index const queries = *(rows_[0] ? rows_[0] : rows_[1]), keys = *(rows_[1] ? rows_[1] : rows_[0]);
    if (side == Side::key) return annulus::positions(ring, options.sharding, keys, side);
    std::vector<Index> places = annulus::positions(ring, options.sharding, queries, side);
    Index const offset = query_offset_of(rules_of(options), queries, keys);
    for (Index& position : places) position += offset;
    return places;
  }

 private:
  std::array<std::optional<Index>, 2> rows_{};  ///< of queries and keys
};

}  // namespace annulus::detail
