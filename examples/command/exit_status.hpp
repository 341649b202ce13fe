#pragma once
// Exit status and final message of the command.

#include <annulus/core/error.hpp>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "input_error.hpp"

namespace annulus_command {

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
