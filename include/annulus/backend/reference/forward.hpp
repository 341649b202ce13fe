#pragma once
// Reference forward step: online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135).

#include "annulus/backend/reference/rows.hpp"
#include "annulus/backend/step.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/numerics/softmax_row.hpp"

namespace annulus::reference {

/// Adds a run of keys, all of which the query row sees, to that row of the state.
template <class T, class Predicate, class A>
void fold_row(Step<T, Predicate, HostMemory> const& step, Index b, Index h, Index query, RowRange keys,
              Rows<A> const& q, Rows<A> const& k, Rows<A> const& v, RunningState<A, HostMemory> state) {
  auto const [begin, count] = std::pair{keys.begin, keys.size()};
  auto const rule = step.template logit_rule<A>();
  Row<A> logits = k.middleRows(begin, count) * q.row(query).transpose();
  for (Index j = 0; j < count; ++j) {
    logits[j] = rule(logits[j]);
    if (step.bias.data())
      logits[j] += static_cast<A>(step.bias(b, h, query, step.key_positions[static_cast<std::size_t>(begin + j)]));
  }

  SoftmaxRow<A> row{state.maximum(b, h, query), state.sum(b, h, query)};
  A largest = empty_row<A>;
  for (Index j = 0; j < count; ++j) largest = std::fmax(largest, logits[j]);
  A const factor = row.raise(largest);
  Row<A>& weights = logits;
  A sum = A(0);
  for (Index j = 0; j < count; ++j) {
    weights[j] = row.weight(logits[j]);
    sum += weights[j];
    if (step.dropout.active() && weights[j] != A(0))
      weights[j] = step.kept(b, h, query, begin + j) ? weights[j] * static_cast<A>(step.dropout.keep_scale()) : A(0);
  }
  auto accumulator = row_of(state.accumulator, b, query, h);
  accumulator *= factor;
  accumulator.noalias() += v.middleRows(begin, count).transpose() * weights;
  state.maximum(b, h, query) = row.maximum;
  state.sum(b, h, query) = row.sum + sum;
}

/// Adds the visible keys of a step to every row of the state.
template <class T, class Predicate, class A>
void fold(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
          RunningState<A, HostMemory> state) {
  if (step.tiles.empty()) return;
  KeyFinder<T, Predicate> const find(step);
  Index const query_heads = operands.q.extent(axis::heads), kv_heads = operands.k.extent(axis::heads);
  for (Index b = 0; b < operands.q.extent(axis::batch); ++b)
    for (Index kv_head = 0; kv_head < kv_heads; ++kv_head) {
      Rows<A> const k = widened<A>(operands.k, b, kv_head), v = widened<A>(operands.v, b, kv_head);
      Index const group = query_heads / kv_heads;
      for (Index h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        Rows<A> const q = widened<A>(operands.q, b, h);
        for (Tile const& tile : step.tiles)
          for (Index i = 0; i < tile.query_count; ++i) {
            step.progress();
            find.for_each_run(tile, b, h, i, [&](RowRange keys) {
              fold_row(step, b, h, tile.query_begin + i, keys, q, k, v, state);
            });
          }
      }
    }
}

}  // namespace annulus::reference
