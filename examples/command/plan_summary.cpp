#include "plan_summary.hpp"

#include <algorithm>
#include <annulus/schedule/print_plan.hpp>
#include <array>
#include <string>

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::Rank;

/// With more groups of ranks of equal totals than this, only the least and the most are printed.
constexpr std::size_t most_groups_of_ranks = 64;

/// Totals of the ranks from `first` to `last`.
struct Totals {
  Rank first, last;
  std::array<Index, 3> values;  ///< multiply-adds, bytes sent, peak buffer bytes
};

std::string range_text(Index first, Index last) {
  return first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
}

template <std::size_t N>
void print_line(std::ostream& out, std::array<char const*, N> const& titles, std::array<std::string, N> const& cells) {
  for (std::size_t c = 0; c < N; ++c) annulus::detail::print_cell(out, titles[c], cells[c]);
  out << '\n';
}

template <std::size_t N>
void print_titles(std::ostream& out, std::array<char const*, N> const& titles) {
  for (char const* title : titles) annulus::detail::print_cell(out, title, title);
  out << '\n';
}

void print_steps(std::ostream& out, annulus::RingPlan const& plan) {
  static constexpr std::array titles{"steps",
                                     "least multiply-adds",
                                     "most multiply-adds",
                                     "least bytes ahead",
                                     "most bytes ahead",
                                     "least bytes behind",
                                     "most bytes behind"};
  out << "each step, least and most of any rank:\n";
  print_titles(out, titles);
  for (StepsInSummary const& steps : steps_in_summary(plan))
    print_line<titles.size()>(out, titles,
                              {range_text(steps.first, steps.last), std::to_string(steps.multiply_adds.least),
                               std::to_string(steps.multiply_adds.most), std::to_string(steps.prefetched_bytes.least),
                               std::to_string(steps.prefetched_bytes.most), std::to_string(steps.carried_bytes.least),
                               std::to_string(steps.carried_bytes.most)});
}

void print_steps_not_made(std::ostream& out, annulus::RingPlan const& plan) {
  std::vector<int> const skipped = annulus::offsets_without_step(plan);
  out << plan.steps() << (plan.steps() == 1 ? " step of " : " steps of ") << plan.ranks() << " are made";
  if (!skipped.empty()) out << "; not made, since no rank needs the rows of the rank that many places back:";
  for (std::size_t i = 0; i < skipped.size();) {
    std::size_t end = i + 1;
    while (end < skipped.size() && skipped[end] == skipped[end - 1] + 1) ++end;
    out << ' ' << range_text(skipped[i], skipped[end - 1]);
    i = end;
  }
  out << '\n';
}

void print_totals(std::ostream& out, annulus::RingPlan const& plan) {
  std::vector<Totals> groups;
  std::array<Spread, 3> spreads;
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    Totals const totals{rank, rank, {plan.multiply_adds(rank), plan.bytes_sent(rank), plan.peak_buffer_bytes(rank)}};
    for (std::size_t c = 0; c < spreads.size(); ++c)
      spreads[c] =
          rank == 0 ? Spread{totals.values[c], totals.values[c]}
                    : Spread{std::min(spreads[c].least, totals.values[c]), std::max(spreads[c].most, totals.values[c])};
    if (!groups.empty() && groups.back().values == totals.values)
      groups.back().last = rank;
    else
      groups.push_back(totals);
  }
  static constexpr std::array titles{"ranks", "multiply-adds", "bytes sent", "peak buffer bytes"};
  print_titles(out, titles);
  if (groups.size() <= most_groups_of_ranks) {
    for (Totals const& group : groups)
      print_line<titles.size()>(out, titles,
                                {range_text(group.first, group.last), std::to_string(group.values[0]),
                                 std::to_string(group.values[1]), std::to_string(group.values[2])});
  } else {
    for (auto const& [name, side] : {std::pair{"least", &Spread::least}, {"most", &Spread::most}})
      print_line<titles.size()>(
          out, titles,
          {name, std::to_string(spreads[0].*side), std::to_string(spreads[1].*side), std::to_string(spreads[2].*side)});
  }
  out << "bytes sent by all ranks: " << plan.total_bytes_sent()
      << "\nlargest work of a rank over the mean: " << plan.imbalance() << '\n';
}

}  // namespace

std::vector<StepsInSummary> steps_in_summary(annulus::RingPlan const& plan) {
  std::vector<StepsInSummary> summary;
  auto const include = [](Spread& spread, Index value, bool first) {
    spread.least = first ? value : std::min(spread.least, value);
    spread.most = first ? value : std::max(spread.most, value);
  };
  for (int i = 0; i < plan.steps(); ++i) {
    StepsInSummary steps{i, i, {}, {}, {}};
    for (Rank rank = 0; rank < plan.ranks(); ++rank) {
      annulus::PlannedStep const& step = plan.step(rank, i);
      include(steps.multiply_adds, step.multiply_adds, rank == 0);
      include(steps.prefetched_bytes, step.prefetched_bytes, rank == 0);
      include(steps.carried_bytes, step.carried_bytes, rank == 0);
    }
    bool const alike = !summary.empty() && summary.back().multiply_adds == steps.multiply_adds &&
                       summary.back().prefetched_bytes == steps.prefetched_bytes &&
                       summary.back().carried_bytes == steps.carried_bytes;
    if (alike)
      summary.back().last = i;
    else
      summary.push_back(steps);
  }
  return summary;
}

void print_plan_summary(std::ostream& out, annulus::RingPlan const& plan) {
  annulus::detail::print_heading(out, plan);
  print_steps(out, plan);
  print_steps_not_made(out, plan);
  print_totals(out, plan);
}

}  // namespace annulus_command
