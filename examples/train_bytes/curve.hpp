#pragma once
// The loss of each step of a run, as CSV files.

#include <filesystem>
#include <ostream>
#include <vector>

#include "matrix.hpp"

namespace train_bytes {

struct CurvePoint {
  Index step;
  double bits_per_byte;  ///< training loss before the step
  double gradient_norm;
  double learning_rate;
};

using Curve = std::vector<CurvePoint>;

/// A line of names, then a line for each step. Numbers are written with all digits, so that equal files mean equal
/// bits.
void write_csv(std::ostream& stream, Curve const& curve);

/// Reads what write_csv writes. Throws InputError for a file that cannot be read or is anything else.
Curve read_csv(std::filesystem::path const& path);

/// The largest difference between the losses of two curves at the same step.
struct Difference {
  double bits_per_byte = 0;
  Index step = 0;
};

/// Compares the steps that both curves have.
Difference largest_difference(Curve const& one, Curve const& other);

}  // namespace train_bytes
