#pragma once
// Checks of numbers on the command line, with messages that say what is accepted.

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <system_error>

#include "input_error.hpp"

namespace annulus_command {

/// True if all of the text is one whole number that Value holds.
template <class Value>
bool is_whole_number(std::string_view text, Value& value) {
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Whole numbers from `least` to `most`.
template <class Value>
CLI::Validator whole_number(Value least, Value most) {
  auto const range = std::to_string(least) + " to " + std::to_string(most);
  return CLI::Validator(
      [least, most, range](std::string const& text) {
        Value value{};
        if (is_whole_number(text, value) && value >= least && value <= most) return std::string();
        return "'" + excerpt(text) + "' is given; accepted: a whole number, " + range;
      },
      "");
}

/// Any finite number.
inline CLI::Validator finite_number() {
  return CLI::Validator(
      [](std::string const& text) {
        char* end = nullptr;
        double const value = std::strtod(text.c_str(), &end);
        if (!text.empty() && end == text.c_str() + text.size() && std::isfinite(value)) return std::string();
        return "'" + excerpt(text) + "' is given; accepted: a finite number";
      },
      "");
}

}  // namespace annulus_command
