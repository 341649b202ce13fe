#pragma once
// Reference gradients of one step. Probabilities are recomputed from the log-sum-exp, so that no storage is quadratic
// in the sequence length.

#include "annulus/backend/reference/rows.hpp"
#include "annulus/backend/step.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/numerics/merge.hpp"

namespace annulus::reference {

/// The rows of one head that a step reads, widened to the accumulator type.
template <class A>
struct HeadRows {
  Rows<A> q, k, v, dout;
};

/// Adds the contributions of one query row and a run of keys, all of which it sees.
template <class T, class L, class Predicate, class A>
void add_row_gradients(Step<T, Predicate, HostMemory> const& step, Index b, Index h, Index query,
                       RowRange keys, HeadRows<A> const& rows,
                       BackwardOperands<T, L, A, HostMemory> const& backward, Rows<A>& dk, Rows<A>& dv,
                       StepGradients<A, HostMemory> gradients) {
  auto const [begin, count] = std::pair{keys.begin, keys.size()};
  auto const rule = step.template logit_rule<A>();
  A const lse = static_cast<A>(backward.lse(b, h, query)), delta = backward.delta(b, h, query);
  A const remainder = static_cast<A>(backward.remainder(b, h, query));
  A const keep_scale = static_cast<A>(step.dropout.keep_scale());

  Row<A> const products = rows.k.middleRows(begin, count) * rows.q.row(query).transpose();
  Row<A> const dweights = rows.v.middleRows(begin, count) * rows.dout.row(query).transpose();
  Row<A> kept_weights(count), dproducts(count);
  for (Index j = 0; j < count; ++j) {
    kept_weights[j] = dproducts[j] = A(0);
    A const capped = rule(products[j]);
    Index const key_position = step.key_positions[static_cast<std::size_t>(begin + j)];
    A const logit = step.bias.data() ? capped + static_cast<A>(step.bias(b, h, query, key_position)) : capped;
    if (logit == empty_row<A>) continue;
    A const weight = probability(logit, lse, remainder);
    A const kept = !step.dropout.active() ? A(1) : step.kept(b, h, query, begin + j) ? keep_scale : A(0);
    kept_weights[j] = kept * weight;
    A const dlogit = weight * (kept * dweights[j] - delta);
    dproducts[j] = dlogit * rule.slope(capped);
    if (gradients.dbias.data()) gradients.dbias(b, h, query, key_position) += dlogit;
  }
  row_of(gradients.dq, b, query, h).noalias() += rows.k.middleRows(begin, count).transpose() * dproducts;
  dk.middleRows(begin, count).noalias() += dproducts * rows.q.row(query);
  dv.middleRows(begin, count).noalias() += kept_weights * rows.dout.row(query);
}

/// Adds the gradients of a step: to dq of every query row, and to dk and dv summed over the query heads of a group.
template <class T, class L, class Predicate, class A>
void add_gradients(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
                   BackwardOperands<T, L, A, HostMemory> const& backward, StepGradients<A, HostMemory> gradients) {
  if (step.tiles.empty()) return;
  KeyFinder<T, Predicate> const find(step);
  Index const query_heads = operands.q.extent(axis::heads), kv_heads = operands.k.extent(axis::heads);
  for (Index b = 0; b < operands.q.extent(axis::batch); ++b)
    for (Index kv_head = 0; kv_head < kv_heads; ++kv_head) {
      HeadRows<A> rows{{}, widened<A>(operands.k, b, kv_head), widened<A>(operands.v, b, kv_head), {}};
      Rows<A> dk = Rows<A>::Zero(rows.k.rows(), rows.k.cols()), dv = Rows<A>::Zero(rows.v.rows(), rows.v.cols());
      Index const group = query_heads / kv_heads;
      for (Index h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        rows.q = widened<A>(operands.q, b, h);
        rows.dout = widened<A>(backward.dout, b, h);
        for (Tile const& tile : step.tiles)
          for (Index i = 0; i < tile.query_count; ++i) {
            Index const query = tile.query_begin + i;
            step.progress();
            // A row that has seen no key has gradient 0; its lse of -inf must not be combined with a finite logit.
            if (backward.lse(b, h, query) == empty_row<L>) continue;
            find.for_each_run(tile, b, h, i, [&](RowRange keys) {
              add_row_gradients(step, b, h, query, keys, rows, backward, dk, dv, gradients);
            });
          }
      }
      for (Index j = 0; j < dk.rows(); ++j) {
        row_of(gradients.dk, b, j, kv_head) += dk.row(j).transpose();
        row_of(gradients.dv, b, j, kv_head) += dv.row(j).transpose();
      }
    }
}

}  // namespace annulus::reference
