#pragma once
// Backend cases of copy, convert, add and clear: element by element, for any strides.

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "annulus/backend/backend.hpp"
#include "conformance/placed_array.hpp"
#include "support/catch.hpp"

namespace annulus_test::backend_cases {

/// Edge-case extents, of which the first N are used: one element, primes, an axis of length 0.
template <std::size_t N>
std::vector<std::array<Index, N>> extents_that_break_things() {
  std::vector<std::array<Index, N>> result;
  for (std::array<Index, 4> const& extents :
       {std::array<Index, 4>{1, 1, 1, 1}, {2, 7, 3, 5}, {1, 13, 2, 17}, {3, 1, 1, 64}, {2, 0, 3, 5}, {0, 4, 1, 1}}) {
    result.emplace_back();
    std::copy_n(extents.begin(), N, result.back().begin());
  }
  return result;
}

/// `count` values of both signs that need more digits than a half has; small integers if T is an integer type.
template <class T>
std::vector<double> numbers(Index count, double first = 1) {
  std::vector<double> values;
  for (Index i = 0; i < count; ++i) {
    double const number =
        first + static_cast<double>(i % 29) - 14 + (i % 7 == 3 ? 1.0 / 1024 : 0) + (i % 5 == 2 ? 1.0 / 3 : 0);
    values.push_back(static_cast<double>(static_cast<T>(number)));
  }
  return values;
}

template <std::size_t N>
Index product(std::array<Index, N> const& extents) {
  Index product = 1;
  for (Index extent : extents) product *= extent;
  return product;
}

template <class T, std::size_t N, class Implementation>
void copies(Implementation const& implementation) {
  using Array = PlacedArray<typename Implementation::Placement, T, N>;
  auto backend = implementation.make(1);
  for (auto const& extents : extents_that_break_things<N>())
    for (Layout from_layout : every_layout)
      for (Layout to_layout : {Layout::dense, Layout::payload, Layout::gapped}) {
        auto const values = numbers<T>(product(extents));
        Array from(extents, from_layout, values), to(extents, to_layout);
        backend.copy(from.constant(), to.view());
        backend.synchronize();
        INFO("from layout " << static_cast<int>(from_layout) << " to " << static_cast<int>(to_layout));
        CHECK(to.values() == values);
        CHECK(to.gaps_are_intact());
        CHECK(from.values() == values);
      }
}

/// convert() from the accumulator type to T rounds as a cast does.
template <class A, class T, std::size_t N, class Implementation>
void converts(Implementation const& implementation) {
  using Placement = typename Implementation::Placement;
  auto backend = implementation.make(2);
  for (auto const& extents : extents_that_break_things<N>())
    for (Layout layout : every_layout) {
      auto const values = numbers<A>(product(extents));
      std::vector<double> rounded;
      for (double value : values) rounded.push_back(static_cast<double>(static_cast<T>(static_cast<A>(value))));
      PlacedArray<Placement, A, N> from(extents, Layout::payload, values);
      PlacedArray<Placement, T, N> to(extents, layout);
      backend.convert(from.constant(), to.view());
      backend.synchronize();
      INFO("to layout " << static_cast<int>(layout));
      CHECK(to.values() == rounded);
      CHECK(to.gaps_are_intact());
    }
}

template <class A, class Implementation>
void adds(Implementation const& implementation) {
  using Array = PlacedArray<typename Implementation::Placement, A, 4>;
  auto backend = implementation.make(3);
  for (auto const& extents : extents_that_break_things<4>())
    for (Layout layout : unit_stride_layouts) {
      auto const own = numbers<A>(product(extents)), other = numbers<A>(product(extents), 5);
      std::vector<double> sums;
      for (std::size_t i = 0; i < own.size(); ++i)
        sums.push_back(static_cast<double>(static_cast<A>(own[i]) + static_cast<A>(other[i])));
      Array into(extents, layout, own), from(extents, Layout::payload, other);
      backend.add(into.view(), from.constant());
      backend.synchronize();
      CHECK(into.values() == sums);
      CHECK(into.gaps_are_intact());
    }
}

/// clear() writes zero over any value.
template <class A, class Implementation>
void clears(Implementation const& implementation) {
  using Array = PlacedArray<typename Implementation::Placement, A, 4>;
  auto backend = implementation.make(4);
  for (auto const& extents : extents_that_break_things<4>())
    for (Layout layout : every_layout) {
      Array array(extents, layout);
      backend.clear(array.view());
      backend.synchronize();
      CHECK(array.values() == std::vector<double>(static_cast<std::size_t>(product(extents)), 0.0));
      CHECK(array.gaps_are_intact());
    }
}

template <class Implementation>
void elementwise_operations(Implementation const& implementation) {
  using Backend = typename Implementation::Backend;
  copies<float, 4>(implementation);
  copies<double, 4>(implementation);
  copies<Eigen::half, 4>(implementation);
  copies<Eigen::bfloat16, 4>(implementation);
  copies<float, 3>(implementation);
  copies<std::int32_t, 2>(implementation);
  converts<annulus::AccumulatorOf<Backend, float>, float, 4>(implementation);
  converts<annulus::AccumulatorOf<Backend, double>, double, 4>(implementation);
  converts<annulus::AccumulatorOf<Backend, Eigen::half>, Eigen::half, 4>(implementation);
  converts<annulus::AccumulatorOf<Backend, Eigen::bfloat16>, Eigen::bfloat16, 4>(implementation);
  converts<annulus::AccumulatorOf<Backend, float>, float, 2>(implementation);
  adds<annulus::AccumulatorOf<Backend, float>>(implementation);
  adds<annulus::AccumulatorOf<Backend, double>>(implementation);
  clears<annulus::AccumulatorOf<Backend, float>>(implementation);
  clears<annulus::AccumulatorOf<Backend, double>>(implementation);
}

}  // namespace annulus_test::backend_cases
