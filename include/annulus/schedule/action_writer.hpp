#pragma once
// Action writer: appends the actions of one lane to the list of a rank.

#include <cstdint>
#include <utility>

#include "annulus/schedule/action.hpp"

namespace annulus::detail {

/// Writes actions of one lane to a list.
class ActionWriter {
 public:
  ActionWriter(ActionList& list, int lane) : list_(&list), lane_(static_cast<std::uint8_t>(lane)) {}

  /// Step and phase of the actions that follow.
  void at(int step, Phase phase) {
    step_ = step;
    phase_ = phase;
  }
  void put(Action::What const& what) { list_->actions.push_back({step_, phase_, lane_, what}); }
  /// Numbers for `count` exchanges that may be pending at the same time.
  int exchanges(int count) { return std::exchange(list_->exchanges, list_->exchanges + count); }

 private:
  ActionList* list_;
  std::uint8_t lane_;
  int step_ = Action::before_steps;
  Phase phase_{};
};

/// Rows counted from `first`.
constexpr RowRange from_first(RowRange rows, Index first) { return {rows.begin - first, rows.end - first}; }
/// All of `count` rows.
constexpr RowRange all_rows(Index count) { return {0, count}; }

}  // namespace annulus::detail
