#pragma once
// Pictures of plans: which keys a query sees, who works when, and how much memory a rank needs as the sequence grows.

#include <annulus/schedule/ring_plan.hpp>
#include <ostream>
#include <vector>

#include "call.hpp"

namespace annulus_command {

/// Most ranks that draw_balance shows.
inline constexpr int most_drawn_ranks = 64;

/// Draws a diagram of rank x step for each plan: the darker a cell, the more multiply-adds the rank has in the step;
/// and next to it the work of each rank, relative to the mean. Throws InputError for more than most_drawn_ranks ranks.
void draw_balance(std::ostream& stream, std::vector<annulus::RingPlan> const& plans);

/// Most queries or keys that draw_mask shows.
inline constexpr int most_drawn_tokens = 96;

/// Draws which keys each query sees, one cell a pair: rows are queries and columns keys in their order in the sequence,
/// and colours are the ranks that own them. Throws InputError for more than most_drawn_tokens queries or keys, or 8
/// ranks.
void draw_mask(std::ostream& stream, annulus::RingPlan const& plan);

/// Draws the memory of a rank against the number of tokens, up to that of the call, in powers of two: on one rank, on
/// an eighth of the ranks where there are more than eight, and on all; and the longest sequence of each that fits in 80
/// GiB. Of `pass`, as planned. Throws InputError if the call has unequal numbers of queries and keys, or fewer than two
/// powers of two fit.
void draw_memory(std::ostream& stream, Call const& call, annulus::Pass pass, int ranks);

}  // namespace annulus_command
