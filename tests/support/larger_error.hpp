#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace annulus_test {

/// The larger of two errors; infinite where either is NaN, which std::max passes over.
inline double larger_error(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::infinity() : std::max(a, b);
}

}  // namespace annulus_test
