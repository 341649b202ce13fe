#pragma once
// Validators of numbers on the command line, with messages that say what is accepted.

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include "input_error.hpp"

namespace annulus_command {

/// True if all of the text is one whole number that Value holds.
template <class Value>
bool is_whole_number(std::string_view text, Value& value) {
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Accepts whole numbers from `least` to `most`.
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

/// True if all of the text is one finite number.
inline bool is_finite_number(std::string const& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() && std::isfinite(value);
}

/// Accepts any finite number.
inline CLI::Validator finite_number() {
  return CLI::Validator(
      [](std::string const& text) {
        double value = 0;
        if (is_finite_number(text, value)) return std::string();
        return "'" + excerpt(text) + "' is given; accepted: a finite number";
      },
      "");
}

/// Accepts seconds that a rank waits for another, 0.001 to 1e9, so that adding them to a time cannot overflow.
inline CLI::Validator seconds_to_wait() {
  return CLI::Validator(
      [](std::string const& text) {
        double value = 0;
        if (is_finite_number(text, value) && value >= 0.001 && value <= 1e9) return std::string();
        return "'" + excerpt(text) + "' is given; accepted: seconds, 0.001 to 1000000000, fractions too";
      },
      "");
}

/// Converts a value accepted by seconds_to_wait, rounded to the nearest millisecond.
inline std::chrono::milliseconds milliseconds_of_seconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

}  // namespace annulus_command
