#include "nki_check.hpp"

#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "nki_dense.hpp"
#include "verification.hpp"

namespace annulus_command {

namespace {

using annulus::nki::ElementType;

/// float against float: other orders of the same sums.
constexpr double float_slack = 1e-6;
constexpr double lse_slack = 1e-5;
/// From so many elements on the norm of a rounding error is no matter of luck.
constexpr Eigen::Index many = 1000;

double rounding_unit(ElementType type) {
  return type == ElementType::bfloat16 ? 0x1p-8 : type == ElementType::float16 ? 0x1p-11 : 0x1p-24;
}

double finite_or_infinite(double x) { return std::isfinite(x) ? x : std::numeric_limits<double>::infinity(); }

template <class A, class B>
double distance(A const& found, B const& reference) {
  double apart = 0, size = 0;
  for (Eigen::Index i = 0; i < reference.size(); ++i) {
    double const a = static_cast<double>(found.data()[i]), b = static_cast<double>(reference.data()[i]);
    apart += (a - b) * (a - b);
    size += b * b;
  }
  return apart == 0 ? 0 : finite_or_infinite(std::sqrt(apart / size));
}

template <class A, class B>
double largest_difference(A const& found, B const& reference) {
  double largest = 0;
  for (Eigen::Index i = 0; i < reference.size(); ++i) {
    double const a = static_cast<double>(found.data()[i]), b = static_cast<double>(reference.data()[i]);
    if (a != b) largest = std::max(largest, finite_or_infinite(std::abs(a - b)));
  }
  return largest;
}

/// lse with -inf where a kernel says 0 for the rows that see nothing.
Tensor<float, 3> with_infinities(NkiProblem const& problem, Tensor<float, 3> lse, Tensor<double, 3> const& reference) {
  if (problem.spec.dead_row == annulus::nki::DeadRow::zero)
    for (Eigen::Index i = 0; i < lse.size(); ++i)
      if (std::isinf(reference.data()[i]) && lse.data()[i] == 0)
        lse.data()[i] = static_cast<float>(reference.data()[i]);
  return lse;
}

}  // namespace

std::vector<NkiError> nki_errors(NkiProblem const& problem, Inputs<float> const& inputs, Results<float> const& found,
                                 Results<double> const& reference, bool forward) {
  Results<float> const dense = dense_in_kernel_rounding(problem, inputs);
  std::vector<NkiError> errors;
  auto const add = [&](char const* name, auto const& a, auto const& yardstick, auto const& b, double factor) {
    NkiError error{name, largest_relative_error(a, b), distance(a, b), distance(yardstick, b), 0};
    error.accepted = factor * error.dense + float_slack + (b.size() < many ? rounding_unit(problem.spec.type) : 0);
    errors.push_back(error);
  };
  if (forward) {
    add("out", found.out, dense.out, reference.out, 1.5);
    if (problem.spec.training) {
      Tensor<float, 3> const lse = with_infinities(problem, found.lse, reference.lse);
      NkiError error{"lse", largest_relative_error(lse, reference.lse), largest_difference(lse, reference.lse),
                     largest_difference(dense.lse, reference.lse), 0};
      error.accepted = 2 * error.dense + lse_slack;
      errors.push_back(error);
    }
  }
  if (found.dq) {
    add("dq", *found.dq, *dense.dq, *reference.dq, 2);
    add("dk", *found.dk, *dense.dk, *reference.dk, 2);
    add("dv", *found.dv, *dense.dv, *reference.dv, 2);
    if (found.dsinks) add("dsinks", *found.dsinks, *dense.dsinks, *reference.dsinks, 2);
  }
  return errors;
}

void print_errors(std::ostream& out, std::vector<NkiError> const& errors) {
  char line[160];
  out << "against the reference backend on one rank, in double; distance: relative, in the Frobenius norm, of lse the\n"
         "largest absolute one; dense: the distance of dense attention that rounds where the kernel does\n";
  std::snprintf(line, sizeof line, "  %-6s %22s %10s %10s %14s\n", "", "largest relative error", "distance", "dense",
                "accepted up to");
  out << line;
  for (NkiError const& error : errors) {
    std::snprintf(line, sizeof line, "  %-6s %22.3g %10.3g %10.3g %14.3g%s\n", error.name.c_str(), error.largest,
                  error.distance, error.dense, error.accepted, error.good() ? "" : "  exceeded");
    out << line;
  }
}

void require_good(std::vector<NkiError> const& errors) {
  for (NkiError const& error : errors)
    if (!error.good()) {
      char text[160];
      std::snprintf(text, sizeof text, "--simulate: %s is %.3g away from the reference; accepted: up to %.3g",
                    error.name.c_str(), error.distance, error.accepted);
      throw std::runtime_error(text);
    }
}

}  // namespace annulus_command
