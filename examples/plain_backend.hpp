#pragma once
// A complete backend in plain loops, a start for one's own. It refuses bias and dropout before any rows are sent, and
// does all else: HostOperations has the buffers and the operations on whole rows, KeyFinder the keys that a row sees.
// Its steps only add to sums, which the library clears before and converts to results afterwards.
#include <annulus/annulus.hpp>
#include <cmath>
#include <vector>

namespace example {

using annulus::HostMemory, annulus::Index;

class PlainBackend : public annulus::HostOperations {
 public:
  /// Type of the sums for operands of type T.
  template <class T>
  using accumulator = annulus::Accumulator<T>;

  /// The reason for a refusal is thrown on every rank.
  annulus::Support supports(annulus::Problem const& problem) const {
    if (problem.rules.dropout.active())
      return annulus::Support::no("PlainBackend: no dropout; accepted: probability 0");
    if (problem.bias) return annulus::Support::no("PlainBackend: no bias; accepted: a mask, or document ids");
    return annulus::Support::yes();
  }

  /// Adds the keys of a step to the running state: online softmax, relative to the largest logit so far.
  template <class T, class Predicate, class A>
  void fold(annulus::Step<T, Predicate, HostMemory> const& step, annulus::StepOperands<T, HostMemory> const& operands,
            annulus::RunningState<A, HostMemory> state) {
    auto const rule = step.template logit_rule<A>();  // scale and soft cap
    std::vector<A> logits;
    for_each_run(step, operands, [&](Row const& q, Row const& kv, annulus::RowRange keys) {
      logits.clear();
      A largest = annulus::empty_row<A>;
      for (Index key = keys.begin; key < keys.end; ++key) {
        logits.push_back(rule(dot<A>(operands.q, q, operands.k, kv.at(key))));
        largest = std::fmax(largest, logits.back());
      }
      annulus::SoftmaxRow<A> row{state.maximum(q.batch, q.head, q.row), state.sum(q.batch, q.head, q.row)};
      A const factor = row.raise(largest);
      A* const sums = &state.accumulator(q.batch, q.row, q.head, 0);  // states have unit stride along dim
      for (Index d = 0; d < operands.v.extent(3); ++d) sums[d] *= factor;
      for (Index key = keys.begin; key < keys.end; ++key) {
        A const weight = row.weight(logits[static_cast<std::size_t>(key - keys.begin)]);
        row.sum += weight;
        for (Index d = 0; d < operands.v.extent(3); ++d)
          sums[d] += weight * static_cast<A>(operands.v(kv.batch, key, kv.head, d));
      }
      state.maximum(q.batch, q.head, q.row) = row.maximum;
      state.sum(q.batch, q.head, q.row) = row.sum;
    });
  }

  /// Adds a step's share of the gradients; recomputes the probabilities from lse and its rounding error.
  template <class T, class L, class Predicate, class A>
  void add_gradients(annulus::Step<T, Predicate, HostMemory> const& step,
                     annulus::StepOperands<T, HostMemory> const& operands,
                     annulus::BackwardOperands<T, L, A, HostMemory> const& backward,
                     annulus::StepGradients<A, HostMemory> gradients) {
    auto const rule = step.template logit_rule<A>();
    for_each_run(step, operands, [&](Row const& q, Row const& kv, annulus::RowRange keys) {
      A const lse = static_cast<A>(backward.lse(q.batch, q.head, q.row));
      if (lse == annulus::empty_row<A>) return;  // the row saw no key in the forward pass
      A const remainder = static_cast<A>(backward.remainder(q.batch, q.head, q.row));
      A const delta = backward.delta(q.batch, q.head, q.row);
      for (Index key = keys.begin; key < keys.end; ++key) {
        A const logit = rule(dot<A>(operands.q, q, operands.k, kv.at(key)));
        A const weight = annulus::probability(logit, lse, remainder);
        A const dlogit = weight * (dot<A>(backward.dout, q, operands.v, kv.at(key)) - delta);
        add_row(gradients.dq, q, dlogit * rule.slope(logit), operands.k, kv.at(key));
        add_row(gradients.dk, kv.at(key), dlogit * rule.slope(logit), operands.q, q);
        add_row(gradients.dv, kv.at(key), weight, backward.dout, q);
      }
    });
  }

 private:
  /// A row of an operand [batch, rows, heads, dim].
  struct Row {
    Index batch, row, head;
    Row at(Index other) const { return {batch, other, head}; }
  };

  template <class A, class T>
  static A dot(annulus::TensorView<T const, 4> x, Row const& a, annulus::TensorView<T const, 4> y, Row const& b) {
    A sum = A(0);
    for (Index d = 0; d < x.extent(3); ++d)
      sum += static_cast<A>(x(a.batch, a.row, a.head, d)) * static_cast<A>(y(b.batch, b.row, b.head, d));
    return sum;
  }

  template <class A, class T>
  static void add_row(annulus::TensorView<A, 4> into, Row const& a, A factor, annulus::TensorView<T const, 4> from,
                      Row const& b) {
    for (Index d = 0; d < into.extent(3); ++d)
      into(a.batch, a.row, a.head, d) += factor * static_cast<A>(from(b.batch, b.row, b.head, d));
  }

  /// Calls function(query row, key head, range of keys) for each run of keys that a query row sees.
  template <class T, class Predicate, class Function>
  static void for_each_run(annulus::Step<T, Predicate, HostMemory> const& step,
                           annulus::StepOperands<T, HostMemory> const& operands, Function&& function) {
    annulus::KeyFinder<T, Predicate> const find(step);
    Index const heads = operands.q.extent(2), group = heads / operands.k.extent(2);
    for (Index batch = 0; batch < operands.q.extent(0); ++batch)
      for (Index head = 0; head < heads; ++head)
        for (annulus::Tile const& tile : step.tiles)
          for (Index i = 0; i < tile.query_count; ++i) {
            step.progress();  // lets a pending exchange advance
            find.for_each_run(tile, batch, head, i, [&](annulus::RowRange keys) {
              function(Row{batch, tile.query_begin + i, head}, Row{batch, 0, head / group}, keys);
            });
          }
  }
};

static_assert(annulus::Backend<PlainBackend>);

}  // namespace example
