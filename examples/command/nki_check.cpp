#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "nki_parts.hpp"
#include "output_stream.hpp"

namespace annulus_command {

namespace {

using annulus::nki::ElementType;

/// Tolerance for sums in float in another order.
constexpr double float_slack = 1e-6;
/// Below this fraction of the size of its terms a result comes from cancellation; its error is measured by the terms.
constexpr double cancellation = 0.01;
/// Tolerance of lse in float for scores up to about 40; 4 roundings of the largest lse for larger ones.
constexpr double lse_slack = 1e-5;
constexpr double lse_roundings = 4;
/// With fewer elements than this, the norm of the rounding errors varies by chance, and one more rounding is accepted.
constexpr Eigen::Index many = 1000;

constexpr double infinity = std::numeric_limits<double>::infinity();

double rounding_unit(ElementType type) {
  return type == ElementType::bfloat16 ? 0x1p-8 : type == ElementType::float16 ? 0x1p-11 : 0x1p-24;
}

double finite_or_infinite(double x) { return std::isfinite(x) ? x : infinity; }

/// part / whole; 0 / 0 is 0, and other values that are not finite are infinite.
double ratio(double part, double whole) { return part == 0 ? 0 : finite_or_infinite(part / whole); }

/// Size of a tensor or of a difference.
struct Size {
  double norm = 0;  ///< Frobenius
  double largest = 0;
};

template <class A>
Size size_of(A const& values) {
  double squares = 0, largest = 0;
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    double const x = std::abs(static_cast<double>(values.data()[i]));
    squares += x * x;
    largest = std::max(largest, x);
  }
  return {std::sqrt(squares), largest};
}

/// Infinite if an element is not finite, or is not exactly 0 although all of its terms are.
template <class A, class B>
Size difference(A const& found, B const& reference, B const& terms) {
  double squares = 0, largest = 0;
  for (Eigen::Index i = 0; i < reference.size(); ++i) {
    double const a = static_cast<double>(found.data()[i]), apart = std::abs(a - reference.data()[i]);
    if (!std::isfinite(apart) || (terms.data()[i] == 0 && a != 0)) return {infinity, infinity};
    squares += apart * apart;
    largest = std::max(largest, apart);
  }
  return {std::sqrt(squares), largest};
}

/// Equal infinities count as no difference.
template <class A, class B>
double largest_difference(A const& found, B const& reference) {
  double largest = 0;
  for (Eigen::Index i = 0; i < reference.size(); ++i) {
    double const a = static_cast<double>(found.data()[i]), b = static_cast<double>(reference.data()[i]);
    if (a != b) largest = std::max(largest, finite_or_infinite(std::abs(a - b)));
  }
  return largest;
}

double largest_finite(Tensor<double, 3> const& values) {
  double largest = 0;
  for (Eigen::Index i = 0; i < values.size(); ++i)
    if (std::isfinite(values.data()[i])) largest = std::max(largest, std::abs(values.data()[i]));
  return largest;
}

/// lse with -inf in the masked rows for which a kernel returns 0 (MaskedRow::zero); other values there become NaN.
Tensor<float, 3> with_infinities(NkiProblem const& problem, Tensor<float, 3> lse, Tensor<double, 3> const& reference) {
  if (problem.spec.masked_row == annulus::nki::MaskedRow::zero)
    for (Eigen::Index i = 0; i < lse.size(); ++i)
      if (std::isinf(reference.data()[i]))
        lse.data()[i] =
            lse.data()[i] == 0 ? static_cast<float>(reference.data()[i]) : std::numeric_limits<float>::quiet_NaN();
  return lse;
}

NkiError lse_error(NkiProblem const& problem, Tensor<float, 3> const& found, Tensor<float, 3> const& dense,
                   Tensor<double, 3> const& reference) {
  double const largest = largest_finite(reference);
  NkiError error{"lse", 0, largest_difference(with_infinities(problem, found, reference), reference),
                 largest_difference(dense, reference), 0};
  error.largest = error.distance / std::max(1.0, largest);  // the logarithm of a sum has scale 1
  error.accepted = std::max(lse_slack, lse_roundings * rounding_unit(ElementType::float32) * largest);
  if (std::isfinite(error.dense_distance)) error.accepted = std::max(error.accepted, 2 * error.dense_distance);
  // The sum is that of the rounded weights.
  if (problem.spec.keys_stationary) error.accepted += rounding_unit(problem.spec.type);
  if (problem.spec.lse_type != ElementType::float32) error.accepted += rounding_unit(problem.spec.lse_type) * largest;
  return error;
}

}  // namespace

std::vector<NkiError> nki_errors(NkiProblem const& problem, Inputs<float> const& inputs, Results<float> const& found,
                                 Results<double> const& reference, bool forward) {
  Results<float> const dense = dense_in_kernel_rounding(problem, inputs);
  Results<double> const terms = term_sizes(problem, inputs, reference);
  std::vector<NkiError> errors;
  auto const add = [&](char const* name, auto const& a, auto const& rounded, auto const& b, auto const& summed,
                       double factor) {
    Size const result = size_of(b), term = size_of(summed);
    bool const of_terms = result.norm < cancellation * term.norm;
    Size const size = of_terms ? term : result;
    Size const apart = difference(a, b, summed);
    NkiError error{name,
                   ratio(apart.largest, size.largest),
                   ratio(apart.norm, size.norm),
                   ratio(difference(rounded, b, summed).norm, size.norm),
                   0,
                   of_terms};
    // lse of a kernel with stationary keys changes all weights of a row in the backward pass by one factor.
    bool const of_rounded_lse = forward && problem.spec.keys_stationary && name[0] == 'd';
    double const slack = float_slack + (b.size() < many) * rounding_unit(problem.spec.type) +
                         of_rounded_lse * rounding_unit(problem.spec.type);
    error.accepted = slack * std::max(1.0, ratio(term.norm, size.norm));
    if (std::isfinite(error.dense_distance)) error.accepted += factor * error.dense_distance;
    errors.push_back(error);
  };
  if (forward) {
    add("out", found.out, dense.out, reference.out, terms.out, 1.5);
    if (problem.spec.training) errors.push_back(lse_error(problem, found.lse, dense.lse, reference.lse));
  }
  if (found.dq) {
    add("dq", *found.dq, *dense.dq, *reference.dq, *terms.dq, 2);
    add("dk", *found.dk, *dense.dk, *reference.dk, *terms.dk, 2);
    add("dv", *found.dv, *dense.dv, *reference.dv, *terms.dv, 2);
    if (found.dbias) add("dbias", *found.dbias, *dense.dbias, *reference.dbias, *terms.dbias, 2);
    if (found.dsinks) add("dsinks", *found.dsinks, *dense.dsinks, *reference.dsinks, *terms.dsinks, 2);
  }
  return errors;
}

void print_errors(std::vector<NkiError> const& errors) {
  print_formatted(
      "errors against the reference backend on one rank, in double; distance: relative, in the Frobenius norm; of\n"
      "lse: the largest absolute error; dense: distance of dense attention that rounds where the kernel does;\n"
      "'of terms': relative to the terms of the sums, which cancel\n");
  print_formatted("  %-6s %22s %10s %10s %14s\n", "", "largest relative error", "distance", "dense", "accepted up to");
  for (NkiError const& error : errors)
    print_formatted("  %-6s %22.3g %10.3g %10.3g %14.3g%s%s\n", error.name.c_str(), error.largest, error.distance,
                    error.dense_distance, error.accepted, error.of_terms ? "  of terms" : "",
                    error.good() ? "" : "  exceeded");
}

void require_good(std::vector<NkiError> const& errors) {
  for (NkiError const& error : errors) {
    if (std::isinf(error.distance))
      throw std::runtime_error("--simulate: " + error.name + " differs from the reference by infinity or NaN, " +
                               "or is not exactly 0 where all terms are 0; accepted: neither");
    if (!error.good()) {
      char text[160];
      std::snprintf(text, sizeof text, "--simulate: %s is %.3g away from the reference; accepted: up to %.3g",
                    error.name.c_str(), error.distance, error.accepted);
      throw std::runtime_error(text);
    }
  }
}

}  // namespace annulus_command
