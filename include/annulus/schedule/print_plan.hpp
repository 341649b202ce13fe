#pragma once
// Text form of a ring plan: the steps of every rank, and their cost.

#include <algorithm>
#include <array>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/mask/tile.hpp"
#include "annulus/schedule/rank_groups.hpp"
#include "annulus/schedule/ring_plan.hpp"

#if defined(ANNULUS_DEFINITIONS)
#include <iomanip>
#endif

namespace annulus {

/// Number of tiles of one step by coverage. Tiles without visible pairs are not counted.
struct TileCounts {
  Index full = 0;      ///< every pair is visible
  Index band = 0;      ///< a band of pairs is visible
  Index ranges = 0;    ///< one range of keys per query is visible
  Index elements = 0;  ///< each pair must be tested
};

/// Counts the tiles of one step of a rank.
inline TileCounts count_tiles(RingPlan const& plan, Rank rank, int step) {
  std::array<Index, 5> counts{};  // by Coverage
  for (Tile const& tile : plan.tiles(rank, step)) ++counts[static_cast<std::size_t>(tile.coverage)];
  auto const of = [&](Coverage coverage) { return counts[static_cast<std::size_t>(coverage)]; };
  return {of(Coverage::full), of(Coverage::band), of(Coverage::ranges), of(Coverage::elements)};
}

/// Distances from a rank back to an owner for which the plan has no step, because no rank needs the rows of the rank at
/// that distance. Together with the offsets of the plan they are 0 .. ranks - 1, in steps of the size of a group.
inline std::vector<int> offsets_without_step(RingPlan const& plan) {
  std::vector<bool> made(static_cast<std::size_t>(plan.ranks()), false);
  for (int step = 0; step < plan.steps(); ++step) made[static_cast<std::size_t>(plan.offset(step))] = true;
  std::vector<int> skipped;
  for (int offset = 0; offset < plan.ranks(); offset += plan.groups().size())
    if (!made[static_cast<std::size_t>(offset)]) skipped.push_back(offset);
  return skipped;
}

/// Bytes that all ranks send to other ranks of their groups before the first step and after the last one.
inline Index bytes_in_groups(RingPlan const& plan) {
  Index bytes = 0;
  for (Rank rank = 0; rank < plan.ranks(); ++rank) bytes += plan.transport().bytes_in_group(rank);
  return bytes;
}

/// Number of rows whose results are sent after the compute of a step; 0 if the pass carries nothing.
inline Index carried_rows_sent(RingPlan const& plan, Rank rank, int step) {
  return plan.transport().carried.empty() ? 0 : plan.step(rank, step).carried.size();
}

/// Writes the first lines of print_plan: the problem that the plan is for.
void print_plan_heading(std::ostream& out, RingPlan const& plan);

/// Writes the plan: the problem, a table of steps for each rank, the omitted steps, and per rank the work, the bytes
/// sent, and the bytes of its operands, results and buffers, and of all three. Columns of a step: the owner of the rows
/// worked on, tiles by coverage, multiply-adds, and rows and bytes sent ahead of the compute (prefetched) and after it
/// (carried).
void print_plan(std::ostream& out, RingPlan const& plan);

#if defined(ANNULUS_DEFINITIONS)

namespace detail {

/// Says that a schedule with groups has the bytes of a ring, and which groups the ranks and heads admit.
inline void print_no_groups(std::ostream& out, RingPlan const& plan) {
  PlanRequest request = plan.request();
  request.ranks_per_group = 0;
  out << message_of("  ", words_of(request.schedule), ": groups of 1 rank, which is a ring of all; accepted on ",
                    plan.ranks(), " ranks with ", request.shape.query_heads, " query heads and ",
                    request.shape.kv_heads, " kv heads: groups of ", group_sizes(request), "\n");
}

}  // namespace detail

ANNULUS_INLINE void print_plan_heading(std::ostream& out, RingPlan const& plan) {
  PlanRequest const& request = plan.request();
  AttentionShape const& shape = request.shape;
  Mask const& mask = request.rules.mask;
  out << (request.pass == Pass::forward ? "forward" : "backward") << " pass over " << plan.ranks()
      << (plan.ranks() == 1 ? " rank, " : " ranks, ") << request.sharding.name() << " sharding, "
      << name_of(plan.rotation()) << " travel" << (plan.lanes().size() > 1 ? " in both directions" : "") << "\n";
  if (plan.groups().size() > 1)
    out << "  " << words_of(request.schedule) << ": groups of " << plan.groups().size() << " ranks, "
        << plan.ranks() / plan.groups().size() << " on each ring between groups\n";
  else if (has_groups(request.schedule) && plan.ranks() > 1)
    detail::print_no_groups(out, plan);
  if (request.schedule == Schedule::double_ring)
    out << "  double ring: rings of " << request.ranks_per_group << " ranks, and a ring of "
        << plan.ranks() / request.ranks_per_group << " such groups\n";
  out << "  " << plan.global_queries() << " queries, " << plan.global_keys() << " keys, batch " << shape.batch << ", "
      << shape.query_heads << " query heads, " << shape.kv_heads << " kv heads, head_dim " << shape.head_dim
      << ", value_dim " << shape.value_dim << ", " << request.element_bytes << " bytes an element";
  if (request.has_wire()) out << ", " << name_of(request.wire) << " on the wire";
  out << "\n  mask:";
  if (mask == full() && !request.rules.block_mask) out << " none";
  if (mask.causal) out << " causal";
  auto const side = [](Index reach) { return reach < unbounded ? std::to_string(reach) : std::string("unbounded"); };
  if (mask.window.bounded())
    out << " window(" << side(mask.window.reach_left()) << ", " << side(mask.window.reach_right()) << ")";
  if (mask.sink_tokens > 0) out << " sink_tokens(" << mask.sink_tokens << ")";
  if (mask.chunk > 0) out << " chunk(" << mask.chunk << ")";
  if (BlockMask const& blocks = request.rules.block_mask)
    out << " blocks(" << blocks.query_block() << " x " << blocks.key_block() << ")";
  if (!request.documents.empty()) out << ", " << request.documents.size() << " documents";
  if (Index const offset = request.rules.query_offset.value_or(0)) out << ", query_offset " << offset;
  if (request.rules.reproducible)
    out << "\n  reproducible: leaves of " << request.rules.reproducible_leaf
        << " positions, partial results sent for a row: "
        << (plan.transport().carried.empty() ? 0 : plan.transport().leaves->nodes_sent());
  out << '\n';
}

namespace detail {

inline std::string_view text_of(std::string_view title) { return title; }
/// The work of a plan saturates.
inline std::string text_of(Index count) {
  return count == largest_index ? message_of("more than ", count) : std::to_string(count);
}

/// Writes a line of values, right-aligned under the titles of their columns, with two spaces before each column.
template <class Value, std::size_t Columns>
void print_line(std::ostream& out, std::array<std::string_view, Columns> const& titles,
                std::array<Value, Columns> const& values) {
  for (std::size_t c = 0; c < Columns; ++c)
    out << "  " << std::setw(std::max(8, static_cast<int>(titles[c].size()))) << text_of(values[c]);
  out << '\n';
}

inline std::string name_of_lane(RingPlan const& lane, Rank rank) {
  bool const halves_rows = lane.transport().halves_rows();
  RowRange const half = halves_rows ? lane.rotating_rows(rank) : lane.kv_heads();
  std::string_view const name = halves_rows ? name_of(lane.rotation()) : "kv heads";
  std::string const which =
      half.empty() ? message_of("no ", name) : message_of(name, " ", half.begin, " to ", half.end - 1);
  return message_of(", ", which, lane.transport().backwards ? " backwards" : " forwards");
}

inline void print_rank(std::ostream& out, RingPlan const& plan, Rank rank, std::string const& lane) {
  static constexpr std::array<std::string_view, 11> titles{"step",        "owner",       "full",          "band",
                                                           "ranges",      "elements",    "multiply-adds", "rows ahead",
                                                           "bytes ahead", "rows behind", "bytes behind"};
  out << "rank " << rank << ": " << plan.local_queries(rank) << " queries, " << plan.local_keys(rank) << " keys" << lane
      << '\n';
  print_line(out, titles, titles);
  for (int i = 0; i < plan.steps(); ++i) {
    PlannedStep const& step = plan.step(rank, i);
    TileCounts const tiles = count_tiles(plan, rank, i);
    print_line<Index>(out, titles,
                      {i, step.owner, tiles.full, tiles.band, tiles.ranges, tiles.elements, step.multiply_adds,
                       step.sent.size(), step.prefetched_bytes, carried_rows_sent(plan, rank, i), step.carried_bytes});
  }
}

inline void print_steps_not_made(std::ostream& out, RingPlan const& plan) {
  std::vector<int> const skipped = offsets_without_step(plan);
  out << plan.steps() << (plan.steps() == 1 ? " step" : " steps") << " of " << plan.ranks() / plan.groups().size()
      << (plan.steps() == 1 ? " is made" : " are made");
  if (!skipped.empty()) out << "; not made, since no rank needs the rows of the rank that many places back:";
  for (int offset : skipped) out << ' ' << offset;
  out << '\n';
}

inline void print_totals(std::ostream& out, RingPlan const& plan) {
  static constexpr std::array<std::string_view, 7> titles{
      "rank", "multiply-adds", "bytes sent", "operand bytes", "result bytes", "peak buffer bytes", "bytes needed"};
  print_line(out, titles, titles);
  for (Rank rank = 0; rank < plan.ranks(); ++rank)
    print_line<Index>(out, titles,
                      {rank, plan.multiply_adds(rank), plan.bytes_sent(rank), plan.operand_bytes(rank),
                       plan.result_bytes(rank), plan.peak_buffer_bytes(rank), plan.memory_bytes(rank)});
  out << "bytes sent by all ranks: " << plan.total_bytes_sent();
  if (Index const bytes = bytes_in_groups(plan); bytes > 0) out << ", of them within groups: " << bytes;
  if (plan.lanes().size() > 1)
    out << ", of which forwards " << plan.lanes()[0].total_bytes_sent() << " and backwards "
        << plan.lanes()[1].total_bytes_sent();
  out << "\nlargest work of a rank over the mean: " << plan.imbalance()
      << "\nthe same if ranks wait for each other in every step: " << plan.step_imbalance() << '\n';
}

}  // namespace detail

ANNULUS_INLINE void print_plan(std::ostream& out, RingPlan const& plan) {
  print_plan_heading(out, plan);
  for (Rank rank = 0; rank < plan.ranks(); ++rank)
    for (RingPlan const& lane : plan.lanes())
      detail::print_rank(out, lane, rank, plan.lanes().size() > 1 ? detail::name_of_lane(lane, rank) : "");
  detail::print_steps_not_made(out, plan);
  detail::print_totals(out, plan);
}

#endif

}  // namespace annulus
