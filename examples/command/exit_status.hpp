#pragma once
// What ends the command, as an exit status and one line.

#include <annulus/core/error.hpp>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "input_error.hpp"

namespace annulus_command {

enum ExitStatus : int { success = 0, failed = 1, bad_input = 2 };

/// A reason to end, with the status that it means.
struct Ending {
  ExitStatus status = failed;
  std::string line;
};

/// An ending on which all ranks agreed; one of them tells the user.
class AgreedEnding : public std::runtime_error {
 public:
  explicit AgreedEnding(Ending const& ending) : std::runtime_error(ending.line), status_(ending.status) {}
  ExitStatus status() const { return status_; }

 private:
  ExitStatus status_;
};

inline Ending ending_of(std::exception_ptr const& error) {
  auto const line = [](std::exception const& e) { return detail::one_line(e.what()); };
  try {
    std::rethrow_exception(error);
  } catch (AgreedEnding const& e) {
    return {e.status(), line(e)};
  } catch (InputError const& e) {
    return {bad_input, line(e)};
  } catch (annulus::ShapeError const& e) {
    return {bad_input, line(e)};
  } catch (annulus::UnsupportedError const& e) {
    return {bad_input, line(e)};
  } catch (std::bad_alloc const&) {
    return {failed, "not enough memory for the tensors of this call"};
  } catch (std::exception const& e) {
    return {failed, line(e)};
  } catch (...) {
    return {failed, "an exception of unknown type"};
  }
}

}  // namespace annulus_command
