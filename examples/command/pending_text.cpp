#include "pending_text.hpp"

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "input_error.hpp"

namespace annulus_command {

PendingText::PendingText(std::filesystem::path path) : path_(std::move(path)) {
  static std::atomic<unsigned> files{0};
  temporary_ = path_.parent_path() /
               (".annulus-" + std::to_string(getpid()) + "-" + std::to_string(files++) + ".text.partial");
  errno = 0;
  stream_.open(temporary_);
  if (!stream_) {
    std::string const reason = std::generic_category().message(errno);
    temporary_.clear();
    fail(reason);
  }
}

PendingText::PendingText(PendingText&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      stream_(std::move(other.stream_)) {}

PendingText::~PendingText() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove(temporary_, ignored);
}

void PendingText::close() {
  errno = 0;
  stream_.close();
  if (!stream_) fail(std::generic_category().message(errno));
}

void PendingText::commit() {
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) fail(error.message());
  temporary_.clear();
}

void PendingText::fail(std::string const& reason) const {
  throw InputError(path_.string() + ": cannot be written (" + reason +
                   "); accepted is a name in an existing folder that can be written, on a disk with room");
}

}  // namespace annulus_command
