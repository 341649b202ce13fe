#pragma once
// Checker of calls on a cache: runs the lists of cache_actions.hpp on the machine of check_plan.hpp, and proves the
// same of their exchanges, slots and sums. Each query row must be worked on by the pages of every rank exactly once
// before its rank finishes it once (decode: with the merges of its plan, so that all ranks have the same bits), and
// each appended row must be written once, by the rank that holds its page.

#include <cstddef>
#include <span>
#include <variant>
#include <vector>

#include "annulus/core/function_ref.hpp"
#include "annulus/schedule/check/slot_machine.hpp"
#include "annulus/schedule/merge_plan.hpp"

namespace annulus::detail::checker {

/// The lists of one call by all ranks. Arguments are those of the lists; one expect_ before find_fault().
class CacheChecker : public SlotMachine {
 public:
  CacheChecker(PlanRequest const& request, std::vector<ActionList> const& lists)
      : SlotMachine(request, lists), queries_(lists.size()), moving_(lists.size() * lists.size()) {
    for (Rank rank = 0; rank < ranks(); ++rank) expected_.add({RowName::key, 0, rank});
  }

  /// Positions follow the ranks.
  void expect_prefill(std::span<Index const> lengths) {
    for (rank_ = 0; rank_ < ranks(); ++rank_) expect_queries(at(lengths, rank_));
  }
  void expect_decode(Index queries, MergePlan const& merge) {
    merge_ = &merge;
    std::vector<std::uint64_t> orders;
    for (rank_ = 0; rank_ < ranks(); ++rank_) {
      positions_ = 0;
      expect_queries(queries);
      orders.push_back(Seen::order_of_leaf(rank_));
    }
    if (!has_order()) return;
    merge.for_each_merge(
        [&](Rank into, Rank from) { at(orders, into) = Seen::order_of(at(orders, into), at(orders, from)); });
    expected_.order = orders[0];
  }
  /// Positions follow the ranks that pass the rows, then those that hold them.
  void expect_append(FunctionRef<Index(Rank, Rank)> moving) {
    for (Rank source = 0; source < ranks(); ++source)
      for (rank_ = 0; rank_ < ranks(); ++rank_) {
        moving_of(source, rank_) = positions(moving(source, rank_));
        if (source != rank_) expect_results(names_of(RowName::key, 0, moving_of(source, rank_)));
      }
  }

  using SlotMachine::operator();
  void operator()(Work const& work) {
    Rank const owner = work.queries.owner;
    require(work.pairs == WorkPairs::cached && 0 <= owner && owner < ranks(), "no work on a cache");
    RowNames const names = names_of(RowName::query, 0, at(queries_, owner));
    require_count(static_cast<std::size_t>(work.queries.rows.size()), names.size());
    require_operands(GroupRows::queries, work.queries, names);
    Seen seen{.order = has_order() ? Seen::order_of_leaf(rank_) : 0};
    seen.add({RowName::key, 0, rank_});
    add(work.query_sums, Part::accumulator, names, std::vector(names.size(), seen), work.opens_queries,
        work.closes_queries);
  }
  /// Of partial results over leaves, the first one stands for all.
  void operator()(Copy const& copy) {
    SlotMachine::operator()(copy);
    for (int node = 1; node < slot(copy.into).nodes; ++node)
      SlotMachine::operator()(Clear{{copy.into.slot, copy.into.rows, node}});
  }
  void operator()(Join const& join) {
    for (int node = 0; node < slot(join.from).nodes; ++node)
      SlotMachine::operator()(Join{join.into, {join.from.slot, join.from.rows, node}});
  }
  void operator()(Finish const& finish) {
    auto const from = rows_of(finish.from);
    RowNames const names = names_of(RowName::query, 0, at(queries_, rank_), finish.rows);
    require_count(from.size(), names.size());
    for (std::size_t i = 0; i < from.size(); ++i) from[i]->finish(names[i], expected_);
    count_results(names);
  }
  void operator()(Write const& write) {
    write_results(write.from, Part::k, names_of(RowName::key, 0, moving_of(rank_ - action().step - 1, rank_)));
  }
  template <class Other>
  void operator()(Other const&) {
    require(false, "no action of a call on a cache");
  }

 private:
  void perform_action() override { std::visit(*this, action().what); }
  /// The rows that are packed for another rank follow from the step.
  RowNames operands(GroupRows kind, Part, RowRange rows) override {
    if (kind == GroupRows::queries) return names_of(RowName::query, 0, at(queries_, rank_), rows);
    return names_of(RowName::key, 0, moving_of(rank_, rank_ + action().step + 1), rows);
  }
  void require_end() override {
    SlotMachine::require_end();
    if (merge_) require_planned("sends ", here().bytes, " bytes", merge_->bytes_sent(rank_));
  }

  /// The merges of decode are those of its plan. Leaves are joined in the order of their tree, whoever has them.
  bool has_order() const { return merge_ && !request_.rules.reproducible; }

  std::vector<Index> positions(Index count) {
    std::vector<Index> list;
    while (std::ssize(list) < count) list.push_back(positions_++);
    return list;
  }
  void expect_queries(Index count) {
    at(queries_, rank_) = positions(count);
    expect_results(names_of(RowName::query, 0, at(queries_, rank_)));
  }
  std::vector<Index>& moving_of(Rank source, Rank target) {
    return at(moving_, rank_at(source, ranks()) * ranks() + rank_at(target, ranks()));
  }

  MergePlan const* merge_ = nullptr;                  ///< of decode
  Seen expected_;                                     ///< by the state of each query row
  Index positions_ = 0;                               ///< that have been given to rows
  std::vector<std::vector<Index>> queries_, moving_;  ///< positions: by rank; by source and target
};

}  // namespace annulus::detail::checker
