#pragma once
// Simple backend that computes pair by pair and is correct except for one selected mistake out of those known from
// other attention kernels.

#include <Eigen/Core>
#include <annulus/backend/backend.hpp>
#include <annulus/backend/host_operations.hpp>
#include <annulus/backend/visible_keys.hpp>
#include <annulus/schedule/visible_tiles.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

namespace annulus_test {

enum class BackendFault {
  none,
  rescale_forgotten,          ///< an earlier sum keeps its weight when the maximum rises
  merge_misses_a_term,        ///< two parts are merged, their row sums are not
  band_off_by_one,            ///< the causal limit or window reaches one key too far
  window_offset_missing,      ///< bands count from the beginning of the shards
  padding_is_a_document,      ///< id 0 is a document like others
  kv_head_by_modulo,          ///< query head h reads kv head h % kv_heads
  bias_by_local_key,          ///< bias columns are counted from key 0 of the shard, not of the sequence
  dropout_by_local_position,  ///< dropout uses local rows, not global positions
  dropout_not_scaled_up,      ///< kept weights are not divided by 1 - probability
  dropout_thins_the_sum,      ///< dropped weights are missing in the row sum
  backward_drops_others,      ///< the backward pass drops other pairs
  state_in_16_bits,           ///< the accumulator is rounded to bfloat16 after each key
  lse_in_base_2,
  lse_remainder_forgotten,  ///< the remainder is taken as 0
  empty_row_has_lse_0,
  sinks_counted_twice,
  sink_gradient_of_wrong_sign,
  delta_is_zero,
  scale_forgotten_in_backward,  ///< as if the forward pass had scaled q beforehand
  soft_cap_slope_forgotten,
  bias_gradient_through_cap,  ///< the gradient of the bias is multiplied by the slope of the soft cap
  group_not_summed,           ///< dk is that of the first query head of each group
  dv_of_all_weights,          ///< dv of the weights before dropout
};

class FaultyBackend : public annulus::HostOperations {
  template <class T, class Predicate>
  using Step = annulus::Step<T, Predicate, annulus::HostMemory>;
  template <class T>
  using Operands = annulus::StepOperands<T, annulus::HostMemory>;

 public:
  template <class T>
  using accumulator = annulus::Accumulator<T>;

  explicit FaultyBackend(BackendFault fault) : fault_(fault) {}

  annulus::Support supports(annulus::Problem const&) const { return annulus::Support::yes(); }

  template <class T, class Predicate, class A>
  void fold(Step<T, Predicate> const& given, Operands<T> const& operands,
            annulus::RunningState<A, annulus::HostMemory> state) {
    for_each_pair(given, operands, [&](Step<T, Predicate> const& step, Pair pair) {
      auto const [b, h, kv, i, j] = pair;
      A const logit = logit_of<A>(step, operands, pair).value;
      annulus::SoftmaxRow<A> row{state.maximum(b, h, i), state.sum(b, h, i)};
      A const raised = row.raise(logit);
      A const factor = is(BackendFault::rescale_forgotten) ? A(1) : raised;
      A const weight = row.weight(logit), kept = keep_factor<A>(step, pair, 0);
      row.sum += is(BackendFault::dropout_thins_the_sum) && kept == A(0) ? A(0) : weight;
      for (annulus::Index d = 0; d < operands.v.extent(annulus::axis::dim); ++d) {
        A& sum = state.accumulator(b, i, h, d);
        sum = factor * sum + kept * weight * static_cast<A>(operands.v(b, j, kv, d));
        if (is(BackendFault::state_in_16_bits)) sum = static_cast<A>(static_cast<Eigen::bfloat16>(sum));
      }
      state.maximum(b, h, i) = row.maximum;
      state.sum(b, h, i) = row.sum;
    });
  }

  template <class T, class L, class Predicate, class A>
  void add_gradients(Step<T, Predicate> const& given, Operands<T> const& operands,
                     annulus::BackwardOperands<T, L, A, annulus::HostMemory> const& backward,
                     annulus::StepGradients<A, annulus::HostMemory> gradients) {
    annulus::Index const group = operands.q.extent(annulus::axis::heads) / operands.k.extent(annulus::axis::heads);
    for_each_pair(given, operands, [&](Step<T, Predicate> const& step, Pair pair) {
      auto const [b, h, kv, i, j] = pair;
      Logit<A> const logit = logit_of<A>(step, operands, pair);
      A const weight = annulus::probability(logit.value, static_cast<A>(backward.lse(b, h, i)),
                                            static_cast<A>(backward.remainder(b, h, i)));
      A const kept = keep_factor<A>(step, pair, is(BackendFault::backward_drops_others) ? 1 : 0);
      A dweight = A(0);
      for (annulus::Index d = 0; d < operands.v.extent(annulus::axis::dim); ++d) {
        A const dout = static_cast<A>(backward.dout(b, i, h, d));
        dweight += dout * static_cast<A>(operands.v(b, j, kv, d));
        gradients.dv(b, j, kv, d) += (is(BackendFault::dv_of_all_weights) ? A(1) : kept) * weight * dout;
      }
      A const dlogit = weight * (kept * dweight - backward.delta(b, h, i));
      A slope = logit.slope;
      if (is(BackendFault::soft_cap_slope_forgotten)) slope = static_cast<A>(step.softmax_scale());
      if (is(BackendFault::scale_forgotten_in_backward)) slope /= static_cast<A>(step.softmax_scale());
      if (gradients.dbias.data())
        gradients.dbias(b, h, i, step.key_positions[static_cast<std::size_t>(j)]) +=
            is(BackendFault::bias_gradient_through_cap) ? dlogit * slope / static_cast<A>(step.softmax_scale())
                                                        : dlogit;
      for (annulus::Index d = 0; d < operands.q.extent(annulus::axis::dim); ++d) {
        gradients.dq(b, i, h, d) += dlogit * slope * static_cast<A>(operands.k(b, j, kv, d));
        if (!is(BackendFault::group_not_summed) || h % group == 0)
          gradients.dk(b, j, kv, d) += dlogit * slope * static_cast<A>(operands.q(b, i, h, d));
      }
    });
  }

  template <class A>
  void merge(annulus::RunningState<A, annulus::HostMemory> into, annulus::RunningState<A, annulus::HostMemory> from) {
    if (is(BackendFault::merge_misses_a_term)) {
      std::vector<A> zeros(static_cast<std::size_t>(from.sum.size()), A(0));
      from.sum = {zeros.data(), from.sum.extents()};
      annulus::HostOperations::merge(into, from);
    } else {
      annulus::HostOperations::merge(into, from);
    }
  }

  template <class A, class L, class T>
  void normalise(annulus::RunningState<A, annulus::HostMemory> state, annulus::TensorView<L const, 2> sinks,
                 annulus::TensorView<T, 4> output, annulus::TensorView<L, 3> lse,
                 annulus::TensorView<L, 3> lse_remainder) {
    std::vector<L> twice;
    if (is(BackendFault::sinks_counted_twice) && sinks.data()) {
      for (annulus::Index h = 0; h < sinks.extent(0); ++h)
        for (annulus::Index s = 0; s < 2 * sinks.extent(1); ++s) twice.push_back(sinks(h, s % sinks.extent(1)));
      sinks = {twice.data(), {sinks.extent(0), 2 * sinks.extent(1)}};
    }
    annulus::HostOperations::normalise(state, sinks, output, lse, lse_remainder);
    if (is(BackendFault::lse_remainder_forgotten) && lse_remainder.data()) clear(lse_remainder);
    annulus::detail::for_each_element(lse, lse, [&](L& value, L&) {
      if (is(BackendFault::lse_in_base_2)) value /= std::log(L(2));
      if (is(BackendFault::empty_row_has_lse_0) && value == annulus::empty_row<L>) value = L(0);
    });
  }

  template <class T, class A>
  void row_delta(annulus::TensorView<T const, 4> dout, annulus::TensorView<T const, 4> output,
                 annulus::TensorView<A, 3> delta) {
    annulus::HostOperations::row_delta(dout, output, delta);
    if (is(BackendFault::delta_is_zero)) clear(delta);
  }

  template <class L, class A>
  void sink_gradients(annulus::TensorView<L const, 3> lse, annulus::TensorView<L const, 3> lse_remainder,
                      annulus::TensorView<A const, 3> delta, annulus::TensorView<L const, 2> sinks,
                      annulus::TensorView<A, 2> dsinks) {
    annulus::HostOperations::sink_gradients(lse, lse_remainder, delta, sinks, dsinks);
    if (is(BackendFault::sink_gradient_of_wrong_sign))
      annulus::detail::for_each_element(dsinks, dsinks, [](A& value, A&) { value = -value; });
  }

 private:
  struct Pair {
    annulus::Index batch, head, kv_head, query, key;
  };
  template <class A>
  struct Logit {
    A value, slope;
  };

  bool is(BackendFault fault) const { return fault_ == fault; }

  template <class A, class T, class Predicate>
  Logit<A> logit_of(Step<T, Predicate> const& step, Operands<T> const& operands, Pair const& pair) const {
    auto const [b, h, kv, i, j] = pair;
    A product = A(0);
    for (annulus::Index d = 0; d < operands.q.extent(annulus::axis::dim); ++d)
      product += static_cast<A>(operands.q(b, i, h, d)) * static_cast<A>(operands.k(b, j, kv, d));
    auto const rule = step.template logit_rule<A>();
    A const capped = rule(product);
    annulus::Index const column =
        is(BackendFault::bias_by_local_key) ? j : step.key_positions[static_cast<std::size_t>(j)];
    return {step.bias.data() ? capped + static_cast<A>(step.bias(b, h, i, column)) : capped, rule.slope(capped)};
  }

  /// Dropout factor of a weight.
  template <class A, class T, class Predicate>
  A keep_factor(Step<T, Predicate> const& step, Pair const& pair, std::uint64_t seed_shift) const {
    if (!step.rules.dropout.active()) return A(1);
    annulus::Dropout dropout = step.rules.dropout;
    dropout.seed += seed_shift;
    bool const local = is(BackendFault::dropout_by_local_position);
    annulus::Index const query = local ? pair.query : step.query_positions[static_cast<std::size_t>(pair.query)];
    annulus::Index const key = local ? pair.key : step.key_positions[static_cast<std::size_t>(pair.key)];
    if (!dropout.keeps(step.first_batch + pair.batch, step.first_head + pair.head, query, key)) return A(0);
    return is(BackendFault::dropout_not_scaled_up) ? A(1) : static_cast<A>(dropout.keep_scale());
  }

  /// Calls visit(step, pair) for each pair that is visible in the step or in its faulty version.
  template <class T, class Predicate, class Visit>
  void for_each_pair(Step<T, Predicate> step, Operands<T> const& operands, Visit&& visit) const {
    std::vector<annulus::Tile> tiles(step.tiles.begin(), step.tiles.end());
    for (annulus::Tile& tile : tiles) {
      if (tile.coverage != annulus::Coverage::band) continue;
      if (is(BackendFault::band_off_by_one)) ++tile.band.hi;
      if (is(BackendFault::window_offset_missing)) {
        annulus::Tile at_origin = tile;
        at_origin.query_position = at_origin.key_position = 0;
        tile.band = annulus::detail::band_of(at_origin, step.rules.mask);
      }
    }
    step.tiles = tiles;
    std::vector<std::int32_t> query_ids, key_ids;
    if (is(BackendFault::padding_is_a_document) && step.has_documents()) {
      raise_ids(step.query_documents, query_ids);
      raise_ids(step.key_documents, key_ids);
    }

    annulus::KeyFinder<T, Predicate> const find(step);
    annulus::Index const heads = operands.q.extent(annulus::axis::heads),
                         kv_heads = operands.k.extent(annulus::axis::heads);
    for (annulus::Index b = 0; b < operands.q.extent(annulus::axis::batch); ++b)
      for (annulus::Index h = 0; h < heads; ++h) {
        annulus::Index const kv = is(BackendFault::kv_head_by_modulo) ? h % kv_heads : h / (heads / kv_heads);
        for (annulus::Tile const& tile : tiles)
          for (annulus::Index i = 0; i < tile.query_count; ++i)
            find.for_each_run(tile, b, h, i, [&](annulus::RowRange keys) {
              for (annulus::Index j = keys.begin; j < keys.end; ++j)
                visit(step, Pair{b, h, kv, tile.query_begin + i, j});
            });
      }
  }

  static void raise_ids(annulus::TensorView<std::int32_t const, 2>& ids, std::vector<std::int32_t>& raised) {
    for (annulus::Index b = 0; b < ids.extent(0); ++b)
      for (annulus::Index row = 0; row < ids.extent(1); ++row) raised.push_back(ids(b, row) + 1);
    ids = {raised.data(), ids.extents()};
  }

  BackendFault fault_;
};

}  // namespace annulus_test
