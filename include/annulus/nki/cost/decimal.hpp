#pragma once
// Locale-independent text of numbers.

#include <array>
#include <charconv>
#include <string>

namespace annulus::nki {

/// The value in fixed notation, with `digits` digits after the point.
inline std::string decimal(double value, int digits) {
  std::array<char, 400> text;  // the longest double has 309 digits before the point
  auto const end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits).ptr;
  return std::string(text.data(), end);
}

}  // namespace annulus::nki
