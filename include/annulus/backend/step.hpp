#pragma once
// Step: the work that a backend receives in one call (all heads, all tiles of one step), with its operands and results.

#include <algorithm>
#include <cstdint>
#include <span>

#include "annulus/mask/attention_rules.hpp"
#include "annulus/mask/tile.hpp"
#include "annulus/numerics/dropout.hpp"
#include "annulus/numerics/softmax.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// Query and key rows of one step: q [batch, queries, query_heads, head_dim], k [batch, keys, kv_heads, head_dim], v
/// [batch, keys, kv_heads, value_dim].
template <class T, class Space>
struct StepOperands {
  TensorView<T const, 4, Space> q, k, v;  ///< any strides

  /// The same views in another memory space; see TensorView::in_space.
  template <class Other>
  StepOperands<T, Other> in_space() const {
    return {q.template in_space<Other>(), k.template in_space<Other>(), v.template in_space<Other>()};
  }
};

/// Callback that advances a pending exchange whose communicator progresses only when called. A backend calls it from
/// time to time during a step, on the thread that called the backend and before that call returns. It costs about a
/// microsecond and does not throw. A backend that computes elsewhere, such as on a device, need not call it.
struct Progress {
  void (*call)(void*) = nullptr;  ///< null: nothing to advance
  void* context = nullptr;        ///< argument of the call

  /// Advances the exchange, if there is one.
  void operator()() const {
    if (call) call(context);
  }
};

/// Sums that a step adds to, by the rows that they belong to. A set: combine with |.
enum class Sums : std::uint8_t {
  none = 0,     ///< the empty set
  queries = 1,  ///< forward: the running state; backward: dq
  keys = 2,     ///< backward: dk and dv
  pairs = 4,    ///< backward: dbias
};

/// The sums of both sets.
constexpr Sums operator|(Sums a, Sums b) {
  return static_cast<Sums>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
/// The sums of `all` that are not in `some`.
constexpr Sums without(Sums all, Sums some) {
  return static_cast<Sums>(static_cast<std::uint8_t>(all) & ~static_cast<std::uint8_t>(some));
}
/// True if all sums of `some` are in `all`.
constexpr bool has(Sums all, Sums some) { return (all | some) == all; }

/// What Step::find_visible() must test, and what the caller knows about the keys.
struct PairTests {
  bool positions = true;     ///< false: the rules by position, mask and block mask, hide none of the pairs
  bool documents = true;     ///< false: the document ids hide none of the pairs
  bool consecutive = false;  ///< the positions of the keys are consecutive numbers
};

/// Rules and optional operands of a step. Tiles and rows count from the first row of the operands.
/// The step and the elements of its spans are in host memory and are read before the call returns. Views, and the
/// predicate whose address is read, stay valid until the next Backend::synchronize().
template <class T, class Predicate, class Space>
struct Step {
  /// All pairs of rows of which some are visible.
  std::span<Tile const> tiles;
  AttentionRules rules{};                  ///< with softmax_scale and query_offset set
  std::span<Index const> query_positions;  ///< global, query offset included
  std::span<Index const> key_positions;    ///< global
  Index first_batch = 0;                   ///< number of the operands' batch item 0 for the predicate and dropout
  Index first_head = 0;                    ///< number of the operands' query head 0, likewise
  /// The caller's predicate on (batch, head, query, key), global positions.
  Predicate const* predicate = nullptr;
  /// Views without data are operands that were not given. bias and boolean_mask are [batch, query_heads, queries,
  /// global_keys], with stride 0 along broadcast axes; query_documents and key_documents are ids [batch, rows].
  TensorView<T const, 4, Space> bias{};
  /// True: the query may see the key.
  TensorView<bool const, 4, Space> boolean_mask{};
  /// Document ids of the query rows.
  TensorView<std::int32_t const, 2, Space> query_documents{};
  /// Document ids of the key rows.
  TensorView<std::int32_t const, 2, Space> key_documents{};
  /// Advances a pending exchange.
  Progress progress{};
  /// False if no backward pass has to recompute the logits of this step to the bit: a backend may then sum their
  /// products in any order.
  bool recomputed = true;
  /// These sums hold nothing yet, and their elements are unspecified: the step writes all of them. Of dbias these are
  /// the elements of all keys, also of those that the step lacks.
  Sums opens = Sums::none;
  /// Nothing is added to these sums any more: the step writes the results, and the sums are unspecified afterwards.
  /// Sums::pairs only together with opens of Sums::pairs, and only if each pair of query and key has its own element of
  /// dbias: StepGradients::dbias is then without data, and the step writes GradientResults::dbias, for all its keys.
  Sums closes = Sums::none;

  /// Factor of q.k; 1 if the rules do not set it.
  double softmax_scale() const { return rules.softmax_scale.value_or(1); }

  bool has_documents() const { return query_documents.data() != nullptr; }  ///< true if document ids are given

  /// Scale and soft cap of the rules.
  template <class A>
  LogitRule<A> logit_rule() const {
    return {static_cast<A>(softmax_scale()), static_cast<A>(rules.logit_softcap)};
  }

  /// The boolean mask's elements for `keys`, if they are contiguous and no other rule hides a pair; otherwise null.
  bool const* deciding_mask(Index batch, Index head, Index query, RowRange keys,
                            PairTests tests) const requires std::same_as<Space, HostMemory> {
    bool admits_all = std::same_as<Predicate, EveryPair>;
    if constexpr (requires { predicate->admits_all(); }) admits_all = predicate->admits_all();
    bool const alone = admits_all && !tests.positions && !(tests.documents && has_documents());
    if (!alone || !boolean_mask.data() || boolean_mask.stride(3) != 1 || !tests.consecutive) return nullptr;
    return boolean_mask.data() +
           boolean_mask.offset(batch, head, query, key_positions[static_cast<std::size_t>(keys.begin)]);
  }

  /// Sets visible[i] to whether query row `query` sees key row keys.begin + i, for all i < keys.size(): the only place
  /// that applies all rules. The predicate is not asked about pairs that another rule hides.
  void find_visible(Index batch, Index head, Index query, RowRange keys, PairTests tests,
                    bool* visible) const requires std::same_as<Space, HostMemory> {
    Index const* const positions = key_positions.data() + keys.begin;
    Index const count = keys.size(), q = query_positions[static_cast<std::size_t>(query)];
    if (boolean_mask.data()) {
      bool const* const row = boolean_mask.data() + boolean_mask.offset(batch, head, query, 0);
      if (Index const stride = boolean_mask.stride(3); tests.consecutive && stride == 1)
        std::copy_n(row + positions[0], count, visible);
      else
        for (Index i = 0; i < count; ++i) visible[i] = row[positions[i] * stride];
    } else {
      std::fill_n(visible, count, true);
    }
    if (tests.positions)
      for (Index i = 0; i < count; ++i)
        visible[i] = visible[i] && rules.mask.visible(q, positions[i]) && rules.block_mask.visible(q, positions[i]);
    if (tests.documents && has_documents())
      for (Index i = 0; i < count; ++i)
        visible[i] =
            visible[i] && detail::same_document(query_documents(batch, query), key_documents(batch, keys.begin + i));
    Index const item = first_batch + batch, query_head = first_head + head;
    if constexpr (requires { predicate->restrict_row(item, query_head, q, positions, count, visible); })
      predicate->restrict_row(item, query_head, q, positions, count, visible);
    else
      for (Index i = 0; i < count; ++i)
        visible[i] = visible[i] && static_cast<bool>((*predicate)(item, query_head, q, positions[i]));
  }

  /// The same for one pair.
  bool visible(Index batch, Index head, Index query, Index key) const requires std::same_as<Space, HostMemory> {
    bool seen = false;
    find_visible(batch, head, query, {key, key + 1}, {}, &seen);
    return seen;
  }

  /// False if dropout zeroes the weight of this pair.
  bool kept(Index batch, Index head, Index query, Index key) const {
    return rules.dropout.keeps(first_batch + batch, first_head + head, query_positions[static_cast<std::size_t>(query)],
                               key_positions[static_cast<std::size_t>(key)]);
  }

  /// The same step with `predicate` as its predicate, which must outlive the result.
  template <class Other>
  Step<T, Other, Space> with_predicate(Other const& other) const {
    return {tiles,        rules,           query_positions, key_positions, first_batch, first_head, &other, bias,
            boolean_mask, query_documents, key_documents,   progress,      recomputed,  opens,      closes};
  }

  /// The step with its views reinterpreted as views in another memory space, whose kernels cannot call `progress`.
  template <class Other>
  Step<T, Predicate, Other> in_space() const {
    auto const moved = [](auto const& view) { return view.template in_space<Other>(); };
    return {tiles,
            rules,
            query_positions,
            key_positions,
            first_batch,
            first_head,
            predicate,
            moved(bias),
            moved(boolean_mask),
            moved(query_documents),
            moved(key_documents),
            Progress{},
            recomputed,
            opens,
            closes};
  }

  /// The same step with other sums to open and to close.
  Step opening_and_closing(Sums opened, Sums closed) const {
    Step step = *this;
    step.opens = opened;
    step.closes = closed;
    return step;
  }
};

/// Un-normalised result of the keys seen so far: accumulator [batch, queries, query_heads, value_dim], maximum and sum
/// [batch, query_heads, queries]. Accumulator and sum are relative to the row's maximum (numerics/softmax.hpp).
template <class A, class Space>
struct RunningState {
  TensorView<A, 4, Space> accumulator;   ///< unit stride along dim
  TensorView<A, 3, Space> maximum, sum;  ///< [batch, query_heads, queries]

  /// The same views in another memory space; see TensorView::in_space.
  template <class Other>
  RunningState<A, Other> in_space() const {
    return {accumulator.template in_space<Other>(), maximum.template in_space<Other>(), sum.template in_space<Other>()};
  }
};

/// Operands of the backward pass for the query rows of a step: dout [batch, queries, query_heads, value_dim]; lse,
/// delta and lse_remainder [batch, query_heads, queries]. lse_remainder is the rounding error of lse in the forward
/// pass; without data it counts as 0.
template <class T, class L, class A, class Space>
struct BackwardOperands {
  TensorView<T const, 4, Space> dout;             ///< gradient of the output
  TensorView<L const, 3, Space> lse;              ///< of the forward pass
  TensorView<A const, 3, Space> delta;            ///< sum over dim of dout * output
  TensorView<L const, 3, Space> lse_remainder{};  ///< rounding error of lse

  /// lse_remainder of a row, 0 if it is not given.
  L remainder(Index batch, Index head, Index query) const requires std::same_as<Space, HostMemory> {
    return lse_remainder.data() ? lse_remainder(batch, head, query) : L(0);
  }

  /// The same views in another memory space; see TensorView::in_space.
  template <class Other>
  BackwardOperands<T, L, A, Other> in_space() const {
    return {dout.template in_space<Other>(), lse.template in_space<Other>(), delta.template in_space<Other>(),
            lse_remainder.template in_space<Other>()};
  }
};

/// Results of the forward pass that a step writes where it closes the running state; output may be the memory of its
/// accumulator.
template <class T, class L, class Space>
struct ForwardResults {
  TensorView<T, 4, Space> output;           ///< [batch, queries, query_heads, value_dim], any strides
  TensorView<L, 3, Space> lse;              ///< [batch, query_heads, queries]; natural logarithm
  TensorView<L, 3, Space> lse_remainder{};  ///< rounding error of lse; without data: not written
  TensorView<L const, 2, Space> sinks{};    ///< sink logits [query_heads, n]; without data: none

  /// The same views in another memory space; see TensorView::in_space.
  template <class Other>
  ForwardResults<T, L, Other> in_space() const {
    return {output.template in_space<Other>(), lse.template in_space<Other>(), lse_remainder.template in_space<Other>(),
            sinks.template in_space<Other>()};
  }
};

/// Sums of gradients that a step adds to: dq, dk, dv, shaped as q, k, v, and dbias, shaped as Step::bias, with stride 0
/// along broadcast axes. dbias without data is not computed.
template <class A, class Space>
struct StepGradients {
  TensorView<A, 4, Space> dq, dk, dv, dbias;  ///< unit stride along dim

  /// The same views in another memory space; see TensorView::in_space.
  template <class Other>
  StepGradients<A, Other> in_space() const {
    return {dq.template in_space<Other>(), dk.template in_space<Other>(), dv.template in_space<Other>(),
            dbias.template in_space<Other>()};
  }
};

/// Gradients that a step writes where it closes their sums, of the same extents; others are not used. A result may be
/// the memory of its sum. Any strides. dbias is written only if G is the type of the operands; without data it is not.
template <class G, class Space>
struct GradientResults {
  TensorView<G, 4, Space> dq{};     ///< shaped as q
  TensorView<G, 4, Space> dk{};     ///< shaped as k
  TensorView<G, 4, Space> dv{};     ///< shaped as v
  TensorView<G, 4, Space> dbias{};  ///< shaped as Step::bias

  /// The same views in another memory space; see TensorView::in_space.
  template <class Other>
  GradientResults<G, Other> in_space() const {
    return {dq.template in_space<Other>(), dk.template in_space<Other>(), dv.template in_space<Other>(),
            dbias.template in_space<Other>()};
  }
};

}  // namespace annulus
