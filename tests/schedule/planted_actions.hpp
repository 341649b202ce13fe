#pragma once
// Lists of actions of all ranks to plant faults in.

#include <algorithm>
#include <functional>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/schedule/action.hpp"
#include "support/catch.hpp"

namespace annulus_test {

using annulus::Action;
using annulus::ActionList;
using annulus::Rank;
using annulus::Slot;
using annulus::SlotKind;

class PlantedActions {
 public:
  explicit PlantedActions(std::vector<ActionList> lists) : lists_(std::move(lists)) {}

  std::vector<ActionList> const& lists() const { return lists_; }
  std::vector<Action>& actions(Rank rank) { return lists_[static_cast<std::size_t>(rank)].actions; }
  Slot& slot(Rank rank, SlotKind kind, int number = 0) {
    auto& slots = lists_[static_cast<std::size_t>(rank)].slots;
    return *std::find_if(slots.begin(), slots.end(),
                         [&](Slot const& slot) { return slot.kind == kind && slot.number == number; });
  }

  /// The n-th action of a kind for which `suits` holds.
  template <class What>
  std::vector<Action>::iterator find(Rank rank, int n = 0, std::function<bool(What const&)> suits = {}) {
    auto& all = actions(rank);
    for (auto action = all.begin(); action != all.end(); ++action)
      if (auto const* what = std::get_if<What>(&action->what); what && (!suits || suits(*what)) && n-- == 0)
        return action;
    FAIL("there is no such action");
    return all.end();
  }
  template <class What>
  What& what(Rank rank, int n = 0, std::function<bool(What const&)> suits = {}) {
    return std::get<What>(find<What>(rank, n, std::move(suits))->what);
  }
  template <class What>
  void drop(Rank rank, int n = 0, std::function<bool(What const&)> suits = {}) {
    actions(rank).erase(find<What>(rank, n, std::move(suits)));
  }
  template <class What>
  void repeat(Rank rank, int n = 0) {
    auto const place = find<What>(rank, n);
    Action const again = *place;
    actions(rank).insert(place, again);
  }
  /// Puts an action before the n-th of a kind, in its step.
  template <class What>
  void put_before(Rank rank, Action::What const& what, int n = 0) {
    auto const place = find<What>(rank, n);
    Action action = *place;
    action.what = what;
    actions(rank).insert(place, action);
  }

 private:
  std::vector<ActionList> lists_;
};

}  // namespace annulus_test
