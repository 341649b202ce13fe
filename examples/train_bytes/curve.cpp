#include "curve.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "command/errors.hpp"
#include "command/options.hpp"

namespace train_bytes {

namespace {

using annulus_command::InputError;

constexpr std::string_view names = "step,bits_per_byte,gradient_norm,learning_rate";

/// The fields of a line; throws unless they are four finite numbers.
CurvePoint point_of(std::string const& line, std::string const& where) {
  std::array<double, 4> fields{};
  std::istringstream stream(line);
  std::size_t count = 0;
  for (std::string field; std::getline(stream, field, ','); ++count) {
    auto const value = annulus_command::finite_value(field);
    if (!value || count >= fields.size())
      throw InputError(where + ": is '" + annulus_command::excerpt(line) + "'; accepted: four finite numbers, " +
                       std::string(names));
    fields[count] = *value;
  }
  if (count != fields.size())
    throw InputError(where + ": has " + std::to_string(count) + " fields; accepted: " + std::string(names));
  return {static_cast<Index>(fields[0]), fields[1], fields[2], fields[3]};
}

}  // namespace

void write_csv(std::ostream& stream, Curve const& curve) {
  stream.precision(std::numeric_limits<double>::max_digits10);
  stream << names << '\n';
  for (CurvePoint const& point : curve)
    stream << point.step << ',' << point.bits_per_byte << ',' << point.gradient_norm << ',' << point.learning_rate
           << '\n';
}

Curve read_csv(std::filesystem::path const& path) {
  errno = 0;
  std::ifstream stream(path);
  std::string line;
  if (!std::getline(stream, line))
    throw InputError(path.string() + ": cannot be read (" +
                     (errno != 0 ? std::generic_category().message(errno) : "it is empty") +
                     "); accepted: a file that --csv has written");
  if (line != names)
    throw InputError(path.string() + ": begins with '" + annulus_command::excerpt(line) +
                     "'; accepted: a file that --csv has written, which begins with " + std::string(names));
  Curve curve;
  while (std::getline(stream, line))
    curve.push_back(point_of(line, path.string() + ", line " + std::to_string(curve.size() + 2)));
  if (curve.empty()) throw InputError(path.string() + ": has no step; accepted: a file with at least one");
  return curve;
}

Difference largest_difference(Curve const& one, Curve const& other) {
  Difference largest;
  for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i)
    if (double const here = std::abs(one[i].bits_per_byte - other[i].bits_per_byte); here > largest.bits_per_byte)
      largest = {here, one[i].step};
  return largest;
}

}  // namespace train_bytes
