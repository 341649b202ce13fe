#pragma once
// Errors of results against the reference backend on one rank in double, and the rounding bounds on them.

#include <algorithm>
#include <annulus/comm/self.hpp>
#include <annulus/core/error.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attend_on_ranks.hpp"
#include "call.hpp"

namespace annulus_command {

/// A bound on the absolute error of each element of the results, in the shapes of `reference`.
///
/// u is half the distance between 1 and the next larger number of a type: 2^-8 (bfloat16), 2^-11 (float16), 2^-24
/// (float32); 2^-52 for float64, where the reference is rounded as well. u_t is that of the elements, u_s that of the
/// sums (float32; float64 for float64). Errors of single roundings are independent, so those of n terms add up as the
/// root of the sum of their squares; the sum of n numbers has the error u_s sqrt(n) (Higham and Mary, SIAM J. Sci.
/// Comput. 41, 2019). To first order, with n the larger number of terms of any sum over positions, and 0.425 u_t the
/// standard deviation of a rounding error of at most u_t:
///
///   product x = scale q.k      dx   = u_s |scale| |q| |k| sqrt(head_dim)
///   logit l, capped, biased    dl   = slope dx + dx^2 / softcap + 4 u_s (|capped| + |bias| + |l|)
///   lse                        dlse = sum p dl + u_s (4 |lse| + sqrt(n) + 8)
///   weight p = exp(l - lse)    dp   = p (dl + dlse + 4 u_s |l - lse| + 0.425 u_t), or the full change of exp if dl is
///                                     not small
///   delta = dout.output        the errors of the output, 0.425 u_t |output|, and u_s sqrt(value_dim) |dout| |output|
///   dlogit = p (dout.v - delta)  dp |dout.v - delta| + p u_s sqrt(value_dim) |dout| |v|, and p times the error of
///                                delta
///
/// Each result is a sum of such factors times elements of the operands. Its error is the root of the sum of the squares
/// of its terms' errors and of the squares of the sums that result if the errors of all terms have one sign, because
/// equal terms are rounded equally and a row has one delta. It is computed from the terms, not from the result, so it
/// holds where they cancel. The bound is 6 standard deviations, plus the rounding of the result, at most u_t. It
/// excludes an error of 3 percent of an element in every element type, unless the terms of that element cancel or dl is
/// near 1.
///
/// inputs, reference: of one call, in double. call: its element type is that of the checked results.
Results<double> rounding_bounds(Inputs<double> const& inputs, Call const& call, Results<double> const& reference);

/// Error of one result against the reference, checked element by element.
struct Verified {
  std::string name;
  double largest = 0;   ///< largest difference divided by the largest magnitude of the reference and of the bounds
  double of_bound = 0;  ///< largest ratio of an element's difference to its bound; infinite for a NaN
  double bound = 0;     ///< bound of that element, divided by the same magnitude as `largest`
  std::string worst{};  ///< message about that element

  bool good() const { return of_bound <= 1; }
};

namespace detail {

/// The inputs in double, which is exact for every element type.
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
  if (inputs.joint_keys) {
    convert(*inputs.joint_keys, *wide.joint_keys);
    convert(*inputs.joint_values, *wide.joint_values);
  }
  return wide;
}

}  // namespace detail

/// Results of the same call on one rank, with the reference backend and in double.
inline Results<double> reference_results(Inputs<double> const& inputs, Call call) {
  call.options.sharding = {};
  call.options.rotation = annulus::Rotation::automatic;
  call.options.schedule = annulus::Schedule::ring;
  call.options.ranks_per_group = 0;
  call.backend = "reference";
  call.threads = 1;
  call.shape.dtype = annulus::DataType::float64;
  annulus::SelfRing self;
  AnyRing ring(self);
  Timeline timeline;
  return attend_on_rank(ring, call, inputs, timeline);
}

namespace detail {

/// "[0, 3, 1]", the place of element `index` in C order.
template <class TensorType>
std::string place_of(TensorType const& tensor, Eigen::Index index) {
  std::string place;
  for (int axis = TensorType::NumDimensions - 1; axis >= 0; --axis) {
    place = std::to_string(index % tensor.dimension(axis)) + (place.empty() ? "" : ", ") + place;
    index /= tensor.dimension(axis);
  }
  return "[" + place + "]";
}

/// Compares one result with its bounds. Equal infinities count as equal (lse of a masked row); a NaN always fails, even
/// if the reference has one too.
template <class A, class B>
Verified judged(std::string name, A const& found, B const& reference, B const& bounds) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double difference = 0, magnitude = 0, of_bound = -1;
  Eigen::Index worst = -1;
  for (Eigen::Index i = 0; i < reference.size(); ++i) {
    double const a = static_cast<double>(found.data()[i]), b = reference.data()[i], bound = bounds.data()[i];
    if (std::isfinite(b)) magnitude = std::max(magnitude, std::abs(b));
    if (std::isfinite(bound)) magnitude = std::max(magnitude, bound);
    if (a == b) continue;
    double const apart = std::isfinite(a - b) ? std::abs(a - b) : infinity;
    difference = std::max(difference, apart);
    // A NaN bound comes from terms beyond the range of double; then a finite difference is all that can be required.
    double const share = std::isinf(apart) ? infinity : std::isnan(bound) ? 0 : apart / bound;
    if (share > of_bound) {
      of_bound = share;
      worst = i;
    }
  }
  Verified verified{std::move(name), difference == 0 || std::isinf(difference) ? difference : difference / magnitude,
                    std::max(of_bound, 0.0), magnitude == 0 || worst < 0 ? 0 : bounds.data()[worst] / magnitude};
  if (worst >= 0)
    verified.worst = annulus::detail::message_of(
        verified.name, place_of(reference, worst), " is ", static_cast<double>(found.data()[worst]),
        ", the reference in double has ", reference.data()[worst], "; accepted: up to ", bounds.data()[worst],
        " away, the bound on rounding errors");
  return verified;
}

}  // namespace detail

/// Compares all results with the reference, computed from the operands as rounded to T: the errors are those of the
/// computation and of rounding its results.
template <annulus::Scalar T>
std::vector<Verified> verified(Inputs<T> const& inputs, Call const& call, Results<T> const& results) {
  Inputs<double> const wide = detail::widened(inputs, call);
  Results<double> const reference = reference_results(wide, call);
  Results<double> const bounds = rounding_bounds(wide, call, reference);
  std::vector<Verified> all{detail::judged("out", results.out, reference.out, bounds.out),
                            detail::judged("lse", results.lse, reference.lse, bounds.lse)};
  auto const optional = [&](char const* name, auto const& found, auto const& expected, auto const& bound) {
    if (found) all.push_back(detail::judged(name, *found, *expected, *bound));
  };
  optional("dq", results.dq, reference.dq, bounds.dq);
  optional("dk", results.dk, reference.dk, bounds.dk);
  optional("dv", results.dv, reference.dv, bounds.dv);
  optional("dbias", results.dbias, reference.dbias, bounds.dbias);
  optional("dsinks", results.dsinks, reference.dsinks, bounds.dsinks);
  optional("d_joint_k", results.d_joint_keys, reference.d_joint_keys, bounds.d_joint_keys);
  optional("d_joint_v", results.d_joint_values, reference.d_joint_values, bounds.d_joint_values);
  return all;
}

}  // namespace annulus_command
