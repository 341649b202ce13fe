#pragma once
// Check for NaN and infinite results, made if Options::require_finite is set.

#include <cmath>
#include <concepts>
#include <cstddef>
#include <string_view>

#include "annulus/core/check.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/tensor/axis_order.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// Origin of the checked results: the rank and step that computed them, and the rank that owns the rows.
struct ResultPlace {
  Rank rank;
  int step;
  Rank owner;

  ResultPlace of_own_rows() const { return {rank, step, rank}; }
};

/// Throws Error for the first row of `values`, [batch, rows, heads, dim], that holds a NaN or an infinity. `first_row`:
/// index of row 0 of `values` among the owner's local rows.
template <class T>
void require_finite(std::string_view name, TensorView<T, 4> values, Index first_row, ResultPlace const& place) {
  for (Index b = 0; b < values.extent(axis::batch); ++b)
    for (Index i = 0; i < values.extent(axis::sequence); ++i)
      for (Index h = 0; h < values.extent(axis::heads); ++h)
        for (Index d = 0; d < values.extent(axis::dim); ++d)
          if (auto const value = static_cast<double>(values(b, i, h, d)); !std::isfinite(value))
            throw Error(message_of("rank ", place.rank, ", step ", place.step, " of the ring: ", name, " of rank ",
                                   place.owner, " has the value ", value, " in batch ", b, ", row ", first_row + i,
                                   ", head ", h, ", dim ", d, "; require_finite accepts finite values only"));
}

/// As above for row statistics, [batch, heads, rows]; accepts -inf, the lse and maximum of a row that has seen no key.
template <class T>
void require_finite(std::string_view name, TensorView<T, 3> values, Index first_row, ResultPlace const& place) {
  for (Index b = 0; b < values.extent(0); ++b)
    for (Index i = 0; i < values.extent(2); ++i)
      for (Index h = 0; h < values.extent(1); ++h)
        if (auto const value = static_cast<double>(values(b, h, i)); !std::isfinite(value) && !(value < 0))
          throw Error(message_of("rank ", place.rank, ", step ", place.step, " of the ring: ", name, " of rank ",
                                 place.owner, " has the value ", value, " in batch ", b, ", row ", first_row + i,
                                 ", head ", h, "; require_finite accepts finite values, and -inf for a row that sees no key"));
}

}  // namespace annulus::detail
