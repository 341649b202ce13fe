#pragma once
// Scenarios of the fault matrix.

#include <array>
#include <cstddef>
#include <tuple>
#include <vector>

#include "faults/training_run.hpp"

namespace annulus_test {

/// Deadline of scenarios whose fault is noticed only at the deadline.
constexpr std::chrono::milliseconds short_deadline{500};

inline bool ends_by_deadline(FaultKind kind) {
  return kind == FaultKind::drop || kind == FaultKind::stop || kind == FaultKind::die;
}

/// Every kind x place x rank x options that change the messages, on a ring of `ranks` ranks. counts_of(scenario): the
/// number of times that a rank reaches each place in a training step without fault; the same for all ranks.
template <class CountsOf>
std::vector<Scenario> scenarios_of(int ranks, annulus::ZeroCopy zero_copy, CountsOf&& counts_of) {
  using enum FaultKind;
  static constexpr std::array of_messages{drop, delay, stale, duplicate, truncate, flip, fail, no_memory, stop, die};
  static constexpr std::array of_work{fail, no_memory, stop, die};
  std::vector<Scenario> all;
  auto const add_all = [&](Scenario scenario, Place place, bool damages_messages = true) {
    scenario.fault.place = place;
    int const count = counts_of(scenario)[static_cast<std::size_t>(place)];
    auto const add = [&](auto const& kinds) {
      for (int number = 0; number < count; ++number)
        for (FaultKind kind : kinds)
          for (annulus::Rank culprit = 0; culprit < ranks; ++culprit) {
            if (kind == duplicate && number == 0) continue;  // there is no message before it
            // The wait that replaces a dropped record needs a channel without messages.
            if (kind == drop && place == Place::all_gather && scenario.serving) continue;
            scenario.fault = {kind, culprit, place, number};
            all.push_back(scenario);
          }
    };
    if (place == Place::compute || !damages_messages)
      add(of_work);
    else
      add(of_messages);
  };
  for (annulus::Rotation rotation : {annulus::Rotation::keys, annulus::Rotation::queries})
    for (bool reproducible : {false, true})
      for (bool checked : {true, false})
        for (Place place : {Place::prefetched, Place::carried, Place::reduction, Place::all_gather, Place::compute}) {
          Scenario const scenario{.ranks = ranks,
                                  .zero_copy = zero_copy,
                                  .rotation = rotation,
                                  .checked = checked,
                                  .reproducible = reproducible};
          add_all(scenario, place);
        }
  for (annulus::Rotation rotation : {annulus::Rotation::keys, annulus::Rotation::queries})
    for (annulus::Index kv_heads : {2, 1})  // halves of the heads, and of the rows
      for (Place place : {Place::prefetched, Place::carried, Place::reduction, Place::compute})
        add_all({.ranks = ranks,
                 .zero_copy = zero_copy,
                 .rotation = rotation,
                 .schedule = annulus::Schedule::both_directions,
                 .kv_heads = kv_heads},
                place);
  for (bool checked : {true, false})
    for (annulus::Rank culprit = 0; culprit < ranks; ++culprit)
      for (int number = 0; number < 6; ++number)
        for (FaultKind kind : {skip, leave})
          if (kind == leave || number < 3)
            all.push_back({.ranks = ranks,
                           .zero_copy = zero_copy,
                           .checked = checked,
                           .fault = {kind, culprit, Place::call, number}});
  if (zero_copy == annulus::ZeroCopy::never)
    for (annulus::MergeMethod serving : {annulus::MergeMethod::tree, annulus::MergeMethod::gather})
      for (bool checked : {true, false})
        for (Place place : {Place::prefetched, Place::carried, Place::reduction, Place::all_gather, Place::compute}) {
          // In a tree of more ranks some messages are empty, which damage cannot change.
          if (serving == annulus::MergeMethod::tree && ranks > 2 && place != Place::compute) continue;
          Scenario scenario{.ranks = ranks, .zero_copy = zero_copy, .checked = checked, .serving = serving};
          add_all(scenario, place);
          // Without checks a damaged document id can be that of another document.
          scenario.documents = true;
          if (checked) add_all(scenario, place);
        }
  using annulus::Schedule;
  using annulus::Wire;
  for (auto [schedule, group, wire] : {std::tuple{Schedule::all_gather, ranks, Wire::as_stored},
                                       {Schedule::tiles, ranks, Wire::as_stored},
                                       {Schedule::tiles, ranks, Wire::half},
                                       {Schedule::tiles, 2, Wire::as_stored},
                                       {Schedule::two_levels, 2, Wire::as_stored},
                                       {Schedule::double_ring, 2, Wire::as_stored}})
    for (bool checked : {true, false})
      for (Place place : {Place::prefetched, Place::carried, Place::reduction, Place::compute}) {
        if (ranks % group != 0) continue;
        Scenario scenario{
            .ranks = ranks,
            .zero_copy = zero_copy,
            .rotation = schedule == Schedule::all_gather ? annulus::Rotation::automatic : annulus::Rotation::keys,
            .schedule = schedule,
            .group = group,
            .kv_heads = schedule == Schedule::two_levels ? 2 : 1,
            .wire = wire,
            .checked = checked};
        // Between two of more groups, and on a double ring of them, some messages are empty, which damage cannot
        // change.
        bool const damaged = group == ranks || place == Place::reduction || place == Place::compute;
        add_all(scenario, place, damaged);
      }
  for (Scenario& scenario : all)
    if (ends_by_deadline(scenario.fault.kind)) {
      scenario.deadline = short_deadline;
      scenario.work = std::chrono::milliseconds(5);
    }
  return all;
}

/// Every `stride`-th of them.
inline std::vector<Scenario> sample_of(std::vector<Scenario> const& all, std::size_t stride) {
  std::vector<Scenario> sample;
  for (std::size_t i = 0; i < all.size(); i += stride) sample.push_back(all[i]);
  return sample;
}

}  // namespace annulus_test
