#pragma once
// What both passes share: their arguments, the steps that they hand to the backend, and the check for finite results.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

  ResultPlace of_own_rows() const { return {rank, step, rank}; }
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
            throw Error(message_of("rank ", place.rank, ", step ", place.step, " of the ring: ", name, " of rank ",
                                   place.owner, " has the value ", value, " in batch ", b, ", row ", first_row + i,
                                   ", head ", h, ", dim ", d, "; require_finite accepts finite values only"));
}

/// As above for row statistics, [batch, heads, rows]; accepts -inf, the lse and maximum of a row that has seen no key.
template <class T>
void require_finite(std::string_view name, TensorView<T, 3> values, Index first_row, ResultPlace const& place) {
  for (Index b = 0; b < values.extent(0); ++b)
    for (Index i = 0; i < values.extent(2); ++i)
      for (Index h = 0; h < values.extent(1); ++h)
        if (auto const value = static_cast<double>(values(b, h, i)); !std::isfinite(value) && !(value < 0))
          throw Error(message_of("rank ", place.rank, ", step ", place.step, " of the ring: ", name, " of rank ",
                                 place.owner, " has the value ", value, " in batch ", b, ", row ", first_row + i,
                                 ", head ", h,
                                 "; require_finite accepts finite values, and -inf for a row that sees no key"));
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
                                   .predicate = &predicate_,
                                   .progress = progress};
    AttentionShape const& shape = plan_.request().shape;
    std::array<Index, 4> const pairs{shape.batch, shape.query_heads, static_cast<Index>(step.query_positions.size()),
                                     plan_.global_keys()};
    if (operands_.bias) step.bias = broadcast(operands_.bias->slice(2, queries, pairs[2]), pairs);
    if (operands_.mask) step.boolean_mask = broadcast(operands_.mask->slice(2, queries, pairs[2]), pairs);
    if (operands_.query_segments) {
      auto const rows = [](auto const& ids, Index begin, auto const& positions) {
        return ids.slice(1, begin, static_cast<Index>(positions.size()));
      };
      step.query_segments = rows(keys_rotate ? *operands_.query_segments : segments, queries, step.query_positions);
      step.key_segments = rows(keys_rotate ? segments : *operands_.key_segments, keys, step.key_positions);
    }
    return step;
  }

  RingPlan const& plan_;
  Rank rank_;
  Predicate const& predicate_;
  Operands<T, Space> const& operands_;
  StepPlaces& places_;
};

/// Arguments that both passes take. The objects referred to outlive the pass.
template <class C, class B, class Predicate>
struct PassContext {
  RingPlan const& plan;
  C& communicator;
  B& backend;
  Predicate const& predicate;
  RingBuffers<C, B>& buffers;
  bool require_finite;

  ResultPlace place(int step) const { return {communicator.rank(), step, plan.owner(communicator.rank(), step)}; }
};

}  // namespace annulus::detail
