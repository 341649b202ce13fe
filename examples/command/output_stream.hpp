#pragma once
// Output through file descriptors that keeps the errno of a failed write, and standard output through it.

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace annulus_command {

/// Output buffer of a descriptor that it does not own. Writes nothing after the first failure. The destructor does not
/// flush.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int descriptor, std::size_t bytes = std::size_t{1} << 14)
      : descriptor_(descriptor), buffer_(bytes) {
    empty();
  }

  /// The errno of the first failed write; 0 if none failed.
  int error() const { return error_; }

  /// Writes what is buffered, then `bytes` from `data`. False after a failure.
  bool write(char const* data, std::size_t bytes) {
    bool const written = put(pbase(), static_cast<std::size_t>(pptr() - pbase())) && put(data, bytes);
    empty();
    return written;
  }

 protected:
  int_type overflow(int_type c) override {
    if (sync() != 0) return traits_type::eof();
    return traits_type::eq_int_type(c, traits_type::eof()) ? traits_type::not_eof(c)
                                                           : sputc(traits_type::to_char_type(c));
  }

  int sync() override { return write(nullptr, 0) ? 0 : -1; }

  std::streamsize xsputn(char const* data, std::streamsize bytes) override {
    if (bytes >= static_cast<std::streamsize>(buffer_.size()))
      return write(data, static_cast<std::size_t>(bytes)) ? bytes : 0;
    return std::streambuf::xsputn(data, bytes);
  }

 private:
  void empty() { setp(buffer_.data(), buffer_.data() + buffer_.size()); }

  bool put(char const* data, std::size_t bytes) {
    while (error_ == 0 && bytes > 0) {
      ssize_t const written = ::write(descriptor_, data, std::min(bytes, std::size_t{1} << 30));
      if (written >= 0) {
        data += written;
        bytes -= static_cast<std::size_t>(written);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        // Another process made this pipe non-blocking.
        pollfd wanted{descriptor_, POLLOUT, 0};
        ::poll(&wanted, 1, -1);
      } else if (errno != EINTR) {
        error_ = errno;
      }
    }
    return error_ == 0;
  }

  int descriptor_;
  int error_ = 0;
  std::vector<char> buffer_;
};

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
