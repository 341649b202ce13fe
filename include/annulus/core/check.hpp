#pragma once
// Checked conditions: check<ShapeError>(condition, "k has ", n, " rows, expected ", m) builds messages on failure only.

#include <array>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "annulus/core/error.hpp"

namespace annulus {

namespace detail {

template <class T>
void append(std::ostringstream& out, T const& value) {
  out << value;
}

inline void append(std::ostringstream& out, bool value) { out << (value ? "true" : "false"); }

template <class T>
void append_list(std::ostringstream& out, T const& values) {
  out << '[';
  char const* separator = "";
  for (auto const& value : values) {
    out << separator;
    append(out, value);
    separator = ", ";
  }
  out << ']';
}

template <class T, std::size_t N>
void append(std::ostringstream& out, std::array<T, N> const& values) {
  append_list(out, values);
}

template <class T>
void append(std::ostringstream& out, std::vector<T> const& values) {
  append_list(out, values);
}

}  // namespace detail

/// Concatenates the text of all parts; arrays and vectors as [a, b, c].
template <class... Parts>
std::string message_of(Parts const&... parts) {
  std::ostringstream out;
  out.precision(17);
  (detail::append(out, parts), ...);
  return out.str();
}

/// Throws E with message_of(parts...) unless `condition` holds.
template <class E, class... Parts>
void check(bool condition, Parts const&... parts) {
  if (!condition) throw E(message_of(parts...));
}

}  // namespace annulus
