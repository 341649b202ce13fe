#pragma once
// Standard output with error checking: a failed write ends the command with an error.

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "descriptor_buffer.hpp"

namespace annulus_command {

/// Opens /dev/null on closed standard descriptors, so that no file opened later gets their numbers. Writes to a
/// standard output that was closed still fail. Does nothing more if /dev/null cannot be opened.
inline void occupy_standard_descriptors() {
  for (int const descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    bool const closed = ::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF;
    // Opened in the wrong direction, so that use fails as on a closed descriptor; writes to stderr are discarded
    // silently.
    if (closed && ::open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_WRONLY) < 0) return;
  }
}

/// printf to std::cout.
[[gnu::format(printf, 1, 2)]] inline void print_formatted(char const* format, ...) {
  std::va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int const length = std::vsnprintf(nullptr, 0, format, arguments);
  std::string text(static_cast<std::size_t>(std::max(length, 0)) + 1, '\0');
  std::vsnprintf(text.data(), text.size(), format, again);
  va_end(again);
  va_end(arguments);
  text.pop_back();
  std::cout << text;
}

/// While this object exists, std::cout writes through a DescriptorBuffer, which keeps the first errno. The destructor
/// flushes but reports nothing; call finish().
class StandardOutput {
 public:
  StandardOutput() : before_(std::cout.rdbuf(&buffer_)) {}
  StandardOutput(StandardOutput const&) = delete;
  StandardOutput& operator=(StandardOutput const&) = delete;
  ~StandardOutput() {
    std::cout.flush();
    std::cout.rdbuf(before_);
  }

  /// Flushes. Throws std::runtime_error if any output is lost.
  void finish() {
    std::cout.flush();
    if (buffer_.error() != 0)
      throw std::runtime_error("standard output cannot be written (" +
                               std::generic_category().message(buffer_.error()) +
                               "): output is lost; accepted: an open file, pipe or terminal with free space");
  }

 private:
  DescriptorBuffer buffer_{STDOUT_FILENO};
  std::streambuf* before_;
};

}  // namespace annulus_command
