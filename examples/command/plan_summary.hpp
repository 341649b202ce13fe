#pragma once
// Summary of a plan in `annulus plan`: what a rank sends, needs and computes, the balance, and the classes of its
// steps.

#include <algorithm>
#include <annulus/schedule/ring_plan.hpp>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

namespace annulus_command {

/// Least and largest value over the ranks.
struct Spread {
  annulus::Index least = std::numeric_limits<annulus::Index>::max(), most = std::numeric_limits<annulus::Index>::min();

  void include(annulus::Index value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  void include(Spread const& other) {
    least = std::min(least, other.least);
    most = std::max(most, other.most);
  }
  bool operator==(Spread const&) const = default;
};

/// Consecutive steps with equal entries. Each Spread is the least and the most over the ranks, per step.
struct EqualSteps {
  int first, last;
  Spread multiply_adds{}, prefetched_bytes{}, carried_bytes{};

  void include(EqualSteps const& later) {
    last = later.last;
    multiply_adds.include(later.multiply_adds);
    prefetched_bytes.include(later.prefetched_bytes);
    carried_bytes.include(later.carried_bytes);
  }
};

/// The steps of a plan, in order.
std::vector<EqualSteps> summary_of_steps(annulus::RingPlan const& plan);

/// Prints the problem, what a rank sends, needs and computes, the balance, and one line for each class of equal
/// steps; of many classes the last line has the least and the most. advice: of a better balance; empty if there is
/// none.
void print_plan_summary(std::ostream& out, annulus::RingPlan const& plan, std::string const& advice);

}  // namespace annulus_command
