#pragma once
// Stream buffer over a file descriptor that keeps the errno of a failed write.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <streambuf>
#include <vector>

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

}  // namespace annulus_command
