#pragma once
// reset, merge, normalise, row_delta, sink_gradients against their closed forms.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "conformance/backend_elementwise_cases.hpp"

namespace annulus_test::backend_cases {

inline constexpr double nothing = -std::numeric_limits<double>::infinity();

/// The rows of one running state, [batch, queries, query_heads, value_dim].
struct StateRows {
  std::array<Index, 4> extents{};
  std::vector<double> accumulator;   ///< as extents
  std::vector<double> maximum, sum;  ///< [batch, query_heads, queries]

  std::array<Index, 3> statistics() const { return {extents[0], extents[2], extents[1]}; }
  Index dim() const { return extents[3]; }
  /// Calls function(place of the row's statistics, place of its first element).
  template <class Function>
  void for_each_row(Function&& function) const {
    for (Index b = 0; b < extents[0]; ++b)
      for (Index i = 0; i < extents[1]; ++i)
        for (Index h = 0; h < extents[2]; ++h)
          function(static_cast<std::size_t>((b * extents[2] + h) * extents[1] + i),
                   static_cast<std::size_t>(((b * extents[1] + i) * extents[2] + h) * extents[3]));
  }
};

/// Rows that have seen nothing, little, much, and logits far from 0, in turn; `turn` shifts which row is which.
template <class A>
StateRows rows_of_every_kind(std::array<Index, 4> const& extents, std::size_t turn) {
  StateRows rows{extents, numbers<A>(product(extents), static_cast<double>(turn)), {}, {}};
  static constexpr double maxima[] = {nothing, 0, 0.5, -7, 80, -80, 1e4, -1e4};
  static constexpr double sums[] = {0, 1, 3.25, 1.5, 17, 1, 2, 1};
  rows.maximum.resize(static_cast<std::size_t>(extents[0] * extents[1] * extents[2]));
  rows.sum = rows.maximum;
  rows.for_each_row([&](std::size_t row, std::size_t first) {
    // Two states of turns 0 and t meet in all combinations of the eight kinds as t runs through eight values.
    std::size_t const kind = (row + turn) % 8;
    rows.maximum[row] = maxima[kind];
    rows.sum[row] = sums[kind];
    if (kind == 0) std::fill_n(rows.accumulator.begin() + static_cast<std::ptrdiff_t>(first), extents[3], 0.0);
  });
  return rows;
}

/// A running state in the memory of a backend.
template <class Placement, class A>
class PlacedState {
 public:
  PlacedState(StateRows const& rows, Layout layout)
      : accumulator_(rows.extents, layout, rows.accumulator),
        maximum_(rows.statistics(), Layout::payload, rows.maximum, 2),
        sum_(rows.statistics(), Layout::payload, rows.sum, 2) {}
  /// Poisoned.
  PlacedState(std::array<Index, 4> const& extents, Layout layout)
      : PlacedState(StateRows{extents, {}, {}, {}}, layout) {}

  auto view() {
    auto const accumulator = accumulator_.view();
    using Space = typename std::remove_cvref_t<decltype(accumulator)>::memory_space;
    return annulus::RunningState<A, Space>{accumulator, maximum_.view(), sum_.view()};
  }
  StateRows rows(std::array<Index, 4> const& extents) const {
    return {extents, accumulator_.values(), maximum_.values(), sum_.values()};
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all = accumulator_.bytes();
    for (auto const& part : {maximum_.bytes(), sum_.bytes()}) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  bool gaps_are_intact() const {
    return accumulator_.gaps_are_intact() && maximum_.gaps_are_intact() && sum_.gaps_are_intact();
  }

 private:
  PlacedArray<Placement, A, 4> accumulator_;
  PlacedArray<Placement, A, 3> maximum_, sum_;
};

/// What a state of these rows ends as, in double.
struct Normalised {
  std::vector<double> output, lse;
  std::vector<double> lse_remainder{};  ///< of the sum that is in lse, where a backend has written it
};

inline Normalised normalised(StateRows const& rows, std::vector<double> const& sinks, Index sinks_per_head) {
  Normalised result{std::vector<double>(rows.accumulator.size()), std::vector<double>(rows.maximum.size())};
  rows.for_each_row([&](std::size_t row, std::size_t first) {
    auto const head = static_cast<Index>(row) / rows.extents[1] % rows.extents[2];
    double maximum = rows.maximum[row];
    auto const sink = [&](Index s) { return sinks[static_cast<std::size_t>(head * sinks_per_head + s)]; };
    for (Index s = 0; s < sinks_per_head; ++s) maximum = std::max(maximum, sink(s));
    auto const relative = [&](double logit) { return logit == nothing ? 0 : std::exp(logit - maximum); };
    double sum = rows.sum[row] * relative(rows.maximum[row]);
    for (Index s = 0; s < sinks_per_head; ++s) sum += relative(sink(s));
    result.lse[row] = sum == 0 ? nothing : maximum + std::log(sum);
    for (std::size_t d = 0; d < static_cast<std::size_t>(rows.dim()); ++d)
      result.output[first + d] = sum == 0 ? 0 : rows.accumulator[first + d] * relative(rows.maximum[row]) / sum;
  });
  return result;
}

/// Joined as numerics/merge.hpp says, in double.
inline StateRows merged(StateRows const& a, StateRows const& b) {
  StateRows result = a;
  a.for_each_row([&](std::size_t row, std::size_t first) {
    double const maximum = std::max(a.maximum[row], b.maximum[row]);
    auto const relative = [&](double logit) { return logit == nothing ? 0 : std::exp(logit - maximum); };
    double const of_a = relative(a.maximum[row]), of_b = relative(b.maximum[row]);
    result.maximum[row] = maximum;
    result.sum[row] = of_a * a.sum[row] + of_b * b.sum[row];
    for (std::size_t d = 0; d < static_cast<std::size_t>(a.dim()); ++d)
      result.accumulator[first + d] = of_a * a.accumulator[first + d] + of_b * b.accumulator[first + d];
  });
  return result;
}

/// Largest |seen - exact| / (floor + |exact|); infinite where the two are not infinite in the same places, or at NaN.
inline double worst_error(std::vector<double> const& seen, std::vector<double> const& exact, double floor) {
  if (seen.size() != exact.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] == exact[i]) continue;
    double const error = std::abs(seen[i] - exact[i]) / (floor + std::abs(exact[i]));
    worst = std::max(worst, std::isfinite(error) ? error : std::numeric_limits<double>::infinity());
  }
  return worst;
}

/// Half a unit in the last place of T, relative.
template <class T>
inline constexpr double rounding_of = sizeof(T) == 2 ? 1.0 / 256
                                                     : static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;

/// Ends a state; A, T, L as Backend::normalise.
template <class T, class Implementation, class Backend, class State>
Normalised end(Backend& backend, State& state, std::array<Index, 4> const& extents, Layout layout,
               std::vector<double> const& sinks, Index sinks_per_head) {
  using Placement = typename Implementation::Placement;
  using L = annulus::Accumulator<T>;
  PlacedArray<Placement, T, 4> output(extents, layout);
  PlacedArray<Placement, L, 3> lse({extents[0], extents[2], extents[1]}, Layout::permuted);
  PlacedArray<Placement, L, 3> remainder({extents[0], extents[2], extents[1]}, Layout::gapped);
  PlacedArray<Placement, L, 2> placed_sinks({extents[2], sinks_per_head}, Layout::gapped, sinks);
  auto sinks_view = placed_sinks.constant();
  if (sinks_per_head == 0) sinks_view = {};
  backend.normalise(state.view(), sinks_view, output.view(), lse.view(), remainder.view());
  backend.synchronize();
  CHECK(output.gaps_are_intact());
  CHECK(lse.gaps_are_intact());
  CHECK(remainder.gaps_are_intact());
  return {output.values(), lse.values(), remainder.values()};
}

// A state is an exponential and a few products and sums away from its parts, and the result is rounded to T once: eight
// roundings of the accumulator allow for that. The logits of 1e4 differ by whole numbers, which all types hold.
template <class A, class T>
inline constexpr double allowed = 8 * rounding_of<A> + 2 * rounding_of<annulus::Accumulator<T>> + rounding_of<T>;
template <class A, class L>
inline constexpr double allowed_lse = 8 * rounding_of<A> + 2 * rounding_of<L>;

template <class T, class Implementation>
void resets(Implementation const& implementation) {
  using A = annulus::AccumulatorOf<typename Implementation::Backend, T>;
  auto backend = implementation.make(5);
  for (auto const& extents : extents_that_break_things<4>()) {
    PlacedState<typename Implementation::Placement, A> state(extents, Layout::payload);
    backend.reset(state.view());
    auto const ended = end<T, Implementation>(backend, state, extents, Layout::dense, {}, 0);
    CHECK(ended.output == std::vector<double>(ended.output.size(), 0.0));
    CHECK(ended.lse == std::vector<double>(ended.lse.size(), nothing));
    CHECK(state.gaps_are_intact());
  }
}

template <class T, class Implementation>
void merges(Implementation const& implementation) {
  using A = annulus::AccumulatorOf<typename Implementation::Backend, T>;
  using State = PlacedState<typename Implementation::Placement, A>;
  auto backend = implementation.make(6);
  for (auto const& extents : extents_that_break_things<4>())
    for (std::size_t turn = 0; turn < 8; ++turn) {
      auto const own = rows_of_every_kind<A>(extents, 0), other = rows_of_every_kind<A>(extents, turn);
      State into(own, turn % 2 ? Layout::padded : Layout::payload), from(other, Layout::payload);
      auto const before = from.bytes();
      backend.merge(into.view(), from.view());
      backend.synchronize();
      CHECK(from.bytes() == before);
      CHECK(into.gaps_are_intact());
      auto const exact = normalised(merged(own, other), {}, 0);
      auto const seen = end<T, Implementation>(backend, into, extents, Layout::dense, {}, 0);
      // Terms of opposite sign may cancel in the joined row; each is at most 20.
      CHECK(worst_error(seen.output, exact.output, 40) <= allowed<A, T>);
      CHECK(worst_error(seen.lse, exact.lse, 1) <= allowed_lse<A, annulus::Accumulator<T>>);
    }
}

template <class T, class Implementation>
void normalises(Implementation const& implementation) {
  using A = annulus::AccumulatorOf<typename Implementation::Backend, T>;
  auto backend = implementation.make(7);
  for (auto const& extents : extents_that_break_things<4>())
    for (Layout layout : every_layout)
      for (Index sinks_per_head : {0, 1, 3}) {
        static constexpr double logits[] = {0.25, nothing, -3, 2, 85, nothing, 1};
        std::vector<double> sinks;
        for (Index s = 0; s < extents[2] * sinks_per_head; ++s) sinks.push_back(logits[s % 7]);
        auto const rows = rows_of_every_kind<A>(extents, 0);
        PlacedState<typename Implementation::Placement, A> state(rows, Layout::payload);
        auto const exact = normalised(rows, sinks, sinks_per_head);
        auto const seen = end<T, Implementation>(backend, state, extents, layout, sinks, sinks_per_head);
        INFO("layout " << static_cast<int>(layout) << ", " << sinks_per_head << " sinks");
        CHECK(worst_error(seen.output, exact.output, 1e-30) <= allowed<A, T>);
        CHECK(worst_error(seen.lse, exact.lse, 1) <= allowed_lse<A, annulus::Accumulator<T>>);
      }
}

/// lse_remainder is what lse lacks, next to maxima of every size; without data it is not written.
template <class T, class Implementation>
void keeps_remainders(Implementation const& implementation) {
  using A = annulus::AccumulatorOf<typename Implementation::Backend, T>;
  using L = annulus::Accumulator<T>;
  using Placement = typename Implementation::Placement;
  auto backend = implementation.make(7);
  std::array<Index, 4> const extents{2, 9, 3, 2};
  double const lowest = std::numeric_limits<float>::lowest();
  StateRows rows{extents, numbers<A>(product(extents)), {}, {}};
  rows.maximum.resize(54);
  rows.sum.resize(54);
  double const maxima[] = {nothing, 0, -1.5, 3, 700, -1e5, 1e9, -1e30, lowest};
  double const sums[] = {1, 1.75, 3, 1000, 1e6};
  rows.for_each_row([&](std::size_t row, std::size_t first) {
    // lse is a sum of two L, whatever the sums are.
    rows.maximum[row] = static_cast<double>(static_cast<float>(maxima[row % 9]));
    rows.sum[row] = row % 9 == 0 ? 0 : sums[row % 5];
    if (row % 9 == 0) std::fill_n(rows.accumulator.begin() + static_cast<std::ptrdiff_t>(first), extents[3], 0.0);
  });
  PlacedState<Placement, A> state(rows, Layout::payload);
  auto const seen = end<T, Implementation>(backend, state, extents, Layout::dense, {}, 0);
  for (std::size_t row = 0; row < rows.maximum.size(); ++row) {
    INFO("maximum " << rows.maximum[row] << ", sum " << rows.sum[row]);
    if (rows.sum[row] == 0) {
      CHECK((seen.lse[row] == nothing && seen.lse_remainder[row] == 0));
      continue;
    }
    // lse less the maximum is exact where the maximum decides, and else a number of the size of the logarithm.
    double const logarithm = std::log(rows.sum[row]),
                 whole = (seen.lse[row] - rows.maximum[row]) + seen.lse_remainder[row];
    CHECK(std::abs(whole - logarithm) <= (2 * rounding_of<A> + 2 * rounding_of<L>)*(1 + logarithm));
    // lse is the number next to the sum, as before.
    CHECK(seen.lse[row] == static_cast<double>(static_cast<L>(static_cast<A>(rows.maximum[row]) +
                                                              std::log(static_cast<A>(rows.sum[row])))));
  }

  PlacedState<Placement, A> again(rows, Layout::payload);
  PlacedArray<Placement, T, 4> output(extents, Layout::dense);
  PlacedArray<Placement, L, 3> lse({extents[0], extents[2], extents[1]}, Layout::permuted);
  auto none = lse.view();
  none = {};
  PlacedArray<Placement, L, 2> no_sinks({extents[2], 0}, Layout::dense);
  auto sinks = no_sinks.constant();
  sinks = {};
  backend.normalise(again.view(), sinks, output.view(), lse.view(), none);
  backend.synchronize();
  CHECK(lse.values() == seen.lse);
}

/// delta = rowsum(dout * output), also where dout is NaN in rows that saw nothing and whose output is the constant 0.
template <class T, class Implementation>
void row_deltas(Implementation const& implementation) {
  using Placement = typename Implementation::Placement;
  using A = annulus::AccumulatorOf<typename Implementation::Backend, T>;
  auto backend = implementation.make(8);
  for (auto const& extents : extents_that_break_things<4>())
    for (Layout layout : every_layout) {
      StateRows const rows{extents, {}, {}, {}};
      auto dout = numbers<T>(product(extents), 2), output = numbers<T>(product(extents), -3);
      std::vector<double> exact(static_cast<std::size_t>(extents[0] * extents[1] * extents[2]));
      double terms = 0;
      rows.for_each_row([&](std::size_t row, std::size_t first) {
        double sum = 0;
        for (std::size_t d = first; d < first + static_cast<std::size_t>(extents[3]); ++d) {
          if (row % 4 == 1) {
            dout[d] = std::numeric_limits<double>::quiet_NaN();
            output[d] = 0;
          } else {
            exact[row] += dout[d] * output[d];
            sum += std::abs(dout[d] * output[d]);
          }
        }
        terms = std::max(terms, sum);
      });
      PlacedArray<Placement, T, 4> placed_dout(extents, layout, dout), placed_output(extents, Layout::padded, output);
      PlacedArray<Placement, A, 3> delta(rows.statistics(), Layout::payload, 2);
      backend.row_delta(placed_dout.constant(), placed_output.constant(), delta.view());
      backend.synchronize();
      // A sum of n rounded products is off by at most n roundings of the sum of their absolute values.
      double const bound = (static_cast<double>(extents[3]) + 1) * rounding_of<A>;
      CHECK(worst_error(delta.values(), exact, terms) <= bound);
      CHECK(delta.gaps_are_intact());
    }
}

/// dsinks = -sum over batch and rows of exp((sink - lse) - lse_remainder) * delta, with and without a remainder.
template <class T, class Implementation>
void sink_gradients(Implementation const& implementation) {
  using Placement = typename Implementation::Placement;
  using A = annulus::AccumulatorOf<typename Implementation::Backend, T>;
  using L = annulus::Accumulator<T>;
  auto backend = implementation.make(9);
  for (std::array<Index, 3> const& extents : {std::array<Index, 3>{1, 1, 1}, {2, 3, 13}, {2, 2, 0}, {3, 1, 31}})
    for (Index sinks_per_head : {1, 3}) {
      auto const [batch, heads, rows] = extents;
      auto const lse = numbers<L>(batch * heads * rows), delta = numbers<A>(batch * heads * rows, 4);
      auto const given = numbers<L>(batch * heads * rows, 2), none = std::vector<double>(given.size(), 0.0);
      for (auto const& remainder : {none, given}) {
        std::vector<double> sinks, exact, terms;
        for (Index s = 0; s < heads * sinks_per_head; ++s) {
          sinks.push_back(s % 3 == 1 ? nothing : static_cast<double>(s) - 15.0);
          exact.push_back(0);
          terms.push_back(0);
          for (Index b = 0; b < batch; ++b)
            for (Index i = 0; i < rows; ++i) {
              auto const row = static_cast<std::size_t>((b * heads + s / sinks_per_head) * rows + i);
              double const share = std::exp((sinks.back() - lse[row]) - remainder[row]) * delta[row];
              exact.back() -= share;
              terms.back() += std::abs(share);
            }
        }
        PlacedArray<Placement, L, 3> placed_lse(extents, Layout::permuted, lse);
        PlacedArray<Placement, L, 3> placed_remainder(extents, Layout::payload, remainder, 2);
        auto remainder_view = placed_remainder.constant();
        if (remainder == none) remainder_view = {};
        PlacedArray<Placement, A, 3> placed_delta(extents, Layout::payload, delta, 2);
        PlacedArray<Placement, L, 2> placed_sinks({heads, sinks_per_head}, Layout::gapped, sinks);
        PlacedArray<Placement, A, 2> dsinks({heads, sinks_per_head}, Layout::dense);
        backend.sink_gradients(placed_lse.constant(), remainder_view, placed_delta.constant(), placed_sinks.constant(),
                               dsinks.view());
        backend.synchronize();
        auto const seen = dsinks.values();
        // A sum of n products; the exponential of a number x rounded in A is off by |x| roundings, and |x| < 64.
        double const bound = (static_cast<double>(batch * rows) + 64) * rounding_of<A>;
        for (std::size_t s = 0; s < seen.size(); ++s) CHECK(std::abs(seen[s] - exact[s]) <= bound * terms[s]);
      }
    }
}

template <class T, class Implementation>
void state_operations(Implementation const& implementation) {
  resets<T>(implementation);
  merges<T>(implementation);
  normalises<T>(implementation);
  keeps_remainders<T>(implementation);
  row_deltas<T>(implementation);
  sink_gradients<T>(implementation);
}

}  // namespace annulus_test::backend_cases
