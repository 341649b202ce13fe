#pragma once
// Python literals of values.

#include <charconv>
#include <cmath>
#include <span>
#include <string>

#include "annulus/nki/program/access.hpp"
#include "annulus/core/error.hpp"

namespace annulus::nki::print_detail {

inline std::string literal(bool value) { return value ? "True" : "False"; }
inline std::string literal(int value) { return std::to_string(value); }
inline std::string literal(Index value) { return std::to_string(value); }

template <class Real>
std::string shortest_digits(Real value) {
  char digits[64];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

/// Shortest digits that Python reads as a double which rounds to `value`; a Python float, never an int. Throws
/// UnsupportedError unless `value` is finite.
inline std::string literal(float value) {
  if (!std::isfinite(value))
    throw UnsupportedError("an NKI kernel holds the value " + shortest_digits(value) +
                           "; accepted: finite values, as Python has no literals for others");
  std::string text = shortest_digits(value);
  double reread = 0;
  std::from_chars(text.data(), text.data() + text.size(), reread);
  // The shortest digits of a float may give another float when they are rounded to double first.
  if (static_cast<float>(reread) != value) text = shortest_digits(static_cast<double>(value));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

template <class Item, class Write>
std::string list(std::span<Item const> items, Write&& write) {
  std::string text = "[";
  for (std::size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : ", ") + write(items[i]);
  return text + "]";
}

/// [[stride, count], ...]
inline std::string literal(std::span<Axis const> axes) {
  return list(axes, [](Axis const& axis) { return "[" + literal(axis.stride) + ", " + literal(axis.count) + "]"; });
}

/// [0, 1, 2], or [0] * 32 where all are equal.
inline std::string literal(std::span<int const> numbers) {
  for (int number : numbers)
    if (number != numbers.front()) return list(numbers, [](int value) { return literal(value); });
  if (numbers.size() < 2) return list(numbers, [](int value) { return literal(value); });
  return "[" + literal(numbers.front()) + "] * " + std::to_string(numbers.size());
}

/// (2, 128, 64); one extent: (64,).
inline std::string tuple(std::span<Index const> extents) {
  std::string text = list(extents, [](Index extent) { return literal(extent); });
  text.front() = '(';
  text.back() = extents.size() == 1 ? ',' : ')';
  return extents.size() == 1 ? text + ")" : text;
}

}  // namespace annulus::nki::print_detail
