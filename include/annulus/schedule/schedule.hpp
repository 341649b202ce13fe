#pragma once
// Schedules: the ways in which the rows of other ranks reach a rank, and the element type in which they travel.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "annulus/core/index.hpp"

namespace annulus {

/// How rows travel. All schedules compute the same attention. Groups are consecutive ranks,
/// PlanRequest::ranks_per_group of them.
enum class Schedule : std::uint8_t {
  ring,  ///< all rows travel one way around the ring
  /// Rows of half of the kv heads travel one way around the ring, those of the other half the other way; with an odd
  /// number of kv heads, half of the rows of each rank, with all heads.
  both_directions,
  /// Ranks of a group exchange heads for rows: each then has a share of the heads, of all rows of the group, which
  /// travel around the ring of the ranks with the same place in their groups (USP: Fang and Zhao, arXiv 2405.07719).
  two_levels,
  /// Ranks of a group gather the queries of the group, past which keys travel around the ring of the ranks with the
  /// same place in their groups; partial results are joined in the group (Mesh-Attention, arXiv 2512.20968). With
  /// Rotation::queries the sides are exchanged.
  tiles,
  all_gather,  ///< every rank gathers the keys of all ranks; gradients of keys are summed at their owners
  automatic,   ///< the one that best_plan chooses (schedule/best_plan.hpp)
  /// Rows travel round the ring of each group, then one group on, and so forth: links between groups are used by all
  /// ranks at once, once in as many steps as a group has ranks (LoongTrain: Gu et al., arXiv 2406.18485). By messages,
  /// also between ranks that share memory.
  double_ring,
};

/// Element type of q, k, v and dout on their way between ranks.
enum class Wire : std::uint8_t {
  as_stored,  ///< their own
  bfloat16,   ///< float and double operands are rounded to bfloat16
  half,       ///< they are rounded to half: larger values than 65504 become infinite
};

constexpr std::string_view name_of(Wire wire) {
  constexpr std::string_view names[] = {"as_stored", "bfloat16", "half"};
  return names[static_cast<std::size_t>(wire)];
}

/// True for a schedule in which groups of ranks exchange rows.
constexpr bool has_groups(Schedule schedule) {
  return schedule == Schedule::two_levels || schedule == Schedule::tiles || schedule == Schedule::all_gather;
}

namespace detail {

/// True if both directions halve the kv heads, false if they halve the rows that travel.
constexpr bool halves_kv_heads(Index kv_heads) { return kv_heads > 0 && kv_heads % 2 == 0; }

}  // namespace detail

constexpr std::string_view name_of(Schedule schedule) {
  constexpr std::string_view names[] = {"ring",       "both_directions", "two_levels", "tiles",
                                        "all_gather", "automatic",       "double_ring"};
  return names[static_cast<std::size_t>(schedule)];
}

/// The name in words, for messages that serve every interface: "two levels".
inline std::string words_of(Schedule schedule) {
  std::string words(name_of(schedule));
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

}  // namespace annulus
