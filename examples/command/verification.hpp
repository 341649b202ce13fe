#pragma once
// How far results are from those of the reference backend on one rank, in double.

#include <algorithm>
#include <annulus/comm/self.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "call_tensors.hpp"
#include "rank_pass.hpp"

namespace annulus_command {

/// Largest difference of two elements over the largest finite magnitude of the reference. Equal infinities do not differ
/// (the lse of a row that sees nothing); a NaN is no result, even where the reference has one too: infinite.
template <class A, class B>
double largest_relative_error(A const& found, B const& reference) {
  double difference = 0, magnitude = 0;
  for (Eigen::Index i = 0; i < reference.size(); ++i) {
    double const a = static_cast<double>(found.data()[i]), b = static_cast<double>(reference.data()[i]);
    if (std::isfinite(b)) magnitude = std::max(magnitude, std::abs(b));
    if (a == b) continue;
    double const apart = std::abs(a - b);
    difference = std::max(difference, std::isfinite(apart) ? apart : std::numeric_limits<double>::infinity());
  }
  return difference == 0 || !std::isfinite(difference) ? difference : difference / magnitude;
}

namespace detail {

/// The same numbers as double: exact for every element type.
template <annulus::Scalar T>
Inputs<double> widened(Inputs<T> const& inputs, Call const& call) {
  Inputs<double> wide = make_inputs<double>(call, {call.shape.queries, call.shape.keys});
  auto const convert = [](auto const& from, auto& to) {
    using Element = std::remove_reference_t<decltype(*to.data())>;
    std::transform(from.data(), from.data() + from.size(), to.data(), [](auto x) { return static_cast<Element>(x); });
  };
  for_each_sharded<T>(inputs, wide, call.axes,
                      [&](auto const& from, auto& to, std::size_t, annulus::Side) { convert(from, to); });
  if (inputs.sinks) convert(*inputs.sinks, *wide.sinks);
  return wide;
}

}  // namespace detail

/// Name and largest relative error of each result.
using Errors = std::vector<std::pair<std::string, double>>;

/// The call again, on one rank with the reference backend and in double, from the operands as they were rounded to T.
template <annulus::Scalar T>
Results<double> reference_results(Inputs<T> const& inputs, Call call) {
  call.options.sharding = {};
  call.options.rotation = annulus::Rotation::automatic;
  call.backend = "reference";
  call.threads = 1;
  call.shape.dtype = annulus::DataType::float64;
  annulus::SelfRing self;
  AnyRing ring(self);
  StepLog log(StepLog::Clock::now(), nullptr);
  return attend_on_rank(ring, call, detail::widened(inputs, call), log);
}

/// What it shows is the error of the computation, and of rounding its results.
template <annulus::Scalar T>
Errors errors_against_reference(Inputs<T> const& inputs, Call const& call, Results<T> const& results) {
  Results<double> const reference = reference_results(inputs, call);
  Errors errors{{"out", largest_relative_error(results.out, reference.out)},
                {"lse", largest_relative_error(results.lse, reference.lse)}};
  auto const optional = [&](char const* name, auto const& found, auto const& expected) {
    if (found) errors.emplace_back(name, largest_relative_error(*found, *expected));
  };
  optional("dq", results.dq, reference.dq);
  optional("dk", results.dk, reference.dk);
  optional("dv", results.dv, reference.dv);
  optional("dbias", results.dbias, reference.dbias);
  optional("dsinks", results.dsinks, reference.dsinks);
  return errors;
}

}  // namespace annulus_command
