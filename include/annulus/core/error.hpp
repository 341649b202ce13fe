#pragma once
// Exception types of the library, checked conditions and message text. A message states what was requested, what was
// seen and what is accepted.

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/core/index.hpp"

namespace annulus {

/// Base of all errors of the library.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Extents of operands do not match each other, the sharding, or the shapes of the first call.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// An option or operand has an invalid value, or one that the chosen backend or rotation does not support.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// A peer is lost, late, or was called with different arguments. Afterwards the ring of this communicator is closed.
class CommunicationError : public Error {
 public:
  static constexpr int unknown = -1;  ///< rank, step or neighbour that is not known

  /// The message, and what is known of the place.
  explicit CommunicationError(std::string const& message, Rank rank = unknown, int step = unknown,
                              Rank neighbour = unknown)
      : Error(message), rank_(rank), step_(step), neighbour_(neighbour) {}

  /// Rank that detected the error; `unknown` where all ranks detect it together.
  Rank rank() const { return rank_; }
  /// Step of the ring, counted from 0; `unknown` outside a step.
  int step() const { return step_; }
  /// Rank that was waited for, or that failed; `unknown` where it is not known.
  Rank neighbour() const { return neighbour_; }

 private:
  Rank rank_;
  int step_;
  Rank neighbour_;
};

namespace detail {

template <class T>
void append(std::ostringstream& out, T const& value) {
  if constexpr (std::same_as<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (requires { value.begin(); } && !std::convertible_to<T const&, std::string_view>) {
    char const* separator = "[";
    for (auto const& element : value) {
      out << std::exchange(separator, ", ");
      append(out, element);
    }
    out << (value.empty() ? "[]" : "]");
  } else {
    out << value;
  }
}

/// Concatenates the text of all parts; arrays and vectors as [a, b, c].
template <class... Parts>
std::string message_of(Parts const&... parts) {
  std::ostringstream out;
  out.precision(17);
  (append(out, parts), ...);
  return out.str();
}

/// Throws E with message_of(parts...) unless `condition` holds.
template <class E, class... Parts>
void check(bool condition, Parts const&... parts) {
  if (!condition) throw E(message_of(parts...));
}

/// At most `capacity` characters; excess characters are dropped. Trivially copyable and null-terminated.
template <std::size_t capacity>
class FixedText {
 public:
  FixedText() = default;
  template <class... Parts>
  explicit FixedText(Parts const&... parts) {
    add(parts...);
  }

  /// Appends strings and numbers. Floating-point numbers are written with up to `digits` significant digits.
  template <class... Parts>
  FixedText& add(Parts const&... parts) noexcept {
    (write(parts), ...);
    return *this;
  }
  void clear() noexcept { characters_ = {}; }

  bool empty() const noexcept { return characters_[0] == 0; }
  std::string_view view() const noexcept { return characters_.data(); }
  char const* c_str() const noexcept { return characters_.data(); }

  bool operator==(FixedText const&) const = default;

 private:
  static constexpr int digits = 17;

  void write(std::string_view word) noexcept {
    std::size_t const used = view().size();
    word.copy(characters_.data() + used, capacity - used);
  }
  template <class Number>
  requires(std::integral<Number> || std::floating_point<Number>) void write(Number number) noexcept {
    std::array<char, 40> written;
    std::to_chars_result result{};
    if constexpr (std::floating_point<Number>)
      result = std::to_chars(written.begin(), written.end(), number, std::chars_format::general, digits);
    else
      result = std::to_chars(written.begin(), written.end(), number);
    write(std::string_view(written.data(), static_cast<std::size_t>(result.ptr - written.data())));
  }

  std::array<char, capacity + 1> characters_{};
};

}  // namespace detail

}  // namespace annulus
