#pragma once
// Error for bad files, options or folders given by the user. The command prints it and ends with status 2.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace annulus_command {

namespace detail {

inline bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

inline std::string hexadecimal_escape(char c) {
  char const* const digits = "0123456789abcdef";
  auto const byte = static_cast<unsigned char>(c);
  return std::string("\\x") + digits[byte >> 4] + digits[byte & 15];
}

/// The text with control characters escaped, so that a file name cannot break the line or send escape sequences to the
/// terminal.
inline std::string one_line(std::string_view text) {
  std::string line;
  for (char const c : text)
    if (is_control(c))
      line += hexadecimal_escape(c);
    else
      line += c;
  return line;
}

}  // namespace detail

/// Error with a message of a single line: what was asked, what was seen, what is accepted.
class InputError : public std::runtime_error {
 public:
  explicit InputError(std::string_view message) : std::runtime_error(detail::one_line(message)) {}
};

/// The first `limit` characters of a text for a message, with all but printable ASCII escaped.
inline std::string excerpt(std::string_view text, std::size_t limit = 60) {
  std::string shown;
  for (char const c : text.substr(0, limit))
    if (detail::is_control(c) || static_cast<unsigned char>(c) >= 0x80)
      shown += detail::hexadecimal_escape(c);
    else
      shown += c;
  return text.size() > limit ? shown + "..." : shown;
}

}  // namespace annulus_command
