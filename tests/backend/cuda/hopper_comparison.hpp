#pragma once
// How far results of a kernel are from the reference.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

namespace hopper_check {

struct Difference {
  double error = 0, reference = 0;  ///< sums of squares
  double worst_row = 0;             ///< largest error of a row, relative to the row and to an average one
  bool wrong = false;               ///< not finite, or not 0 where it must be, or padding was written

  double relative() const { return reference > 0 ? std::sqrt(error / reference) : std::sqrt(error); }
  bool within(double bound) const { return !wrong && relative() <= bound && worst_row <= 5 * bound; }
  std::string text() const {
    char line[80];
    std::snprintf(line, sizeof line, "%.1e (row %.1e)%s", relative(), worst_row, wrong ? " WRONG" : "");
    return line;
  }
};

/// Compares tensors of `rows` rows: got(row, d) and want(row, d). A row whose reference is 0 everywhere must be 0 if
/// `exact_zeros`.
template <class Got, class Want>
Difference compare(std::size_t rows, int dim, bool exact_zeros, Got&& got, Want&& want) {
  Difference result;
  for (std::size_t row = 0; row < rows; ++row)
    for (int d = 0; d < dim; ++d) {
      double const seen = got(row, d), right = want(row, d);
      if (!std::isfinite(seen)) result.wrong = true;
      if (exact_zeros && right == 0 && seen != 0) result.wrong = true;
      result.error += (seen - right) * (seen - right);
      result.reference += right * right;
    }
  double const average = result.reference / static_cast<double>(std::max<std::size_t>(rows, 1));
  for (std::size_t row = 0; row < rows; ++row) {
    double error = 0, reference = 0;
    for (int d = 0; d < dim; ++d) {
      double const difference = got(row, d) - want(row, d);
      error += difference * difference;
      reference += want(row, d) * want(row, d);
    }
    if (error > 0) result.worst_row = std::max(result.worst_row, std::sqrt(error / (reference + average + 1e-20)));
  }
  return result;
}

}  // namespace hopper_check
