#pragma once
// Reference backend: it defines the meaning of every option, in plain loops. Every other backend is tested against it.
// Forward: online softmax (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135). Backward:
// probabilities are recomputed from the log-sum-exp, so that no storage is quadratic in the sequence length.

#include <Eigen/Core>
#include <cmath>
#include <type_traits>

#include "annulus/backend/backend.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/backend/open_close.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::reference::detail {

template <class A>
using Rows = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class A>
using Row = Eigen::Matrix<A, Eigen::Dynamic, 1>;

/// Rows of batch item b and head h of an operand, [rows, dim], widened to the accumulator type.
template <class A, class T>
Rows<A> widened(TensorView<T const, 4> view, Index b, Index h) {
  Rows<A> rows(view.extent(axis::sequence), view.extent(axis::dim));
  for (Index i = 0; i < rows.rows(); ++i)
    for (Index d = 0; d < rows.cols(); ++d) rows(i, d) = static_cast<A>(view(b, i, h, d));
  return rows;
}

/// Row i of a state or gradient as a vector of dim elements, which must be contiguous.
template <class A>
Eigen::Map<Row<A>> row_of(TensorView<A, 4> view, Index b, Index i, Index h) {
  return {view.data() + view.offset(b, i, h, 0), view.extent(axis::dim)};
}

/// One kv head of a step: rows of its keys and values and, while a loop over its query heads runs, of one of those.
template <class T, class Predicate, class A>
struct KvHead {
  KeyFinder<T, Predicate> const& find;
  Step<T, Predicate, HostMemory> const& step;
  StepOperands<T, HostMemory> const& operands;
  Index b, kv_head;
  Rows<A> k = widened<A>(operands.k, b, kv_head), v = widened<A>(operands.v, b, kv_head), q{};

  /// Calls begin(h) for each query head, then function(h, query, keys) for each of its query rows and each run of keys
  /// that the row sees.
  template <class Begin, class Function>
  void for_each_run(Begin&& begin, Function&& function) {
    Index const group = operands.q.extent(axis::heads) / operands.k.extent(axis::heads);
    for (Index h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      q = widened<A>(operands.q, b, h);
      begin(h);
      for (Tile const& tile : step.tiles)
        for (Index i = 0; i < tile.query_count; ++i) {
          step.progress();
          find.for_each_run(tile, b, h, i, [&](RowRange keys) { function(h, tile.query_begin + i, keys); });
        }
    }
  }
};

/// A query row and a run of keys, all of which it sees.
template <class T, class Predicate, class A>
struct Pairs {
  KvHead<T, Predicate, A> const& head;
  Index b, h, query;
  RowRange keys;

  auto q() const { return head.q.row(query); }
  auto k() const { return head.k.middleRows(keys.begin, keys.size()); }
  auto v() const { return head.v.middleRows(keys.begin, keys.size()); }
  Index key_position(Index j) const { return head.step.key_positions[static_cast<std::size_t>(keys.begin + j)]; }

  /// Logit of key j of the run before any bias, given the product of query and key. If that overflows, the query is
  /// scaled first.
  A capped(LogitRule<A> const& rule, A product, Index j) const {
    if (std::isfinite(product)) return rule(product);
    return rule.cap((q() * rule.scale).dot(k().row(j)));
  }
  A with_bias(A capped, Index j) const {
    auto const& bias = head.step.bias;
    return bias.data() ? capped + static_cast<A>(bias(b, h, query, key_position(j))) : capped;
  }
  /// Factor of dropout.
  A kept(Index j) const {
    if (!head.step.rules.dropout.active()) return A(1);
    return head.step.kept(b, h, query, keys.begin + j) ? static_cast<A>(head.step.rules.dropout.keep_scale()) : A(0);
  }
};

/// Adds the keys to the query row of the state.
template <class T, class Predicate, class A>
void fold_row(Pairs<T, Predicate, A> const& pairs, RunningState<A, HostMemory> state) {
  auto const& [head, b, h, query, keys] = pairs;
  auto const rule = head.step.template logit_rule<A>();
  Row<A> logits = pairs.k() * pairs.q().transpose();
  A largest = empty_row<A>;
  for (Index j = 0; j < keys.size(); ++j) {
    logits[j] = pairs.with_bias(pairs.capped(rule, logits[j], j), j);
    largest = std::fmax(largest, logits[j]);
  }

  SoftmaxRow<A> row{state.maximum(b, h, query), state.sum(b, h, query)};
  A const factor = row.raise(largest);
  Row<A>& weights = logits;
  A sum = A(0);
  for (Index j = 0; j < keys.size(); ++j) {
    weights[j] = row.weight(logits[j]);
    sum += weights[j];
    if (weights[j] != A(0)) weights[j] *= pairs.kept(j);
  }
  auto accumulator = row_of(state.accumulator, b, query, h);
  accumulator *= factor;
  accumulator.noalias() += pairs.v().transpose() * weights;
  state.maximum(b, h, query) = row.maximum;
  state.sum(b, h, query) = row.sum + sum;
}

/// Adds the gradients of the pairs. written_dbias: where the gradients of their logits are written; without data, they
/// are added to gradients.dbias.
template <class T, class L, class Predicate, class A, class G>
void add_row_gradients(Pairs<T, Predicate, A> const& pairs, BackwardOperands<T, L, A, HostMemory> const& backward,
                       Rows<A> const& dout, Rows<A>& dk, Rows<A>& dv, StepGradients<A, HostMemory> const& gradients,
                       TensorView<G, 4> const& written_dbias) {
  auto const& [head, b, h, query, keys] = pairs;
  // A row that has seen no key has gradient 0; its lse of -inf must not be combined with a finite logit.
  if (backward.lse(b, h, query) == empty_row<L>) return;
  auto const rule = head.step.template logit_rule<A>();
  A const lse = static_cast<A>(backward.lse(b, h, query)), delta = backward.delta(b, h, query);
  A const remainder = static_cast<A>(backward.remainder(b, h, query));

  Row<A> const products = pairs.k() * pairs.q().transpose();
  Row<A> const dweights = pairs.v() * dout.row(query).transpose();
  Row<A> kept_weights(keys.size()), dproducts(keys.size());
  for (Index j = 0; j < keys.size(); ++j) {
    kept_weights[j] = dproducts[j] = A(0);
    A const capped = pairs.capped(rule, products[j], j), logit = pairs.with_bias(capped, j);
    if (logit == empty_row<A>) continue;
    A const weight = probability(logit, lse, remainder), kept = pairs.kept(j);
    kept_weights[j] = kept * weight;
    A const dlogit = weight * (kept * dweights[j] - delta);
    dproducts[j] = dlogit * rule.slope(capped);
    // Added to 0, as a sum would be: the gradient 0 is then never negative.
    if (written_dbias.data()) written_dbias(b, h, query, pairs.key_position(j)) = static_cast<G>(A(0) + dlogit);
    if (gradients.dbias.data()) gradients.dbias(b, h, query, pairs.key_position(j)) += dlogit;
  }
  row_of(gradients.dq, b, query, h).noalias() += pairs.k().transpose() * dproducts;
  dk.middleRows(keys.begin, keys.size()).noalias() += dproducts * pairs.q();
  dv.middleRows(keys.begin, keys.size()).noalias() += kept_weights * dout.row(query);
}

/// Calls function(head) for each kv head of the step.
template <class A, class T, class Predicate, class Function>
void for_each_kv_head(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
                      Function&& function) {
  if (step.tiles.empty()) return;
  KeyFinder<T, Predicate> const find(step);
  for (Index b = 0; b < operands.q.extent(axis::batch); ++b)
    for (Index kv_head = 0; kv_head < operands.k.extent(axis::heads); ++kv_head) {
      KvHead<T, Predicate, A> head{find, step, operands, b, kv_head};
      function(head);
    }
}

}  // namespace annulus::reference::detail

namespace annulus {

/// Backend that supports every problem. Wide: type of all sums; void: float, or double for double operands.
template <class Wide = void>
class BasicReferenceBackend : public HostOperations {
 public:
  /// Type of sums over operands of type T.
  template <class T>
  using accumulator = typename std::conditional_t<std::is_void_v<Wide>, std::type_identity<Accumulator<T>>,
                                                  std::type_identity<Wide>>::type;

  /// Always yes.
  Support supports(Problem const&) const { return Support::yes(); }

  /// Adds the visible keys of a step to every row of the state.
  template <class T, class Predicate, class A, class L = Accumulator<T>>
  void fold(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
            RunningState<A, HostMemory> state, ForwardResults<T, L, HostMemory> const& results = {}) {
    detail::open_sums(*this, step.opens, state);
    reference::detail::for_each_kv_head<A>(
        step, operands, [&](reference::detail::KvHead<T, Predicate, A>& head) { fold_head(head, state); });
    detail::close_sums(*this, step.closes, state, results);
  }

  /// Adds the gradients of a step: to dq of every query row, and to dk and dv summed over the query heads of a group.
  template <class T, class L, class Predicate, class A, class G = T>
  void add_gradients(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
                     BackwardOperands<T, L, A, HostMemory> const& backward, StepGradients<A, HostMemory> gradients,
                     GradientResults<G, HostMemory> const& results = {}) {
    detail::open_sums(*this, step.opens, gradients);
    TensorView<G, 4> const dbias = has(step.closes, Sums::pairs) ? results.dbias : TensorView<G, 4>();
    if (dbias.data()) detail::clear_pairs(*this, step.key_positions, dbias);
    reference::detail::for_each_kv_head<A>(step, operands, [&](reference::detail::KvHead<T, Predicate, A>& head) {
      add_head_gradients(head, backward, gradients, dbias);
    });
    detail::close_sums(*this, step.closes, gradients, results);
  }

 private:
  template <class T, class Predicate, class A>
  static void fold_head(reference::detail::KvHead<T, Predicate, A>& head, RunningState<A, HostMemory> const& state) {
    head.for_each_run([](Index) {},
                      [&](Index h, Index query, RowRange keys) {
                        reference::detail::fold_row<T, Predicate, A>({head, head.b, h, query, keys}, state);
                      });
  }

  template <class T, class L, class Predicate, class A, class G>
  static void add_head_gradients(reference::detail::KvHead<T, Predicate, A>& head,
                                 BackwardOperands<T, L, A, HostMemory> const& backward,
                                 StepGradients<A, HostMemory> const& gradients, TensorView<G, 4> const& written_dbias) {
    using Rows = reference::detail::Rows<A>;
    Rows dout, dk = Rows::Zero(head.k.rows(), head.k.cols()), dv = Rows::Zero(head.v.rows(), head.v.cols());
    head.for_each_run([&](Index h) { dout = reference::detail::widened<A>(backward.dout, head.b, h); },
                      [&](Index h, Index query, RowRange keys) {
                        reference::detail::add_row_gradients<T, L, Predicate, A>(
                            {head, head.b, h, query, keys}, backward, dout, dk, dv, gradients, written_dbias);
                      });
    for (Index j = 0; j < dk.rows(); ++j) {
      reference::detail::row_of(gradients.dk, head.b, j, head.kv_head) += dk.row(j).transpose();
      reference::detail::row_of(gradients.dv, head.b, j, head.kv_head) += dv.row(j).transpose();
    }
  }
};

/// The reference backend with the accumulator types of the other backends.
using ReferenceBackend = BasicReferenceBackend<>;
/// All sums in double, for every operand type: exchanged gradients and states take twice the bytes.
using DoubleReferenceBackend = BasicReferenceBackend<double>;

static_assert(ClosingBackend<ReferenceBackend> && ClosingBackend<DoubleReferenceBackend>);

}  // namespace annulus
