#pragma once
// Backend cases of reset, merge, normalise, row_delta and sink_gradients, compared with their closed forms.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "conformance/backend_elementwise_cases.hpp"

namespace annulus_test::backend_cases {

inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// The rows of one running state, [batch, queries, query_heads, value_dim].
struct StateRows {
  std::array<Index, 4> extents{};
  std::vector<double> accumulator;   ///< as extents
  std::vector<double> maximum, sum;  ///< [batch, query_heads, queries]

  std::array<Index, 3> statistics() const { return {extents[0], extents[2], extents[1]}; }
  Index dim() const { return extents[3]; }
  /// Calls function(index of the row's statistics, index of its first accumulator element).
  template <class Function>
  void for_each_row(Function&& function) const {
    for (Index b = 0; b < extents[0]; ++b)
      for (Index i = 0; i < extents[1]; ++i)
        for (Index h = 0; h < extents[2]; ++h)
          function(static_cast<std::size_t>((b * extents[2] + h) * extents[1] + i),
                   static_cast<std::size_t>(((b * extents[1] + i) * extents[2] + h) * extents[3]));
  }
};

/// Rows of eight kinds, which alternate: masked, few keys, many keys, and logits far from 0. Row 0 is of kind
/// `first_kind`.
template <class A>
StateRows rows_of_every_kind(std::array<Index, 4> const& extents, std::size_t first_kind) {
  StateRows rows{extents, numbers<A>(product(extents), static_cast<double>(first_kind)), {}, {}};
  static constexpr double maxima[] = {minus_infinity, 0, 0.5, -7, 80, -80, 1e4, -1e4};
  static constexpr double sums[] = {0, 1, 3.25, 1.5, 17, 1, 2, 1};
  rows.maximum.resize(static_cast<std::size_t>(extents[0] * extents[1] * extents[2]));
  rows.sum = rows.maximum;
  rows.for_each_row([&](std::size_t row, std::size_t first) {
    // Two states with first kinds 0 and f pair all combinations of the eight kinds as f runs from 0 to 7.
    std::size_t const kind = (row + first_kind) % 8;
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

/// Output and lse of a normalised state, in double.
struct Normalised {
  std::vector<double> output, lse;
  std::vector<double> lse_remainder{};  ///< what rounding removed from lse; empty in the closed form
};

inline Normalised normalised(StateRows const& rows, std::vector<double> const& sinks, Index sinks_per_head) {
  Normalised result{std::vector<double>(rows.accumulator.size()), std::vector<double>(rows.maximum.size())};
  rows.for_each_row([&](std::size_t row, std::size_t first) {
    auto const head = static_cast<Index>(row) / rows.extents[1] % rows.extents[2];
    double maximum = rows.maximum[row];
    auto const sink = [&](Index s) { return sinks[static_cast<std::size_t>(head * sinks_per_head + s)]; };
    for (Index s = 0; s < sinks_per_head; ++s) maximum = std::max(maximum, sink(s));
    auto const relative = [&](double logit) { return logit == minus_infinity ? 0 : std::exp(logit - maximum); };
    double sum = rows.sum[row] * relative(rows.maximum[row]);
    for (Index s = 0; s < sinks_per_head; ++s) sum += relative(sink(s));
    result.lse[row] = sum == 0 ? minus_infinity : maximum + std::log(sum);
    for (std::size_t d = 0; d < static_cast<std::size_t>(rows.dim()); ++d)
      result.output[first + d] = sum == 0 ? 0 : rows.accumulator[first + d] * relative(rows.maximum[row]) / sum;
  });
  return result;
}

/// Two states merged by the rule of numerics/softmax.hpp, in double.
inline StateRows merged(StateRows const& a, StateRows const& b) {
  StateRows result = a;
  a.for_each_row([&](std::size_t row, std::size_t first) {
    double const maximum = std::max(a.maximum[row], b.maximum[row]);
    auto const relative = [&](double logit) { return logit == minus_infinity ? 0 : std::exp(logit - maximum); };
    double const of_a = relative(a.maximum[row]), of_b = relative(b.maximum[row]);
    result.maximum[row] = maximum;
    result.sum[row] = of_a * a.sum[row] + of_b * b.sum[row];
    for (std::size_t d = 0; d < static_cast<std::size_t>(a.dim()); ++d)
      result.accumulator[first + d] = of_a * a.accumulator[first + d] + of_b * b.accumulator[first + d];
  });
  return result;
}

/// Largest |seen - exact| / (floor + |exact|); infinite if infinities differ or a value is NaN.
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

/// Normalises a state on the backend; A, T and L are as in Backend::normalise.
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

// Allowed error: one exponential, a few products and sums in the accumulator type, for which eight roundings are
// enough, and one rounding of the result to T. The logits of 1e4 differ by integers, which are exact in all types.
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
    CHECK(ended.lse == std::vector<double>(ended.lse.size(), minus_infinity));
    CHECK(state.gaps_are_intact());
  }
}

template <class T, class Implementation>
void merges(Implementation const& implementation) {
  using A = annulus::AccumulatorOf<typename Implementation::Backend, T>;
  using State = PlacedState<typename Implementation::Placement, A>;
  auto backend = implementation.make(6);
  for (auto const& extents : extents_that_break_things<4>())
    for (std::size_t first_kind = 0; first_kind < 8; ++first_kind) {
      auto const own = rows_of_every_kind<A>(extents, 0), other = rows_of_every_kind<A>(extents, first_kind);
      State into(own, first_kind % 2 ? Layout::padded : Layout::payload), from(other, Layout::payload);
      auto const before = from.bytes();
      backend.merge(into.view(), from.view());
      backend.synchronize();
      CHECK(from.bytes() == before);
      CHECK(into.gaps_are_intact());
      auto const exact = normalised(merged(own, other), {}, 0);
      auto const seen = end<T, Implementation>(backend, into, extents, Layout::dense, {}, 0);
      // Terms of opposite sign may cancel in the merged row; each is at most 20.
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
        static constexpr double logits[] = {0.25, minus_infinity, -3, 2, 85, minus_infinity, 1};
        std::vector<double> sinks;
        for (Index s = 0; s < extents[2] * sinks_per_head; ++s) sinks.push_back(logits[s % 7]);
        auto const rows = rows_of_every_kind<A>(extents, 0);
        PlacedState<typename Implementation::Placement, A> state(rows, Layout::payload);
        auto const exact = normalised(rows, sinks, sinks_per_head);
        auto const seen = end<T, Implementation>(backend, state, extents, layout, sinks, sinks_per_head);
        INFO("layout " << static_cast<int>(layout) << ", " << sinks_per_head << " sink logits");
        CHECK(worst_error(seen.output, exact.output, 1e-30) <= allowed<A, T>);
        CHECK(worst_error(seen.lse, exact.lse, 1) <= allowed_lse<A, annulus::Accumulator<T>>);
      }
}

/// lse_remainder is what rounding removed from lse, for maxima of every size; a view without data is not written.
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
  double const maxima[] = {minus_infinity, 0, -1.5, 3, 700, -1e5, 1e9, -1e30, lowest};
  double const sums[] = {1, 1.75, 3, 1000, 1e6};
  rows.for_each_row([&](std::size_t row, std::size_t first) {
    // Rounded to float, so that the maximum is exact in L.
    rows.maximum[row] = static_cast<double>(static_cast<float>(maxima[row % 9]));
    rows.sum[row] = row % 9 == 0 ? 0 : sums[row % 5];
    if (row % 9 == 0) std::fill_n(rows.accumulator.begin() + static_cast<std::ptrdiff_t>(first), extents[3], 0.0);
  });
  PlacedState<Placement, A> state(rows, Layout::payload);
  auto const seen = end<T, Implementation>(backend, state, extents, Layout::dense, {}, 0);
  for (std::size_t row = 0; row < rows.maximum.size(); ++row) {
    INFO("maximum " << rows.maximum[row] << ", sum " << rows.sum[row]);
    if (rows.sum[row] == 0) {
      CHECK((seen.lse[row] == minus_infinity && seen.lse_remainder[row] == 0));
      continue;
    }
    // lse - maximum is exact if the maximum dominates, and else of the size of the logarithm.
    double const logarithm = std::log(rows.sum[row]),
                 whole = (seen.lse[row] - rows.maximum[row]) + seen.lse_remainder[row];
    CHECK(std::abs(whole - logarithm) <= (2 * rounding_of<A> + 2 * rounding_of<L>)*(1 + logarithm));
    // lse is maximum + log(sum), rounded.
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

/// delta = rowsum(dout * output), also if dout is NaN in masked rows, whose output is the constant 0.
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
      // The error of a sum of n rounded products is at most n roundings of the sum of their absolute values.
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
          sinks.push_back(s % 3 == 1 ? minus_infinity : static_cast<double>(s) - 15.0);
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
        // A sum of n products; the exponential of x, rounded in A, has an error of |x| roundings, and |x| < 64.
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
