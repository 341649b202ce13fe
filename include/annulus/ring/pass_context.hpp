#pragma once
// What both passes share: their arguments, the steps that they hand to the backend, and the check for finite results.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "annulus/backend/backend.hpp"
#include "annulus/core/error.hpp"
#include "annulus/ring/ring_buffers.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "annulus/tensor/operands.hpp"
#include "annulus/tensor/tensor_like.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// Origin of the checked results: the rank and step that computed them, and the rank that owns the rows.
struct ResultPlace {
  Rank rank;
  int step;
  Rank owner;
  Index first_head = 0;                ///< number of head 0 of the results
  RankGroups const* groups = nullptr;  ///< set if the rows are those of the owner's group
  Side side = Side::query;             ///< of these rows

  ResultPlace of_own_rows() const { return {rank, step, rank}; }
  /// Of rows and heads of a side that a rank of the plan works on: its own rows or those of its group.
  ResultPlace of_rows(RingPlan const& plan, Side of_side) const {
    RankGroups const& all = plan.groups();
    Index const of_place = all.first_head(rank) / (of_side == Side::key ? plan.shape().group() : 1);
    Index const of_lane = (of_side == Side::key ? plan.kv_heads() : plan.query_heads()).begin;
    return {rank, step, owner, of_place + of_lane, all.gathers(of_side) ? &all : nullptr, of_side};
  }
  /// The same place with the rank that owns `row`, which is counted from the first one of that rank then.
  ResultPlace of_owner(Index& row) const {
    if (!groups) return *this;
    for (int member = 0;; ++member) {
      RowRange const rows = groups->member_rows(side, owner, member);
      if (row >= rows.end) continue;
      row -= rows.begin;
      return {rank, step, groups->member(owner, member), first_head};
    }
  }
  /// "rank 0, step 1 of the ring: dq of rank 2 has the value nan in batch 0, row 3, head 4": row counted as of_owner
  /// says.
  std::string text(std::string_view name, double value, Index batch, Index row, Index head) const {
    ResultPlace const place = of_owner(row);
    return message_of("rank ", rank, ", step ", step, " of the ring: ", name, " of rank ", place.owner,
                      " has the value ", value, " in batch ", batch, ", row ", row, ", head ", first_head + head);
  }
};

/// Throws Error for the first row of `values`, [batch, rows, heads, dim], that holds a NaN or an infinity. `first_row`:
/// index of row 0 of `values` among the owner's local rows.
template <class T>
void require_finite(std::string_view name, TensorView<T, 4> values, Index first_row, ResultPlace const& place) {
  for (Index b = 0; b < values.extent(axis::batch); ++b)
    for (Index i = 0; i < values.extent(axis::sequence); ++i)
      for (Index h = 0; h < values.extent(axis::heads); ++h)
        for (Index d = 0; d < values.extent(axis::dim); ++d)
          if (auto const value = static_cast<double>(values(b, i, h, d)); !std::isfinite(value))
            throw Error(message_of(place.text(name, value, b, first_row + i, h), ", dim ", d,
                                   "; require_finite accepts finite values only"));
}

/// As above for row statistics, [batch, heads, rows]; accepts -inf, the lse and maximum of a row that has seen no key.
template <class T>
void require_finite(std::string_view name, TensorView<T, 3> values, Index first_row, ResultPlace const& place) {
  for (Index b = 0; b < values.extent(0); ++b)
    for (Index i = 0; i < values.extent(2); ++i)
      for (Index h = 0; h < values.extent(1); ++h)
        if (auto const value = static_cast<double>(values(b, h, i)); !std::isfinite(value) && !(value < 0))
          throw Error(message_of(place.text(name, value, b, first_row + i, h),
                                 "; require_finite accepts finite values, and -inf for a row that sees no key"));
}

/// The rows of an operand that the lane works on in step 0, of all of this rank's. `sequence`: the axis of the rows.
template <class View>
View held_at_start(RingPlan const& plan, Rank rank, View const& all, std::size_t sequence) {
  RowRange const held = plan.rotating_rows(rank);
  return all.data() && plan.halves_rows() ? all.slice(sequence, held.begin, held.size()) : all;
}

/// Builds the steps of a pass one by one. A step refers to `places`, and is valid until the next one is built.
template <class T, class Predicate, class Space>
class StepBuilder {
 public:
  StepBuilder(RingPlan const& plan, Rank rank, Predicate const& predicate, Operands<T, Space> const& operands,
              StepPlaces& places)
      : plan_(plan), rank_(rank), predicate_(predicate), operands_(operands), places_(places) {}

  /// `segments`: document ids of the rotating rows held at this step, [batch, rows]; without data if none are given.
  /// `progress`: callback that advances pending transfers.
  Step<T, Predicate, Space> build(int index, TensorView<std::int32_t const, 2, Space> segments, Progress progress) {
    places_.find(plan_, rank_, index);
    return step_of(0, 0, segments, progress);
  }

  /// The step of a pair of leaves alone. queries, keys: first rows of the leaves among those of the whole step.
  Step<T, Predicate, Space> build_leaves(LeafGrid const& grid, Index query_leaf, Index key_leaf, Index queries,
                                         Index keys, TensorView<std::int32_t const, 2, Space> segments,
                                         Progress progress) {
    places_.find_leaves(grid, query_leaf, key_leaf);
    return step_of(queries, keys, segments, progress);
  }

 private:
  /// The step at `places`, whose rows begin at `queries` and `keys` of the operands.
  Step<T, Predicate, Space> step_of(Index queries, Index keys, TensorView<std::int32_t const, 2, Space> segments,
                                    Progress progress) const {
    bool const keys_rotate = plan_.rotation() == Rotation::keys;
    Step<T, Predicate, Space> step{.tiles = places_.tiles(),
                                   .rules = plan_.request().rules,
                                   .query_positions = places_.query_positions(),
                                   .key_positions = places_.key_positions(),
                                   .first_head = plan_.groups().first_head(rank_) + plan_.query_heads().begin,
                                   .predicate = &predicate_,
                                   .progress = progress};
    AttentionShape const& shape = plan_.shape();
    std::array<Index, 4> const pairs{shape.batch, shape.query_heads, static_cast<Index>(step.query_positions.size()),
                                     plan_.global_keys()};
    if (operands_.bias) step.bias = broadcast(operands_.bias->slice(2, queries, pairs[2]), pairs);
    if (operands_.mask) step.boolean_mask = broadcast(operands_.mask->slice(2, queries, pairs[2]), pairs);
    if (operands_.query_documents) {
      auto const rows = [](auto const& ids, Index begin, auto const& positions) {
        return ids.slice(1, begin, static_cast<Index>(positions.size()));
      };
      step.query_documents = rows(keys_rotate ? *operands_.query_documents : segments, queries, step.query_positions);
      step.key_documents = rows(keys_rotate ? segments : *operands_.key_documents, keys, step.key_positions);
    }
    return step;
  }

  RingPlan const& plan_;
  Rank rank_;
  Predicate const& predicate_;
  Operands<T, Space> const& operands_;
  StepPlaces& places_;
};

/// Arguments that both passes take, for one lane of the plan. The objects referred to outlive the pass.
template <class C, class B, class Predicate>
struct PassContext {
  RingPlan const& plan;
  C& communicator;
  B& backend;
  Predicate const& predicate;
  RingBuffers<C, B>& buffers;
  RingBuffers<C, B>& shared;  ///< of what stays with a rank: those of the first lane, if lanes share them
  bool require_finite;

  ResultPlace place(int step) const { return {communicator.rank(), step, plan.owner(communicator.rank(), step)}; }
};

}  // namespace annulus::detail
