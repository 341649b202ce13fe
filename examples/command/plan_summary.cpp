#include "plan_summary.hpp"

#include <annulus/schedule/print_plan.hpp>
#include <array>
#include <cstdio>
#include <iomanip>
#include <string>
#include <vector>

#include "picture/svg.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::Pass;
using annulus::Rank;
using annulus::RingPlan;

/// With more classes of steps than this, the later ones share a line.
constexpr std::size_t most_printed_classes = 6;

/// Three significant digits, without an exponent where that is short.
std::string number(double value) {
  if (value >= 100) return annulus_picture::fixed(value, 0);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

/// A quantity of each rank, in a unit: one value if all ranks have the same three digits, else "least to most".
struct Quantity {
  double unit;
  char const* name;

  std::string operator()(double value) const { return number(value / unit) + ' ' + name; }
  std::string operator()(Index value) const { return (*this)(static_cast<double>(value)); }
  std::string operator()(Spread const& spread) const {
    std::string const least = number(static_cast<double>(spread.least) / unit), most = (*this)(spread.most);
    return most == least + ' ' + name ? most : least + " to " + most;
  }
};

constexpr Quantity mebibytes{1 << 20, "MiB"};
constexpr Quantity teraflops{1e12 / 2, "TFLOP"};  // of multiply-adds

std::string range_text(Index first, Index last) {
  return first == last ? std::to_string(first) : std::to_string(first) + '-' + std::to_string(last);
}

void print_answer(std::ostream& out, RingPlan const& plan, std::string const& advice) {
  Spread sent, memory, operands, results, buffers, work;
  double total_work = 0;
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    sent.include(plan.bytes_sent(rank));
    memory.include(plan.memory_bytes(rank));
    operands.include(plan.operand_bytes(rank));
    results.include(plan.result_bytes(rank));
    buffers.include(plan.peak_buffer_bytes(rank));
    work.include(plan.multiply_adds(rank));
    total_work += static_cast<double>(plan.multiply_adds(rank));
  }
  out << "each rank\n  sends      " << mebibytes(sent) << "; all ranks together " << mebibytes(plan.total_bytes_sent());
  if (Index const bytes = annulus::bytes_in_groups(plan); bytes > 0)
    out << ", of them within groups " << mebibytes(bytes);
  if (plan.lanes().size() > 1)
    out << ", of them forwards " << mebibytes(plan.lanes()[0].total_bytes_sent()) << " and backwards "
        << mebibytes(plan.lanes()[1].total_bytes_sent());
  out << "\n  needs      " << mebibytes(memory) << ": operands " << mebibytes(operands) << ", results "
      << mebibytes(results) << ", buffers " << mebibytes(buffers) << "\n  computes   " << teraflops(work)
      << "; all ranks together " << teraflops(total_work) << "\nbalance: ";
  if (!advice.empty())
    out << advice;
  else
    out << annulus_picture::fixed(plan.imbalance(), 2) << ", the largest work of a rank over the mean";
  out << '\n';
}

/// Consecutive steps whose values are printed alike: what a rank computes and sends.
struct PrintedSteps {
  int first, last;
  std::array<std::string, 3> cells;
};

/// The first classes, and one for all others if they are many.
std::vector<PrintedSteps> printed_steps(RingPlan const& plan) {
  std::vector<EqualSteps> classes = summary_of_steps(plan);
  while (classes.size() > most_printed_classes) {
    EqualSteps const last = classes.back();
    classes.pop_back();
    classes.back().include(last);
  }
  std::vector<PrintedSteps> printed;
  for (EqualSteps const& steps : classes) {
    std::array const cells{teraflops(steps.multiply_adds), mebibytes(steps.prefetched_bytes),
                           mebibytes(steps.carried_bytes)};
    if (!printed.empty() && printed.back().cells == cells)
      printed.back().last = steps.last;
    else
      printed.push_back({steps.first, steps.last, cells});
  }
  return printed;
}

/// "2 steps of 8, as no rank needs the rows of the rank 2-7 places back"
void print_number_of_steps(std::ostream& out, RingPlan const& plan) {
  std::vector<int> const skipped = annulus::offsets_without_step(plan);
  out << plan.steps() << (plan.steps() == 1 ? " step" : " steps");
  if (!skipped.empty())
    out << " of " << plan.ranks() / plan.groups().size() << ", as no rank needs the rows of the rank";
  for (std::size_t i = 0; i < skipped.size();) {
    std::size_t end = i + 1;
    while (end < skipped.size() && skipped[end] == skipped[end - 1] + 1) ++end;
    out << (i == 0 ? " " : ", ") << range_text(skipped[i], skipped[end - 1]);
    i = end;
  }
  if (!skipped.empty()) out << " places back";
}

void print_steps(std::ostream& out, RingPlan const& plan) {
  auto const print = [&](std::string const& steps, std::array<std::string, 3> const& cells) {
    out << "  " << std::left << std::setw(7) << steps << std::right;
    for (std::string const& cell : cells) out << std::setw(26) << cell;
    out << '\n';
  };
  print_number_of_steps(out, plan);
  out << "; in each, a rank\n";
  print("", {"computes", "sends operands", "sends results"});
  for (PrintedSteps const& steps : printed_steps(plan)) print(range_text(steps.first, steps.last), steps.cells);
}

}  // namespace

std::vector<EqualSteps> summary_of_steps(RingPlan const& plan) {
  std::vector<EqualSteps> summary;
  for (int i = 0; i < plan.steps(); ++i) {
    EqualSteps steps{i, i};
    for (Rank rank = 0; rank < plan.ranks(); ++rank) {
      annulus::PlannedStep const& step = plan.step(rank, i);
      steps.multiply_adds.include(step.multiply_adds);
      steps.prefetched_bytes.include(step.prefetched_bytes);
      steps.carried_bytes.include(step.carried_bytes);
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

void print_plan_summary(std::ostream& out, RingPlan const& plan, std::string const& advice) {
  annulus::print_plan_heading(out, plan);
  print_answer(out, plan, advice);
  print_steps(out, plan);
}

}  // namespace annulus_command
