#pragma once
// Errors of the command: those of bad input, exit status and final message.

#include <annulus/core/error.hpp>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

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

enum ExitStatus : int { success = 0, failed = 1, bad_input = 2 };

/// Exit status of the command and its final message.
struct Ending {
  ExitStatus status = failed;
  std::string line{};  ///< empty if there was no memory for it

  /// The line for the user; a fixed text if `line` is empty.
  char const* text() const noexcept {
    return line.empty() ? "not enough memory for the tensors of this call" : line.c_str();
  }
};

/// Message for a std::system_error of std::thread. wanted: purpose and number of the threads.
inline std::string thread_failure_message(std::string const& wanted, std::system_error const& error) {
  return "a thread could not be created for " + wanted + " (" + error.code().message() +
         "); accepted: fewer ranks or threads, or higher limits for the processes of the user and the memory of the "
         "process (ulimit -u, ulimit -v)";
}

/// Thrown on all ranks after they agreed on an ending; one of them prints it.
class AgreedEnding : public std::runtime_error {
 public:
  explicit AgreedEnding(Ending const& ending) : std::runtime_error(ending.line), status_(ending.status) {}
  ExitStatus status() const { return status_; }

 private:
  ExitStatus status_;
};

namespace detail {

inline Ending ending_that_allocates(std::exception_ptr const& error) {
  auto const line = [](std::exception const& e) {
    std::string const what = one_line(e.what());
    return what.empty() ? "an error without a message" : what;
  };
  try {
    std::rethrow_exception(error);
  } catch (AgreedEnding const& e) {
    return {e.status(), one_line(e.what())};  // empty: a rank had no memory for the message
  } catch (InputError const& e) {
    return {bad_input, line(e)};
  } catch (annulus::ShapeError const& e) {
    return {bad_input, line(e)};
  } catch (annulus::UnsupportedError const& e) {
    return {bad_input, line(e)};
  } catch (std::bad_alloc const&) {
    return {};
  } catch (std::filesystem::filesystem_error const& e) {
    return {failed, line(e)};
  } catch (std::system_error const& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) return {failed, line(e)};
    return {failed, thread_failure_message("the threads of this call", e)};
  } catch (std::exception const& e) {
    return {failed, line(e)};
  } catch (...) {
    return {failed, "an exception of unknown type"};
  }
}

}  // namespace detail

/// Status and message for an exception. Without memory for the message, Ending::text() supplies a fixed one.
inline Ending ending_of(std::exception_ptr const& error) noexcept {
  try {
    return detail::ending_that_allocates(error);
  } catch (...) {
    return {};
  }
}

}  // namespace annulus_command
